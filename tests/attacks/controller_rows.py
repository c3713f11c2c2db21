"""Attacks on the controller's two lists: ``csr.checks`` and ``csr.kubelet_checks``.

The real issuer and reconciler run over API servers in memory; the provider's answer is set.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, TypeVar

from cryptography.hazmat.primitives.asymmetric import ec
from csr_world import (
    CAPI,
    CREATED,
    CSRS,
    NODE,
    OWN,
    PROVIDER_ID,
    SIGNERS,
    OneRound,
    TwoRounds,
    World,
    attested,
    machine,
)
from late_machines import put_machine, put_metal3, serve_metal3

from nodeattest_controller.controllers.csr import checks as csr_checks
from nodeattest_controller.controllers.csr import kubelet_checks
from nodeattest_controller.controllers.csr.issuer import Issuer
from nodeattest_controller.controllers.csr.kubelet_checks import KubeletFacts
from nodeattest_controller.model.attestation import MAX_LIVE
from nodeattest_controller.model.csr_request import parse_kubelet_request
from nodeattest_controller.model.kubeadm_config import bound_group
from nodeattest_controller.verification.checks import Pipeline, RequestCheck
from nodeattest_controller.verification.facts import RequestFacts
from nodeattest_parsing.objects import mapping, rfc3339, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers import envelope, identifiers
from nodeattest_providers.errors import ChallengeRequired, Denied, Reason
from nodeattest_providers.node_interface import Evidence, FirstRequestRef
from nodeattest_providers.node_interface import JsonObject as EvidenceObject
from nodeattest_providers.pkcs10 import build_csr
from nodeattest_providers.verifier_interface import Facts, NodeRequest
from nodeattest_sandbox.pki import ClusterPki

F = TypeVar("F", bound=RequestFacts)
Outcome = tuple[str, str]
"""Name of the check that refused, and its reason."""
GRANTED: Final = ("granted", "")
CHALLENGED: Final = ("challenged", "")
OTHER: Final = identifiers.ProviderID("metal://rack-1/2")
SECOND_NODE: Final = identifiers.NodeName("worker-2")
AS_NODE: Final[dict[str, Any]] = {"username": f"system:node:{NODE}", "groups": ["system:nodes"]}
REFUSED: Final = Denied(Reason.ENDORSEMENT_KEY_UNTRUSTED, expected="a known key", got="another", remedy="register it")
MACHINE: Final = f"{CAPI}/machines/m-1"
CLUSTER: Final = f"{CAPI}/clusters/blue"
DELETED: Final = rfc3339(CREATED)
NODE_REF: Final[JsonObject] = {"name": NODE, "uid": "node-uid"}
ADDRESS: Final[JsonObject] = {"type": "InternalIP", "address": "10.0.0.1"}
OTHER_ADDRESS: Final[JsonObject] = {"type": "InternalIP", "address": "10.0.0.9"}
HOSTNAME: Final[JsonObject] = {"type": "Hostname", "address": NODE}


@dataclass(slots=True)
class Scene:
    """One cluster whose controller may lack a check."""

    world: World
    kubelet_list: Pipeline[KubeletFacts] | None = None
    ran: list[str] = field(default_factory=list[str])
    """The checks that ran, in order."""
    unseen: list[tuple[str, JsonObject]] = field(default_factory=list[tuple[str, JsonObject]])
    """Objects as they are when the request is filed; the controller's cache has older ones."""

    async def settle(self) -> None:
        """Let the caches have what was written, and no more than that."""
        await self.world.settle()
        self.world.management_api.objects.update(self.unseen)

    async def file(self, name: str = "thief", **changes: Any) -> Outcome:
        """File a request and let the controller handle it."""
        await self.settle()
        self.world.file(name, **changes)
        return await self.ended(name)

    async def serve(self) -> Outcome:
        """Ask as the node for a certificate to serve 10.0.0.1."""
        return await self.file("serving", signerName=SIGNERS[identifiers.Purpose.SERVING], **AS_NODE)

    async def file_kubelets(self) -> Outcome:
        """Ask as kubelet for a certificate to serve 10.0.0.1."""
        await self.settle()
        self.world.file_kubelets()
        return await self.ended("k-1")

    async def ended(self, name: str) -> Outcome:
        """Let the controller handle a request."""
        world = self.world
        await world.reconcile(name)
        if text(world.csr(name), "status", "certificate"):
            return GRANTED
        reason = (
            world.condition("Denied", name)
            or world.condition("Failed", name)
            or world.annotation(identifiers.ANNOTATION_REASON, name).partition(":")[0]
        )
        if reason:
            return (self.ran[-1] if self.ran else "", reason)
        if world.annotation(identifiers.ANNOTATION_CHALLENGE, name):
            return CHALLENGED
        return GRANTED if world.condition("Approved", name) else ("left alone", "")

    async def join(self, **policy: JsonValue) -> None:
        """Have the machine join, and its Node register."""
        self.world.policy(**policy)
        assert await self.file("honest") == GRANTED
        self.world.join_node()
        await self.world.settle()

    async def join_and_serve(
        self, meanwhile: Callable[[Scene], object] = lambda _: None, attested: str = "Sign"
    ) -> Outcome:
        """Join, let something happen, and ask for a serving certificate."""
        await self.join(serving={"attested": attested})
        meanwhile(self)
        return await self.serve()

    def policy(self, **spec: JsonValue) -> Scene:
        """Write the policy."""
        self.world.policy(**spec)
        return self

    def answer(self, **changes: Any) -> Scene:
        """Let the provider prove something else of the machine."""
        self.world.verifier.answer = replace(attested(), **changes)
        return self

    def put_machine(self, name: str = "m-2", provider_id: str = OTHER, **status: JsonValue) -> Scene:
        """Write a Machine of the same cluster."""
        addresses: list[JsonValue] = [{"type": "Hostname", "address": SECOND_NODE}]
        body = machine(name, provider_id, **{"addresses": addresses, **status})
        self.world.management_api.put(f"{CAPI}/machines/{name}", body)
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

    def put_node(self, provider_id: str = PROVIDER_ID) -> Scene:
        """Register the Node of the machine's name."""
        node: JsonObject = {"metadata": {"name": NODE, "uid": "node-uid"}, "spec": {"providerID": provider_id}}
        self.world.workload_api.put(f"/api/v1/nodes/{NODE}", node)
        return self


