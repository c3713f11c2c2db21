"""A cluster in process: the real issuer and reconciler over API servers in memory; the provider's answer is set.

The controller notes which checks ran, and may lack one of them.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from catalogue import Expected, Verdict
from csr_world import CAPI, CSRS, NODE, PROVIDER_ID, SIGNERS, OneRound, World, attested, machine
from late_machines import GROUP, put, put_byo, put_host, put_machine, serve_metal3
from tpm_world import SoftTpm, request_of

from nodeattest_controller.controllers.csr import checks as csr_checks
from nodeattest_controller.controllers.csr import kubelet_checks
from nodeattest_controller.controllers.csr.issuer import Issuer
from nodeattest_controller.controllers.csr.kubelet_checks import KubeletFacts
from nodeattest_controller.verification.checks import Pipeline, RequestCheck
from nodeattest_controller.verification.facts import RequestFacts
from nodeattest_parsing.objects import mapping, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers import envelope, identifiers
from nodeattest_providers.errors import ChallengeRequired
from nodeattest_providers.identifiers import NodeName, ProviderID, ProviderName, Purpose
from nodeattest_providers.node_interface import Evidence, SecretBytes
from nodeattest_providers.node_interface import JsonObject as EvidenceObject
from nodeattest_providers.tpm.verifier import TpmSigner
from nodeattest_providers.verifier_interface import AttestedNode, Facts, NodeRequest
from nodeattest_sandbox.pki import ClusterPki

F = TypeVar("F", bound=RequestFacts)
GRANTED: Final = Expected(Verdict.ACCEPT, "")
OTHER: Final = ProviderID("metal://rack-1/2")
SECOND_NODE: Final = NodeName("worker-2")
AS_NODE: Final[dict[str, Any]] = {"username": f"system:node:{NODE}", "groups": ["system:nodes"]}
MACHINE: Final = f"{CAPI}/machines/m-1"
MINE: Final = f"{CAPI}/machines/mine"
CLUSTER: Final = f"{CAPI}/clusters/blue"
NODE_REF: Final[JsonObject] = {"name": NODE, "uid": "node-uid"}
ADDRESS: Final[JsonObject] = {"type": "InternalIP", "address": "10.0.0.1"}
LATE_POLICY: Final[dict[str, JsonValue]] = {
    "tokenBinding": "Required",
    "infrastructure": {
        "hostObjects": ["BareMetalHost"],
        "shortNodeNames": True,
        "providerIDs": [{"group": GROUP, "kind": "DevMachine", "expression": "dev://{infra.spec.host}"}],
    },
    "tpm": {},
}


def hostname(name: str, kind: str = "Hostname") -> JsonValue:
    return {"type": kind, "address": name}


HOSTNAME: Final = hostname(NODE)


def decision(kind: str) -> JsonObject:
    """Write a status with somebody's condition."""
    return {"conditions": [{"type": kind, "status": "True", "reason": "Somebody"}]}


