"""Instances of a MachinePool without Machines: only a registered endorsement key names their node."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from csr_world import CAPI, CSRS, NODE, PROVIDER_ID, OneRound, World, machine, request
from tpm_world import PCR_VALUES, VERSION, SoftTpm, parsed

from nodeattest_kube.errors import Forbidden
from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers import envelope
from nodeattest_providers.challenge_response import LABEL_SECRET, challenge_context, derive
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import ANNOTATION_REASON, NodeName, ProviderID, ProviderName
from nodeattest_providers.node_interface import Evidence, FirstRequestRef
from nodeattest_providers.pkcs10 import build_csr
from nodeattest_providers.tpm.protocol import PROVIDER, Challenge, FirstEvidence, SecondEvidence, proof, qualifying_data
from nodeattest_providers.tpm.verifier import TpmSigner
from nodeattest_providers.verifier_interface import AttestedNode, ClusterAPISigner, Facts, NodeRequest
from nodeattest_sandbox.pki import ClusterPki

OTHER_ID = "metal://rack-1/2"
ANNOTATION = "attestation.cluster.x-k8s.io/challenge"


class Recording(TpmSigner):
    """The real verifier; remembers what it was asked."""

    async def verify_client_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        self.asked = (request, facts)
        return await super().verify_client_attestation_data(request, facts)


class BySecret(OneRound):
    """A verifier of another provider, which proves no names."""

    provider = ProviderName("challenge")


class TwoProviders(World):
    """A controller with both."""

    def verifiers(self, provider: ProviderName) -> ClusterAPISigner:
        return BySecret() if provider == BySecret.provider else super().verifiers(provider)


@dataclass
class Pool:
    """A cluster whose only machine is an instance of a pool, and that instance's TPM."""

    world: World
    verifier: Recording
    tpm: SoftTpm = field(default_factory=SoftTpm)
    node: NodeName = NODE
    provider_id: ProviderID = PROVIDER_ID

    def register(
        self, *others: JsonObject, node: str | None = NODE, first_use: bool = False, **spec: JsonValue
    ) -> None:
        """Write the policy: the instance's entry, others', and more of its spec."""
        entry: JsonObject = {"providerID": PROVIDER_ID, "sha256": self.tpm.fingerprint}
        if node is not None:
            entry["nodeName"] = node
        other: JsonObject = {"providerID": OTHER_ID, "sha256": "sha256:" + "0a" * 32, "nodeName": "worker-2"}
        attestors: list[JsonValue] = ["tpm", "challenge"]
        self.world.policy(
            authorizedAttestors=attestors,
            tpm={"endorsementKeys": [entry, other, *others], "trustOnFirstUse": first_use},
            **spec,
        )

    def has_infrastructure(self, machine_kind: str) -> None:
        """Give the pool an infrastructure object, whose provider has Machines made of a kind, or of none."""
        api, group = self.world.management_api, "farm.example.com"
        served: JsonObject = {"resources": [{"name": "farmpools", "kind": "FarmPool"}]}
        api.documents |= {f"/apis/{group}": {"versions": [{"version": "v1"}]}, f"/apis/{group}/v1": served}
        status: JsonObject = {"infrastructureMachineKind": machine_kind} if machine_kind else {}
        meta: JsonObject = {"name": "workers", "namespace": "fleet"}
        api.put(f"/apis/{group}/v1/namespaces/fleet/farmpools/workers", {"metadata": meta, "status": status})
        reference: JsonObject = {"apiGroup": group, "kind": "FarmPool", "name": "workers"}
        pool = api.objects[f"{CAPI}/machinepools/workers"]
        spec: JsonObject = {**mapping(pool, "spec"), "template": {"spec": {"infrastructureRef": reference}}}
        api.put(f"{CAPI}/machinepools/workers", {**pool, "spec": spec})

    def file(self, name: str, der: bytes, evidence: FirstEvidence | SecondEvidence) -> None:
        raw = envelope.encode(der, Evidence(PROVIDER, VERSION, evidence.to_json()))
        encoded = base64.b64encode(raw).decode()
        self.world.workload_api.put(f"{CSRS}/{name}", request(name, request=encoded))

    async def join(self) -> str:
        """Join as an agent does; returns the reason of the denial, or nothing."""
        der = build_csr(ec.generate_private_key(ec.SECP256R1()), self.node, self.provider_id)
        self.file("r-1", der, self.tpm.first())
        await self.world.reconcile("r-1")
        if reason := self.world.condition("Denied", "r-1"):
            return reason
        if not self.world.annotation(ANNOTATION, "r-1"):
            return ""  # it waits
        challenge = Challenge.parse(self.world.annotation(ANNOTATION, "r-1"))
        first, facts = self.verifier.asked
        self.file("r-2", der, self._answer(challenge, first, facts))
        await self.world.reconcile("r-2")
        return self.world.condition("Denied", "r-2")

    def _answer(self, challenge: Challenge, first: NodeRequest, facts: Facts) -> SecondEvidence:
        """Answer as the TPM would; the secret comes from the controller's own key, not from a decryption."""
        ak, ek = parsed(self.tpm.ak_public), parsed(self.tpm.ek_public)
        context = challenge_context(facts, first, ak.name, ek.spki_sha256)
        secret = derive(LABEL_SECRET, self.world.challenge_keys.keys()[0], context)
        binding = first.binding(next(iter(facts.cluster.pins))).digest
        extra = qualifying_data(challenge.nonce, first.uid, binding)
        parts = self.tpm.quote_parts(extra, challenge.pcrs, PCR_VALUES)
        return SecondEvidence(
            first=FirstRequestRef(name=first.name, uid=first.uid),
            mac=proof(secret, first.uid, first.csr.sha256, binding),
            quote=parts.marshal(),
            signature=self.tpm.sign(parts.marshal()),
            pcrs=PCR_VALUES,
        )


