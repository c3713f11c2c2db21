"""The facts of a stored request: documents where the controller has caches and live reads.

A document that was not given, and what only a platform or the controller's secrets can tell, raises ``NotChecked``,
which refuses nothing. The time is the request's creation. Without a MachineAttestation the machine counts as one that
has never joined, and a bootstrap token asks for a node that does not exist yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from cryptography import x509

from nodeattest_cli.fleet import POLICY, cluster_policy, index, of_kind
from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.certificate_authority import bundle_pins
from nodeattest_controller.model.csr_request import CSRSummary, RequestState, summarize
from nodeattest_controller.model.infrastructure_kinds import HostReference
from nodeattest_controller.model.kubeadm_config import (
    KUBEADM_CONFIG,
    KeptConfig,
    read_config,
)
from nodeattest_controller.model.machine_view import (
    CLUSTER_KINDS,
    MACHINE_KINDS,
    ContractReference,
    MachineView,
    check_cluster_active,
    instances_have_machines,
    machine_views,
)
from nodeattest_controller.model.node_names import claimed_names
from nodeattest_controller.model.policy import Policy, parse_attestation_policy
from nodeattest_controller.model.resolver import Infrastructure, platform_endorsement_keys
from nodeattest_controller.runtime.indexes import ClusterKey, Inventory, cluster_key
from nodeattest_controller.runtime.references import slim_object
from nodeattest_controller.verification.controller_facts import read_infrastructure
from nodeattest_controller.verification.facts import CSRFacts, FactSource, RequestFacts
from nodeattest_parsing.objects import text
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.certificate_chain import X509_ERRORS
from nodeattest_providers.errors import Denied
from nodeattest_providers.identifiers import (
    ANNOTATION_TPM_ENDORSEMENT_KEY,
    ClusterPin,
    NodeName,
    ProviderName,
    Purpose,
)
from nodeattest_providers.node_interface import FirstRequestRef, SecretBytes
from nodeattest_providers.platform import Platform, make_signer
from nodeattest_providers.verifier_interface import (
    Addresses,
    AttestedNode,
    ClusterAPISigner,
    ClusterFacts,
    Facts,
    LedgerFacts,
    NodeRequest,
)

_NO_KEYS: Final = (SecretBytes(bytes(32)),)
"""Stands in for the challenge keys; nothing is compared with what is derived from it."""
_REGION: Final = "region's certificates"
"""The check of ``aws`` that needs the trust bundle."""


class NotChecked(Exception):
    """A fact needs something that nobody has here; the text says what."""


def _not_given(what: str) -> NotChecked:
    return NotChecked(f"not given: {what}")


class DocumentFacts(FactSource):
    """Facts from documents."""

    def __init__(
        self,
        documents: Sequence[JsonObject],
        created: datetime,
        *,
        provider_id: str = "",
        node_name: NodeName | None = None,
    ) -> None:
        """Take the cluster of the machine with a provider ID or node name; else the only one that was given."""
        self.documents, self.created = documents, created
        self._by_name = {(text(one, "kind"), text(one, "metadata", "name")): one for one in reversed(documents)}
        views = [view for one in of_kind(documents, *MACHINE_KINDS) for view in machine_views(one)]
        claimed = [one for one in views if provider_id == one.provider_id != "" or node_name in claimed_names(one)]
        machine = min(claimed, key=lambda one: one.is_pool_instance, default=None)
        clusters = of_kind(documents, *CLUSTER_KINDS)
        if machine is not None:
            clusters = [one for one in clusters if text(one, "metadata", "name") == machine.cluster_name]
        self._cluster = clusters[0] if len(clusters) == 1 else None
        self._has_machines = bool(views)
        self._key: ClusterKey | None = None
        if machine is not None:
            self._key = cluster_key(machine.namespace, machine.cluster_name)
        elif self._cluster is not None:
            self._key = cluster_key(*(text(self._cluster, "metadata", name) for name in ("namespace", "name")))
        self._inventory = index(documents, self._key)
        self._policy: Policy | None = None

    @property
    def key(self) -> ClusterKey:
        """Return which cluster it is."""
        if self._key is None:
            raise _not_given("the Cluster or the Machine")
        return self._key

    @property
    def inventory(self) -> Inventory:
        """Return the machines and attestations that were given, indexed as the controller does."""
        return self._inventory

    def now(self) -> datetime:
        """Return the request's creation."""
        return self.created

    def cluster(self) -> JsonObject:
        """Return the Cluster."""
        if self._cluster is None:
            raise _not_given("the Cluster")
        return check_cluster_active(self.key, self._cluster)

    def policy(self) -> Policy:
        """Return the policy that selects the Cluster; without a Cluster, the only one that was given."""
        policies = of_kind(self.documents, POLICY)
        if self._policy is None and policies and self._cluster is not None:
            self._policy = cluster_policy(self._cluster, policies, self.inventory, self.now())
        elif self._policy is None and len(policies) == 1:
            self._policy = parse_attestation_policy(policies[0])
        if self._policy is None:
            raise _not_given("the NodeAttestationPolicy")
        return self._policy

    def verifier(self, provider: ProviderName) -> ClusterAPISigner:
        """Make a verifier, and those of a composite's parts, without a way to the platform."""
        return make_signer(provider, Platform(settings={}, may_call=False, find_signer=self.verifier))

    def machines(self, provider_id: str) -> list[MachineView]:
        """Return the machines with this provider ID."""
        found = self.inventory.members(self._key, provider_id) if self._key is not None else []
        if not found and (self._key is None or all(one.provider_id for one in self.inventory.machines_of(self._key))):
            raise _not_given(f"a Machine with provider ID {provider_id}")
        return found

    def machines_of_node(self, node_name: NodeName) -> list[MachineView]:
        """Return the machines of a node's name; none of those that were given may have it."""
        if not self._has_machines:
            raise _not_given(f"a Machine of node {node_name}")
        return self.inventory.members_of_node(self._key, node_name) if self._key is not None else []

    def recorded(self, provider_id: str) -> Attestation | None:
        """Return the MachineAttestation of a provider ID, if it was given."""
        return self.inventory.attestation(self._key, provider_id) if self._key is not None else None

    def recorded_attestation(self, machine: MachineView) -> Attestation:
        """Return the MachineAttestation of a machine that must have joined."""
        found = self.recorded(machine.provider_id)
        if found is None:
            raise _not_given(f"the MachineAttestation of {machine.name}")
        return found

    async def machine_now(self, machine: MachineView) -> MachineView | None:
        """Return the machine as it was given."""
        return machine

    async def machines_of_token(self, token_id: str, *, is_needed: bool) -> list[MachineView]:
        """Find the Machines whose KubeadmConfigs, as they were given, name a token."""
        found = self.inventory.records_of_token(self.key, token_id)
        for document in of_kind(self.documents, KUBEADM_CONFIG[1]):
            config = read_config(document)
            if token_id in config.ids:
                owners = self.inventory.machines_of_config(self.key, config.name)
                found += [machine for machine in owners if machine.uid == config.machine_uid]
        if is_needed and not found:
            raise _not_given("the KubeadmConfig that names the token")
        return found

    async def infrastructure(self, machine: MachineView) -> Infrastructure | None:
        """Read infrastructure machine and host object as they were given."""
        return await read_infrastructure(machine, self.policy().infrastructure, self)

    async def hosts_with_name(self, machine: MachineView, node_name: NodeName) -> list[str]:
        """Report what cannot be checked: not all host objects are given."""
        del machine
        if self.policy().infrastructure.host_objects:
            raise _not_given(f"the other host objects, which may give the name {node_name}")
        return []

    async def others_with_provider_id(self, machine: MachineView) -> list[str]:
        """Report what cannot be checked: not all infrastructure machines are given."""
        raise _not_given(f"the other infrastructure machines, which may have provider ID {machine.provider_id}")

    async def get(self, reference: ContractReference, namespace: str) -> JsonObject:
        """Return an infrastructure provider's object as it was given."""
        found = self._find(reference.kind, reference.name)
        if found is None or text(found, "metadata", "namespace") not in {namespace, ""}:
            raise _not_given(f"{reference.kind} {reference.name}")
        return slim_object(found)

    async def consumers(self, host: HostReference, consumer: str) -> list[JsonObject]:
        """Return the given host objects that name an infrastructure machine."""
        found = [slim_object(document) for document in of_kind(self.documents, host.kind)]
        if not found:
            raise _not_given(f"the {host.kind} of the machine")
        return [each for each in found if host.names({"host": each}) == consumer]

    async def holders_of_key(self, reference: ContractReference, fingerprint: str) -> list[str]:
        """Return the namespaces of the given objects that have an endorsement key."""
        return [
            text(document, "metadata", "namespace")
            for document in of_kind(self.documents, reference.kind)
            if text(document, "metadata", "annotations", ANNOTATION_TPM_ENDORSEMENT_KEY) == fingerprint
        ]

    async def makes_machines(self, pool: MachineView) -> bool:
        """Read the pool's infrastructure object as it was given."""
        reference = pool.pool_infra
        return reference is not None and instances_have_machines(self._require(reference.kind, reference.name))

    async def named_tokens(self, configured: MachineView, token_id: str) -> KeptConfig:
        """Read the KubeadmConfig as it was given.

        A bootstrap provider that rotates a pool's token writes a later one into it, so an old request of a pool is
        best replayed with the KubeadmConfig of its day.
        """
        del token_id
        name = configured.bootstrap.name if configured.bootstrap else ""
        return read_config(self._require("KubeadmConfig", name)).tokens()

    async def first_request(self, ref: FirstRequestRef) -> JsonObject | None:
        """Return a first request."""
        return self._find("CertificateSigningRequest", ref.name)

    def summary(self, first: JsonObject | None, request: NodeRequest, attestation: Attestation) -> CSRSummary | None:
        """Tell where the first request stood, if that can be known: it is closed once its answer is certified."""
        if first is None:
            raise _not_given("the first request")
        stored = summarize(first)
        known = attestation.entry_for(request.csr.spki_sha256, request.purpose)
        if stored is not None and stored.state is not RequestState.PENDING and known is None:
            raise _not_given("how the first request stood when its answer came")
        return stored

    async def node(self, name: NodeName, *, by_node: bool) -> JsonObject | None:
        """Return the Node; a token asks for one that does not exist yet, a node for itself."""
        return self._require("Node", name) if by_node else self._find("Node", name)

    async def platform_addresses(self, facts: RequestFacts, provider: ProviderName) -> Addresses | None:
        """Ask nobody."""
        del facts
        raise NotChecked(f"needs the platform: the platform of {provider} says where the machine can be reached")

    async def verify(self, facts: CSRFacts) -> AttestedNode:
        """Run the provider's verification if every document is there and it needs no secret of the controller."""
        verifier = await facts.verifier()
        if verifier.reads_secret or (verifier.two_step and await facts.ref() is not None):
            raise NotChecked("needs the controller's secrets: the request's own condition has the refusal, if any")
        authority = f"{text(await facts.cluster(), 'metadata', 'name')}-ca"
        pins = _pins(self._require("Secret", authority))
        given = replace(await self.provider_facts(facts), challenge_keys=_NO_KEYS)
        given = replace(given, cluster=replace(given.cluster, pins=pins))
        serving = facts.purpose is Purpose.SERVING
        verify = verifier.verify_serving_attestation_data if serving else verifier.verify_client_attestation_data
        try:
            return await verify(facts.request, given)
        except Denied as denied:
            if denied.checks[-1:] and denied.checks[-1].name == _REGION:
                raise NotChecked("needs the controller's platforms.aws.trustBundle") from None
            raise

    async def provider_facts(self, facts: CSRFacts) -> Facts:
        """Return what a provider gets for a verification, but for what is secret."""
        policy, verifier, machine = await facts.policy(), await facts.verifier(), await facts.machine()
        infrastructure = await self.infrastructure(machine) if verifier.reads_infrastructure else None
        recorded = self.recorded(machine.provider_id)
        has_joined = recorded is not None and recorded.has_joined
        keys = platform_endorsement_keys(machine, infrastructure, has_joined=has_joined)
        return Facts(
            cluster=ClusterFacts(uid=text(await facts.cluster(), "metadata", "uid"), pins=frozenset()),
            machine=machine.facts(endorsement_keys=keys, secret=None),
            settings=policy.settings(verifier.provider),
            sections=policy.sections,
            ledger=_ledger_facts(facts.request, recorded),
            first_request=None,
            verified_at=self.created,
        )

    def _find(self, kind: str, name: str) -> JsonObject | None:
        return self._by_name.get((kind, name))

    def _require(self, kind: str, name: str) -> JsonObject:
        found = self._find(kind, name)
        if found is None:
            raise _not_given(f"{kind} {name}")
        return found


def _ledger_facts(request: NodeRequest, recorded: Attestation | None) -> LedgerFacts:
    """Leave the clock out for a request that was certified before the newest: the record of its day had another."""
    if recorded is None:
        return LedgerFacts()
    found = recorded.facts(request, "")
    is_newest = bool(recorded.issued) and recorded.issued[-1].spki == request.csr.spki_sha256
    return found if is_newest or not found.answered else replace(found, clock=None)


def _pins(secret: JsonObject) -> frozenset[ClusterPin]:
    try:
        return bundle_pins(x509.load_pem_x509_certificates(decode_base64(text(secret, "data", "tls.crt"))))
    except X509_ERRORS:
        return frozenset()