@dataclass(slots=True)
class Scene:
    """One cluster, its machines, and the requests of thieves."""

    world: World
    kubelet_list: Pipeline[KubeletFacts]
    ran: list[str]
    """The checks that ran, in order."""
    unseen: list[tuple[str, JsonObject]] = field(default_factory=list[tuple[str, JsonObject]])
    """Objects as they are when the request is filed; the controller's cache has older ones."""
    number: int = 0

    async def settle(self) -> None:
        """Let the caches have what was written, and no more than that."""
        await self.world.settle()
        self.world.management_api.objects.update(self.unseen)

    async def file(self, name: str = "thief", **changes: Any) -> Expected:
        """File a request and let the controller handle it."""
        await self.settle()
        self.world.file(name, **changes)
        return await self.ended(name)

    async def serve(self) -> Expected:
        """Ask as the node for a certificate to serve 10.0.0.1."""
        return await self.file("serving", signerName=SIGNERS[Purpose.SERVING], **AS_NODE)

    async def file_kubelets(self) -> Expected:
        """Ask as kubelet for a certificate to serve 10.0.0.1."""
        await self.settle()
        self.world.file_kubelets()
        return await self.ended("k-1")

    async def asks(self, provider_id: str, node: str = "mine", holder: str = "aaaaaa", **spec: Any) -> Expected:
        """File a request by a machine's token, once all caches have begun."""
        await self.world.follow()
        self.number += 1
        asked = {"node": NodeName(node), "provider_id": ProviderID(provider_id)}
        return await self.file(f"r-{self.number}", **asked, **{"username": f"system:bootstrap:{holder}", **spec})

    async def ended(self, name: str) -> Expected:
        """Let the controller handle a request, and tell how it ends."""
        world = self.world
        await world.reconcile(name)
        await world.settle()
        if refused := world.condition("Denied", name) or world.condition("Failed", name):
            return Expected(Verdict.DENY, refused)
        if text(world.csr(name), "status", "certificate") or world.condition("Approved", name):
            return GRANTED
        return Expected(Verdict.WAIT, world.annotation(identifiers.ANNOTATION_REASON, name).partition(":")[0])

    async def told(self, ended: Expected) -> Expected:
        """Require that the last request was told the machine's provider ID, and not challenged."""
        name = f"r-{self.number}"
        assert self.world.annotation(identifiers.ANNOTATION_PROVIDER_ID, name) == "dev://mine"
        assert not self.world.annotation(identifiers.ANNOTATION_CHALLENGE, name)
        return ended

    async def join(self, **policy: JsonValue) -> None:
        """Have the machine join, and its Node register."""
        self.world.policy(**policy)
        assert await self.file("honest") == GRANTED
        self.world.join_node()
        await self.world.settle()

    async def join_and_serve(
        self, meanwhile: Callable[[Scene], object] = lambda _: None, attested: str = "Sign"
    ) -> Expected:
        """Join, let something happen, and ask for a serving certificate."""
        await self.join(serving={"attested": attested})
        meanwhile(self)
        return await self.serve()

    async def joins(self, provider_id: str) -> Scene:
        """Have the machine ``mine`` join."""
        assert await self.asks(provider_id) == GRANTED
        return self

    def write(self, name: str, status: JsonObject | None = None, **metadata: JsonValue) -> JsonObject:
        """Write to a request, as somebody else does."""
        found = self.world.csr(name)
        changed: JsonObject = {**found, "metadata": {**mapping(found, "metadata"), **metadata}}
        return self.world.workload_api.put(
            f"{CSRS}/{name}", changed if status is None else {**changed, "status": status}
        )

    def beside(self, name: str, data: EvidenceObject, version: int = 1) -> str:
        """Put other evidence beside the PKCS#10 of a request."""
        der = envelope.decode(base64.b64decode(text(self.world.csr(name), "spec", "request")))[0].der
        return base64.b64encode(envelope.encode(der, Evidence(ProviderName("tpm"), version, data))).decode()

    def policy(self, **spec: JsonValue) -> Scene:
        self.world.policy(**spec)
        return self

    def answer(self, **changes: Any) -> Scene:
        """Let the provider prove something else of the machine."""
        self.world.verifier.answer = replace(attested(), **changes)
        return self

    def change(self, path: str, part: str, *, watched: bool = True, **fields: JsonValue) -> Scene:
        """Change a part of an object; unless ``watched``, the controller's cache does not learn of it."""
        api = self.world.management_api
        changed: JsonObject = {**api.objects[path], part: {**mapping(api.objects[path], part), **fields}}
        if watched:
            api.put(path, changed)
        else:
            self.unseen.append((path, changed))
        return self

    def remove(self, path: str) -> Scene:
        self.world.management_api.remove(path)
        return self

    def put_machine(self, name: str = "m-2", provider_id: str = OTHER, **status: JsonValue) -> Scene:
        """Write a Machine that has its provider ID."""
        body = machine(name, provider_id, **{"addresses": [hostname(SECOND_NODE)], **status})
        self.world.management_api.put(f"{CAPI}/machines/{name}", body)
        return self

    def put_node(self, provider_id: str = PROVIDER_ID, name: str = NODE) -> Scene:
        node: JsonObject = {"metadata": {"name": name, "uid": "node-uid"}, "spec": {"providerID": provider_id}}
        self.world.workload_api.put(f"/api/v1/nodes/{name}", node)
        return self

    # Machines before Cluster API has their provider ID

    def machine(
        self,
        name: str = "mine",
        holder: str = "aaaaaa",
        *,
        kind: str = "DevMachine",
        spec: JsonObject | None = None,
        **more: Any,
    ) -> Scene:
        """Make a Machine whose provider ID is ``dev://<name>``, or as its infrastructure machine's ``spec`` says."""
        more.setdefault("addresses", [])
        put_machine(self.world, name, holder, kind=kind, **more)
        if not more.get("infra"):
            put(self.world, more.get("group", GROUP), kind, name, {"spec": spec or {"host": name}}, owner=name)
        return self

    def metal(self, host: str = "fleet/iron", **annotations: JsonValue) -> Scene:
        """Make the machine one of Metal3."""
        put_machine(self.world, "mine", "aaaaaa", infra="mine")
        noted: JsonObject = {"metal3.io/BareMetalHost": host, **annotations}
        put(self.world, GROUP, "Metal3Machine", "mine", {}, owner="mine", annotations=noted)
        return self

    def host(self, name: str = "iron", **more: Any) -> Scene:
        """Make a BareMetalHost."""
        put_host(self.world, name, **{"consumer": "mine", **more})
        return self

    def byo(self, *hosts: str, key: str = "") -> Scene:
        """Make the machine one of BYOH."""
        put_machine(self.world, "mine", "aaaaaa", kind="ByoMachine")
        put_byo(self.world, "mine", *(hosts or ("host",)), key=key)
        return self


