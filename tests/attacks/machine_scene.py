"""A cluster in process whose controller takes names and keys from infrastructure objects, and tokens by their owner."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from catalogue import Expected, Verdict
from csr_world import CAPI, OneRound, World, attested
from late_machines import GROUP, put, put_byo, put_host, put_machine, serve_metal3
from tpm_world import SoftTpm, request_of

from nodeattest_parsing.objects import mapping, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers import identifiers
from nodeattest_providers.errors import ChallengeRequired
from nodeattest_providers.node_interface import SecretBytes
from nodeattest_providers.tpm.verifier import TpmSigner
from nodeattest_providers.verifier_interface import AttestedNode, Facts, NodeRequest
from nodeattest_sandbox.pki import ClusterPki

POLICY: Final[dict[str, JsonValue]] = {
    "tokenBinding": "Required",
    "infrastructure": {
        "hostObjects": ["BareMetalHost"],
        "shortNodeNames": True,
        "providerIDs": [{"group": GROUP, "kind": "DevMachine", "expression": "dev://{infra.spec.host}"}],
    },
    "tpm": {},
}
Hostnames = list[JsonValue]


class Prover(OneRound):
    """Proves whoever asks, and the name that the policy registers."""

    def provable_names(self, sections: object) -> dict[identifiers.ProviderID, identifiers.NodeName]:
        del sections
        return {identifiers.ProviderID("dev://registered"): identifiers.NodeName("db.a.example")}


class ByKey(Prover):
    """Proves a TPM whose endorsement key the infrastructure objects give the machine."""

    reads_infrastructure = True
    tpm = SoftTpm()

    async def verify_client_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        first = replace(request, evidence=request_of(self.tpm.first()).evidence)
        try:
            await TpmSigner().verify_client_attestation_data(
                first, replace(facts, challenge_keys=(SecretBytes(bytes(32)),))
            )
        except ChallengeRequired:
            return attested()
        raise AssertionError("a first request never attests a node")


KEY: Final = ByKey.tpm.fingerprint


def hostname(name: str, kind: str = "Hostname") -> JsonValue:
    return {"type": kind, "address": name}


async def end_of(world: World, name: str) -> Expected:
    """Let the controller handle a request, and tell how it ends."""
    await world.reconcile(name)
    if refused := world.condition("Denied", name) or world.condition("Failed", name):
        return Expected(Verdict.DENY, refused)
    if text(world.csr(name), "status", "certificate") or world.condition("Approved", name):
        return Expected(Verdict.ACCEPT, "")
    return Expected(Verdict.WAIT, world.annotation(identifiers.ANNOTATION_REASON, name).partition(":")[0])


@dataclass(slots=True)
class Scene:
    """A cluster that takes names and keys from BareMetalHosts, and the machine ``mine`` with token ``aaaaaa``."""

    world: World
    number: int = 0

    def machine(
        self,
        name: str = "mine",
        holder: str = "aaaaaa",
        *,
        kind: str = "DevMachine",
        spec: JsonObject | None = None,
        addresses: Hostnames | None = None,
        **more: Any,
    ) -> Scene:
        """Make a Machine whose provider ID is ``dev://<name>``, or as its infrastructure machine's ``spec`` says."""
        put_machine(self.world, name, holder, kind=kind, addresses=addresses or [], **more)
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

    def change(self, part: str, **fields: JsonValue) -> Scene:
        """Change a part of the Machine."""
        path, api = f"{CAPI}/machines/mine", self.world.management_api
        api.put(path, {**api.objects[path], part: {**mapping(api.objects[path], part), **fields}})
        return self

    async def asks(self, provider_id: str, node: str = "mine", holder: str = "aaaaaa", **spec: Any) -> Expected:
        """File a request with a provider ID, and let the controller handle it."""
        await self.world.follow()
        self.number += 1
        name = f"r-{self.number}"
        who: dict[str, Any] = {"username": f"system:bootstrap:{holder}", **spec}
        self.world.file(name, node=identifiers.NodeName(node), provider_id=identifiers.ProviderID(provider_id), **who)
        return await self.ended(name)

    async def ended(self, name: str) -> Expected:
        """Tell how a request ends."""
        ended = await end_of(self.world, name)
        await self.world.settle()
        return ended

    async def joins(self, provider_id: str) -> Scene:
        """Have the machine join."""
        assert (await self.asks(provider_id)).verdict is Verdict.ACCEPT
        return self

    async def told(self, ended: Expected) -> Expected:
        """Require that the last request was told the machine's provider ID, and not challenged."""
        name = f"r-{self.number}"
        assert self.world.annotation(identifiers.ANNOTATION_PROVIDER_ID, name) == "dev://mine"
        assert not self.world.annotation(identifiers.ANNOTATION_CHALLENGE, name)
        return ended


def scene_of(pki: ClusterPki, verifier: OneRound) -> Scene:
    """Make the cluster, without a machine."""
    world = World(pki, verifier)
    serve_metal3(world)
    world.policy(**POLICY)
    world.management_api.remove(f"{CAPI}/machines/m-1")
    return Scene(world)