def _list_without(part: str, checks: tuple[RequestCheck[F], ...], without: str, ran: list[str]) -> Pipeline[F]:
    """Make a pipeline of the declared checks but one, which notes the name of each that runs."""

    def noting(check: RequestCheck[F]) -> Callable[[F], Awaitable[None]]:
        async def run(facts: F) -> None:
            ran.append(f"{part}: {check.name}")
            await check.run(facts)

        return run

    return Pipeline(tuple(replace(check, run=noting(check)) for check in checks if f"{part}: {check.name}" != without))


@asynccontextmanager
async def running(pki: ClusterPki, check: str, without: str) -> AsyncGenerator[Scene]:
    """Run a controller for the attack on a check; it lacks the check ``without`` of either list."""
    ran: list[str] = []
    kubelet: Pipeline[KubeletFacts] = _list_without("kubelet", kubelet_checks.CHECKS, without, ran)

    class Without(Issuer):
        _pipeline = _list_without("attested", csr_checks.CHECKS, without, ran)
        _kubelet_pipeline = kubelet

    verifier = VERIFIERS.get(check.removeprefix("attested: "), OneRound)()
    async with World(pki, verifier, issuer=Without).running() as world:
        yield Scene(world, kubelet, ran)


# Providers


class Newer(OneRound):
    """A provider that knows newer evidence alone."""

    versions = (2,)


class Unreadable(TwoRounds):
    """A provider of two steps that finds neither a first request nor an answer in the evidence."""

    def first_request(self, request: NodeRequest) -> FirstRequestRef | None:
        del request
        raise Denied(Reason.EVIDENCE_MALFORMED, expected="phase 1 or 2", got="phase 3", remedy="file another")


class ProvesNoName(OneRound):
    """A provider that can prove no machine's name."""

    def provable_names(self, sections: object) -> dict[identifiers.ProviderID, identifiers.NodeName]:
        del sections
        return {}