Attack = Callable[[Scene], Awaitable[Expected]]


def verifier(kind: type[OneRound] = OneRound, **members: Any) -> Callable[[], OneRound]:
    """Return what makes a verifier with some members of its own."""

    def make() -> OneRound:
        made = kind()
        for name, value in members.items():
            setattr(made, name, value)
        return made

    return make


def _registered(_: object) -> dict[ProviderID, NodeName]:
    return {ProviderID("dev://registered"): NodeName("db.a.example")}


PROVER: Final = verifier(provable_names=_registered)
"""Proves whoever asks, and the name that the policy registers."""


class ByKey(OneRound):
    """Proves a TPM whose endorsement key the infrastructure objects give the machine."""

    reads_infrastructure = True
    tpm = SoftTpm()

    async def verify_client_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        first = replace(request, evidence=request_of(self.tpm.first()).evidence)
        known = replace(facts, challenge_keys=(SecretBytes(bytes(32)),))
        try:
            await TpmSigner().verify_client_attestation_data(first, known)
        except ChallengeRequired:
            return replace(attested(), provider_id=request.csr.provider_id)
        raise AssertionError("a first request never attests a node")


def _list_without(part: str, checks: tuple[RequestCheck[F], ...], without: str, ran: list[str]) -> Pipeline[F]:
    """Make a pipeline of the declared checks but one, which notes the name of each that runs."""

    def noting(check: RequestCheck[F]) -> Callable[[F], Awaitable[None]]:
        async def run(facts: F) -> None:
            ran.append(f"{part}: {check.name}")
            await check.run(facts)

        return run

    return Pipeline(tuple(replace(check, run=noting(check)) for check in checks if f"{part}: {check.name}" != without))


@asynccontextmanager
async def running(
    pki: ClusterPki, make: Callable[[], OneRound] = OneRound, without: str = "", *, late: bool = False
) -> AsyncGenerator[Scene]:
    """Run a controller that lacks the check ``without``.

    The cluster has the machine ``m-1``; if ``late``, none, and its infrastructure objects give provider IDs.
    """
    ran: list[str] = []
    kubelet: Pipeline[KubeletFacts] = _list_without("kubelet", kubelet_checks.CHECKS, without, ran)

    class Without(Issuer):
        _pipeline = _list_without("attested", csr_checks.CHECKS, without, ran)
        _kubelet_pipeline = kubelet

    world = World(pki, make(), issuer=Without)
    if late:
        serve_metal3(world)
        world.policy(**LATE_POLICY)
        world.management_api.remove(MACHINE)
    async with world.running():
        yield Scene(world, kubelet, ran)