@pytest.fixture
async def pool(pki: ClusterPki) -> AsyncGenerator[Pool]:
    verifier = Recording()
    world = TwoProviders(pki, OneRound(), signer=verifier)
    world.management_api.remove(f"{CAPI}/machines/m-1")
    world.management_api.put(
        f"{CAPI}/machinepools/workers",
        {
            "apiVersion": "cluster.x-k8s.io/v1beta1",
            "kind": "MachinePool",
            "metadata": {"name": "workers", "namespace": "fleet"},
            "spec": {"clusterName": "blue", "providerIDList": [PROVIDER_ID, OTHER_ID]},
            "status": {"bootstrapReady": True},
        },
    )
    made = Pool(world, verifier)
    made.register()
    async with world.running():
        yield made


async def test_kubelet_of_an_instance_whose_addresses_nobody_lists_is_refused_at_once_with_a_remedy(
    pool: Pool,
) -> None:
    assert await pool.join() == ""
    pool.register(serving={"kubelet": "Approve"})
    pool.world.workload_api.put(f"/api/v1/nodes/{NODE}", {"metadata": {}, "spec": {"providerID": PROVIDER_ID}})
    pool.world.file_kubelets()
    await pool.world.reconcile("k-1")
    assert pool.world.condition("Denied", "k-1") == Reason.ADDRESS_NOT_ALLOWED
    [denied] = items(mapping(pool.world.csr("k-1"), "status"), "conditions")
    assert "docs/operate.md#serving-certificates" in text(denied, "message")


async def test_an_instance_that_boots_before_it_has_its_machine_waits_for_it(pool: Pool) -> None:
    pool.has_infrastructure("FarmMachine")
    pool.register(node=None)
    await pool.world.settle()
    assert await pool.join() == ""
    assert pool.world.annotation(ANNOTATION_REASON, "r-1").startswith("MachineNotFound: ")
    pool.world.management_api.put(f"{CAPI}/machines/m-1", machine())
    await pool.world.settle()
    assert await pool.join() == ""
    assert text(pool.world.csr("r-2"), "status", "certificate")


async def test_while_a_pools_infrastructure_cannot_be_read_its_instances_wait(pool: Pool) -> None:
    pool.has_infrastructure("")
    pool.world.management_api.fail("GET", "/farmpools/", Forbidden(403, "Forbidden", "no"))
    pool.register(node=None)
    await pool.world.settle()
    assert await pool.join() == ""
    assert pool.world.annotation(ANNOTATION_REASON, "r-1").startswith("PlatformUnavailable: ")
    await pool.world.reconcile("r-1")
    assert pool.world.condition("Denied", "r-1") == "NodeNameMismatch"