class Slow(OneRound):
    """A provider during whose verification something happens."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    async def verify_serving_attestation_data(self, request: NodeRequest, facts: Facts) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride] - it answers as the other
        del request, facts
        self.meanwhile()
        return self.answer


class Elsewhere(OneRound):
    """A provider whose platform says that the machine has 10.0.0.9 alone."""

    tells_addresses = True

    async def addresses(self, facts: Facts) -> tuple[tuple[str, str], ...] | None:
        del facts
        return (("InternalIP", "10.0.0.9"),)


VERIFIERS: Final[dict[str, type[OneRound]]] = {
    "evidence version and schema": Newer,
    "round of the request": Unreadable,
    "the Machine's node name": ProvesNoName,
    "first request not answered": TwoRounds,
    "first request still pending": TwoRounds,
    "names of one machine alone, read now": Slow,
    "names and addresses of the Machine": Elsewhere,
    "one key for one challenge": TwoRounds,
}
"""By the check that is attacked, where the usual one would not do."""


# Attested requests


async def before_its_provider_id(scene: Scene, requested: str) -> Outcome:
    """Join for a Machine to which Cluster API has given no provider ID."""
    serve_metal3(scene.world)
    put_machine(scene.world, "m-1", "abcdef", addresses=[HOSTNAME])
    scene.world.policy(tokenBinding="Required")
    await scene.world.follow()
    return await scene.file(provider_id=identifiers.ProviderID(requested))


async def id_of_another_infrastructure_machine(scene: Scene) -> Outcome:
    put_metal3(scene.world, "m-2", provider_id="metal3://fleet/rack-1/m-1")
    return await before_its_provider_id(scene, "metal3://fleet/rack-1/m-1")


async def anothers_token(scene: Scene) -> Outcome:
    serve_metal3(scene.world)
    put_machine(scene.world, "m-1", "mine00", provider_id=PROVIDER_ID, addresses=[HOSTNAME])
    return await scene.policy(tokenBinding="Required").file()


def never_joined_serves(scene: Scene) -> Awaitable[Outcome]:
    scene.policy(serving={"attested": "Sign"}).put_node()
    return scene.change(MACHINE, "status", nodeRef=NODE_REF, addresses=[HOSTNAME, ADDRESS]).serve()


async def answered(scene: Scene, status: JsonObject | None = None) -> FirstRequestRef:
    """File a first request with a status, and an honest answer to it that is not handled yet."""

    def encoded(evidence: EvidenceObject) -> str:
        return base64.b64encode(envelope.encode(der, Evidence(identifiers.ProviderName("tpm"), 1, evidence))).decode()

    await scene.world.settle()
    der = build_csr(ec.generate_private_key(ec.SECP256R1()), NODE, PROVIDER_ID)
    filed = scene.world.file("first", request=encoded({"x": "y"}))
    scene.world.workload_api.put(f"{CSRS}/first", {**filed, "status": status or {}})
    first = FirstRequestRef(name="first", uid=text(filed, "metadata", "uid"))
    scene.world.verifier.answer = attested(first)
    scene.world.file("honest", request=encoded({"name": "first", "uid": first.uid}))
    return first


async def first_again(scene: Scene) -> Outcome:
    world = scene.world
    await answered(scene)
    assert await scene.ended("honest") == GRANTED
    await world.settle()
    world.verifier.answer = ChallengeRequired("a challenge")
    metadata: JsonObject = {**mapping(world.csr("first"), "metadata"), "annotations": {}}
    world.workload_api.put(f"{CSRS}/first", {**world.csr("first"), "metadata": metadata, "status": {}})
    return await scene.ended("first")


async def first_decided(scene: Scene) -> Outcome:
    denied: JsonObject = {"type": "Denied", "status": "True", "reason": "ByAnOperator"}
    await answered(scene, {"conditions": [denied]})
    return await scene.ended("honest")


async def two_keys_for_one_challenge(scene: Scene) -> Outcome:
    world = scene.world
    first = await answered(scene)
    assert await scene.ended("honest") == GRANTED
    await world.settle()
    world.now = CREATED + timedelta(minutes=11)
    world.workload_api.put(f"{CSRS}/first", {**world.csr("first"), "status": {}})
    return await scene.file(evidence={"name": "first", "uid": first.uid})


async def of_a_pool(scene: Scene) -> Outcome:
    scene.world.management_api.remove(MACHINE)
    pool: JsonObject = {
        "apiVersion": "cluster.x-k8s.io/v1beta1",
        "kind": "MachinePool",
        "metadata": {"name": "workers", "namespace": "fleet"},
        "spec": {"clusterName": "blue", "providerIDList": [PROVIDER_ID, OTHER]},
        "status": {"bootstrapReady": True},
    }
    scene.world.management_api.put(f"{CAPI}/machinepools/workers", pool)
    return await scene.answer(proven_node_name=NODE).file(node=SECOND_NODE)


async def second_joins(scene: Scene, ek: str = "sha256:ek", **request: Any) -> None:
    """Have a second machine join."""
    scene.put_machine().answer(fingerprints={"ek": ek}, provider_id=OTHER)
    assert await scene.file("honest", node=SECOND_NODE, provider_id=OTHER, **request) == GRANTED
    scene.answer()


async def cloned_tpm(scene: Scene) -> Outcome:
    await second_joins(scene)
    return await scene.file()


async def one_key_for_two(scene: Scene) -> Outcome:
    key = ec.generate_private_key(ec.SECP256R1())
    await second_joins(scene, "sha256:second", key=key)
    return await scene.file(key=key)


def unproved(scene: Scene) -> Awaitable[Outcome]:
    scene.world.verifier.answer = REFUSED
    return scene.file()


def address_taken_meanwhile(scene: Scene) -> None:
    assert isinstance(scene.world.verifier, Slow)
    scene.world.verifier.meanwhile = lambda: scene.put_machine(addresses=[ADDRESS])


async def approved_by_others(scene: Scene) -> Outcome:
    await scene.world.settle()
    approved: JsonObject = {"type": "Approved", "status": "True", "reason": "ByAnOperator"}
    scene.world.workload_api.put(f"{CSRS}/thief", {**scene.world.file("thief"), "status": {"conditions": [approved]}})
    return await scene.ended("thief")


async def joins_again(scene: Scene, minutes: int, **proven: Any) -> Outcome:
    """Join, and some minutes later once more with another key."""
    await scene.join()
    scene.world.now = CREATED + timedelta(minutes=minutes)
    return await scene.answer(**proven).file()


async def many_live(scene: Scene) -> Outcome:
    await scene.join()
    path = next(path for path in scene.world.management_api.objects if "/machineattestations/" in path)
    retired: list[JsonValue] = [
        {"spki": f"sha256:{number:064x}", "serial": f"{number:x}", "notAfter": rfc3339(CREATED + timedelta(days=7))}
        for number in range(MAX_LIVE[identifiers.Purpose.CLIENT])
    ]
    return await scene.change(path, "spec", retiredKeys=retired).file(**AS_NODE)


def two_policies(scene: Scene) -> Awaitable[Outcome]:
    body: JsonObject = {"metadata": {"name": "q", "namespace": "fleet"}, "spec": {"authorizedAttestors": ["tpm"]}}
    scene.world.management_api.put(f"{OWN}/nodeattestationpolicies/q", body)
    return scene.file()


ATTESTED: Final[dict[str, Callable[[Scene], Awaitable[Outcome]]]] = {
    "a token of no other machine": lambda s: s.file(groups=["system:bootstrappers", bound_group("fleet/blue", OTHER)]),
    "an active cluster": lambda s: s.change(CLUSTER, "spec", paused=True).file(),
    "one policy": two_policies,
    "attestor authorized": lambda s: s.policy(authorizedAttestors=["challenge"]).file(),
    "evidence version and schema": lambda s: s.file(),
    "attested serving request": lambda s: s.join_and_serve(attested="Refuse"),
    "round of the request": lambda s: s.file(),
    "one Machine, alive and ready": lambda s: s.put_machine(provider_id=PROVIDER_ID).file(),
    "the Machine's provider ID": lambda s: before_its_provider_id(s, "metal3://fleet/rack-1/chosen"),
    "the Machine as it is now": lambda s: s.change(
        MACHINE, "metadata", watched=False, deletionTimestamp=DELETED
    ).file(),
    "not bound otherwise": lambda s: s.change(MACHINE, "status", nodeRef=NODE_REF).file(),
    "a joined machine": never_joined_serves,
    "names of one machine alone": lambda s: s.join_and_serve(lambda s: s.put_machine(addresses=[ADDRESS])),
    "names and addresses on record": lambda s: s.join_and_serve(
        lambda s: s.change(MACHINE, "status", addresses=[HOSTNAME, OTHER_ADDRESS])
    ),
    "the Machine's node name": lambda s: s.file(node=identifiers.NodeName("control-plane-1")),
    "first request not answered": first_again,
    "a token that the machine's bootstrap configuration names": anothers_token,
    "one provider ID for one Machine": id_of_another_infrastructure_machine,
    "first request still pending": first_decided,
    "the provider's verification": unproved,
    "the Machine as proven": lambda s: (
        s.put_machine().answer(proven_machine_name=identifiers.MachineName("m-2")).file()
    ),
    "the node name as proven": of_a_pool,
    "hardware of no other machine": cloned_tpm,
    "no other node of this name": lambda s: s.put_node("metal://rack-9/9").file(),
    "no takeover of a node": lambda s: s.put_node().file(),
    "adoption of the machine's own node": lambda s: s.file(**AS_NODE),
    "names of one machine alone, read now": lambda s: s.join_and_serve(address_taken_meanwhile),
    "names and addresses of the Machine": lambda s: s.join_and_serve(),
    "approval by this controller": approved_by_others,
    "a key that was never certified": one_key_for_two,
    "one key for one challenge": two_keys_for_one_challenge,
    "time between two keys": lambda s: joins_again(s, minutes=1),
    "number of live certificates": many_live,
    "fingerprints as pinned": lambda s: joins_again(s, minutes=11, fingerprints={"ek": "sha256:another"}),
}


# Kubelet's own serving request: root on a node asks with the node's certificate, and nothing is attested


async def left_to_others(scene: Scene) -> Outcome:
    """The reconciler leaves such requests alone, so the list is run here as ``nodeattest explain`` runs it."""
    world = scene.policy(serving={"kubelet": "Ignore"}).world
    await world.settle()
    request = parse_kubelet_request(world.file_kubelets())
    try:
        assert scene.kubelet_list is not None
        await scene.kubelet_list.run(KubeletFacts(world.facts_of(world.workload), request))
    except Denied as denied:
        return (scene.ran[-1], denied.reason)
    return GRANTED


def unconfirmed(scene: Scene) -> Awaitable[Outcome]:
    scene.put_machine("m-1", "", addresses=[HOSTNAME, ADDRESS])
    times: JsonObject = {"notBefore": rfc3339(CREATED), "notAfter": rfc3339(CREATED + timedelta(days=1))}
    issued: JsonObject = {**times, "issuedAt": rfc3339(CREATED), "spki": "sha256:0", "serial": "1", "certificate": ""}
    owner: JsonObject = {"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Machine", "name": "m-1", "uid": "uid-m-1"}
    spec: JsonObject = {"clusterName": "blue", "providerID": PROVIDER_ID, "nodeName": NODE, "provider": "tpm"}
    body: JsonObject = {
        "metadata": {"name": "late", "namespace": "fleet", "ownerReferences": [owner]},
        "spec": {**spec, "issued": [issued]},
    }
    scene.world.management_api.put(f"{OWN}/machineattestations/late", body)
    return scene.file_kubelets()


def no_node(scene: Scene) -> Awaitable[Outcome]:
    scene.world.workload_api.remove(f"/api/v1/nodes/{NODE}")
    return scene.file_kubelets()


async def endpoint_no_more(scene: Scene) -> Outcome:
    scene.change(CLUSTER, "spec", controlPlaneEndpoint={"host": "10.0.0.1", "port": 6443})
    scene.change(MACHINE, "metadata", labels={"cluster.x-k8s.io/control-plane": ""})
    return await scene.change(MACHINE, "metadata", watched=False, labels={}).file_kubelets()


def renamed_now(scene: Scene) -> Awaitable[Outcome]:
    renamed: JsonObject = {"type": "Hostname", "address": "worker-9"}
    return scene.change(MACHINE, "status", watched=False, addresses=[renamed, ADDRESS]).file_kubelets()


KUBELET: Final[dict[str, Callable[[Scene], Awaitable[Outcome]]]] = {
    "an active cluster": lambda s: s.change(CLUSTER, "spec", paused=True).file_kubelets(),
    "policy approves": left_to_others,
    "one Machine, alive and ready": lambda s: s.put_machine(addresses=[HOSTNAME]).file_kubelets(),
    "names of one machine alone": lambda s: s.put_machine(addresses=[ADDRESS]).file_kubelets(),
    "names and addresses on record": lambda s: s.change(
        MACHINE, "status", addresses=[HOSTNAME, OTHER_ADDRESS]
    ).file_kubelets(),
    "the Machine as it is now": lambda s: s.change(
        MACHINE, "metadata", watched=False, deletionTimestamp=DELETED
    ).file_kubelets(),
    "the Machine's node name": renamed_now,
    "a confirmed provider ID": unconfirmed,
    "a registered Node": no_node,
    "no other node of this name": lambda s: s.put_node("metal://rack-9/9").file_kubelets(),
    "names of one machine alone, read now": endpoint_no_more,
    "names and addresses of the Machine": lambda s: s.change(
        MACHINE, "status", watched=False, addresses=[HOSTNAME]
    ).file_kubelets(),
}
"""The machine has joined, its Node is registered, and the policy approves."""


async def outcome(pki: ClusterPki, check: str, without: str) -> Outcome:
    """Carry out the attack on a check, ``list: name``."""
    part, _, name = check.partition(": ")
    async with running(pki, check, without) as scene:
        if part == "attested":
            return await ATTESTED[name](scene)
        scene.world.join_node()
        scene.world.policy(serving={"kubelet": "Approve"})
        return await KUBELET[name](scene)
