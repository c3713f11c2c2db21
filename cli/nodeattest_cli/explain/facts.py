"""The facts of a stored request: documents where the controller has caches and live reads.

What was not given, and what only a platform can tell, raises ``NotChecked``, which refuses nothing. What is absent is
distinguished from what is empty. The time is the request's creation, so that an old request gives the answer of its
day. Without a MachineAttestation the machine counts as one that has never joined, and a bootstrap token asks for a node
that is not there yet. Machines and attestations go into the controller's own indexes, so that what a name or key
belongs to is looked up here as it is there. A Secret's content goes where it is needed and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Final

from cryptography import x509

from nodeattest_cli.fleet import ATTESTATION, POLICY, index, named, of_kind
from nodeattest_controller.model.attestation import Attestation, new_attestation, parse_attestation
from nodeattest_controller.model.certificate_authority import bundle_pins
from nodeattest_controller.model.csr_request import CSRSummary, RequestState, summarize
from nodeattest_controller.model.infrastructure_kinds import HostReference
from nodeattest_controller.model.kubeadm_config import (
    KUBEADM_CONFIG,
    NamedTokens,
    challenge_secret_name,
    creates_secrets,
    has_own_config,
    kept_config,
    named_tokens,
    no_own_config,
    operators_secret_name,
    read_secret,
    secret_value,
    slim_config,
)
from nodeattest_controller.model.machine_record import CLUSTER_KINDS, MACHINE_KINDS, check_cluster_active, machine_views
from nodeattest_controller.model.machine_view import ContractReference, MachineView, instances_have_machines
from nodeattest_controller.model.node_names import claimed_names
from nodeattest_controller.model.policy import Policy, parse_attestation_policy, policy_for
from nodeattest_controller.model.resolver import Infrastructure, platform_endorsement_keys
from nodeattest_controller.runtime.indexes import ClusterKey, Inventory, cluster_key
from nodeattest_controller.runtime.references import slim_object
from nodeattest_controller.verification.facts import CSRFacts, FactSource, RequestFacts
from nodeattest_controller.verification.infrastructure import read_infrastructure
from nodeattest_parsing.objects import flag, mapping, text
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Unavailable
from nodeattest_providers.identifiers import (
    ANNOTATION_TPM_ENDORSEMENT_KEY,
    ClusterPin,
    NodeName,
    ProviderName,
    Purpose,
)
from nodeattest_providers.node_interface import FirstRequestRef, JsonValue, SecretBytes
from nodeattest_providers.platform import Platform, make_signer
from nodeattest_providers.verifier_interface import (
    Addresses,
    AttestedNode,
    ClusterAPISigner,
    ClusterFacts,
    Facts,
    LedgerFacts,
    MachineFacts,
    NodeRequest,
    UnusableSecret,
)

Platforms = Mapping[str, Mapping[str, JsonValue]]
NO_PLATFORMS: Final[Platforms] = MappingProxyType({})
_NO_KEYS: Final = (SecretBytes(bytes(32)),)
"""Stands in for challenge keys that were not given; what depends on them is reported as not checked."""


class NotChecked(Exception):
    """A fact needs a document that was not given, or a platform's API, which nobody asks here; the text says which."""


def _not_given(what: str) -> NotChecked:
    return NotChecked(f"not given: {what}")


@dataclass(frozen=True, kw_only=True)
class DocumentFacts(FactSource):
    """Facts from documents."""

    inputs: Inputs
    created: datetime
    platforms: Platforms

    @property
    def key(self) -> ClusterKey:
        """Which cluster it is."""
        if self.inputs.key is None:
            raise _not_given("the Cluster or the Machine")
        return self.inputs.key

    @property
    def inventory(self) -> Inventory:
        """What was given, indexed."""
        return self.inputs.inventory

    def now(self) -> datetime:
        """Return the request's creation."""
        return self.created

    def cluster(self) -> JsonObject:
        """Return the Cluster."""
        if self.inputs.cluster is None:
            raise _not_given("the Cluster")
        return check_cluster_active(self.key, self.inputs.cluster)

    def policy(self) -> Policy:
        """Return the policy that selects the Cluster; without a Cluster, the only one that was given."""
        policies, cluster = self.inputs.policies, self.inputs.cluster
        if policies and cluster is not None:
            under, key, now = self.inventory.machines_under, self.inputs.key, self.now()
            return policy_for(cluster, policies, recorded=lambda name: under(key, name, now) if key is not None else 0)
        if len(policies) == 1:
            return parse_attestation_policy(policies[0])
        raise _not_given("the NodeAttestationPolicy")

    def verifier(self, provider: ProviderName) -> ClusterAPISigner:
        """Make a verifier, and those of a composite's parts, with their trust bundles and no way to the platform."""
        settings = self.platforms.get(provider, {})
        return make_signer(provider, Platform(settings=settings, may_call=False, find_signer=self.verifier))

    def machines(self, provider_id: str) -> list[MachineView]:
        """Return the machines with this provider ID."""
        key = self.inputs.key
        found = self.inventory.members(key, provider_id) if key is not None else []
        if not found and (key is None or all(one.provider_id for one in self.inventory.machines_of(key))):
            raise _not_given(f"a Machine with provider ID {provider_id}")
        return found

    def machines_of_node(self, node_name: NodeName) -> list[MachineView]:
        """Return the machines of a node's name; none of those that were given may have it."""
        if not self.inputs.has_machines:
            raise _not_given(f"a Machine of node {node_name}")
        return self.inventory.members_of_node(self.inputs.key, node_name) if self.inputs.key is not None else []

    def attestation(self, machine: MachineView) -> Attestation:
        """Return the MachineAttestation; without one the machine has never joined."""
        return self.inputs.attestation or new_attestation(machine)

    def recorded_attestation(self, machine: MachineView) -> Attestation:
        """Return the MachineAttestation of a machine that must have joined."""
        if self.inputs.attestation is None:
            raise _not_given(f"the MachineAttestation of {machine.name}")
        return self.inputs.attestation

    async def machine_now(self, machine: MachineView) -> MachineView | None:
        """Return the machine as it was given."""
        return machine

    async def machines_of_token(self, token_id: str, *, is_needed: bool) -> list[MachineView]:
        """Find the Machines whose KubeadmConfigs, as they were given, name a token."""
        found = self.inventory.records_of_token(self.key, token_id)
        for document in self.inputs.documents:
            config = kept_config(slim_config(document)) if text(document, "kind") == KUBEADM_CONFIG[1] else None
            if config is not None and config.ids is not None and token_id in config.ids:
                named = self.inventory.machines_of_config(self.key, config.name)
                found += [machine for machine in named if machine.uid == config.machine_uid]
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
        found = self.inputs.named(reference.kind, reference.name)
        if found is None or text(found, "metadata", "namespace") not in {namespace, ""}:
            raise _not_given(f"{reference.kind} {reference.name}")
        return slim_object(found)

    async def consumers(self, host: HostReference, consumer: str) -> list[JsonObject]:
        """Return the given host objects that name an infrastructure machine."""
        found = [slim_object(document) for document in self.inputs.documents if text(document, "kind") == host.kind]
        if not found:
            raise _not_given(f"the {host.kind} of the machine")
        return [each for each in found if host.names({"host": each}) == consumer]

    async def holders_of_key(self, reference: ContractReference, fingerprint: str) -> list[str]:
        """Return the namespaces of the given objects that have an endorsement key."""
        return [
            text(document, "metadata", "namespace")
            for document in self.inputs.documents
            if text(document, "kind") == reference.kind
            and text(document, "metadata", "annotations", ANNOTATION_TPM_ENDORSEMENT_KEY) == fingerprint
        ]

    async def makes_machines(self, pool: MachineView) -> bool:
        """Read the pool's infrastructure object as it was given."""
        reference = pool.pool_infra
        if reference is None:
            return False
        infra = self.inputs.named(reference.kind, reference.name)
        if infra is None:
            raise _not_given(f"{reference.kind} {reference.name}")
        return instances_have_machines(infra)

    async def named_tokens(self, configured: MachineView, token_id: str) -> NamedTokens:
        """Read the KubeadmConfig as it was given.

        A bootstrap provider that rotates a pool's token writes a later one into it, so an old request of a pool is
        best replayed with the KubeadmConfig of its day.
        """
        del token_id
        reference = configured.bootstrap
        config = self.inputs.named(reference.kind, reference.name) if reference is not None else None
        if config is None:
            raise _not_given(f"KubeadmConfig {reference.name if reference is not None else ''}")
        return named_tokens(config)

    async def first_request(self, ref: FirstRequestRef) -> JsonObject | None:
        """Return a first request."""
        return self.inputs.named("CertificateSigningRequest", ref.name)

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
        """Return the Node; a token asks for one that is not there yet, a node for itself."""
        found = self.inputs.named("Node", name)
        if found is None and by_node:
            raise _not_given(f"Node {name}")
        return found

    async def platform_addresses(self, facts: RequestFacts, provider: ProviderName) -> Addresses | None:
        """Ask nobody."""
        del facts
        raise NotChecked(f"needs the platform: the platform of {provider} says where the machine can be reached")

    async def verify(self, facts: CSRFacts) -> AttestedNode:
        """Run the provider's verification on what was given; raises Denied, Unavailable or ChallengeRequired."""
        request, verifier = facts.request, await facts.verifier()
        given = await self.provider_facts(facts, await facts.first())
        if facts.purpose is Purpose.SERVING:
            return await verifier.verify_serving_attestation_data(request, given)
        return await verifier.verify_client_attestation_data(request, given)

    async def provider_facts(self, facts: CSRFacts, first: NodeRequest | None) -> Facts:
        """Return what a provider gets for a verification."""
        policy, provider = self._sound_policy(), facts.request.evidence.provider
        cluster = self.inputs.cluster or JsonObject()
        return Facts(
            cluster=ClusterFacts(
                uid=text(cluster, "metadata", "uid"),
                pins=self.inputs.pins,
            ),
            machine=await self._machine_facts(facts),
            settings=policy.settings(provider) if policy is not None else {},
            sections=policy.sections if policy is not None else {},
            ledger=self._ledger_facts(facts.request, first),
            first_request=first,
            challenge_keys=self.inputs.challenge_keys or _NO_KEYS,
            verified_at=self.created,
        )

    async def _machine_facts(self, facts: CSRFacts) -> MachineFacts:
        """Make what providers see of the machine; what was not given is empty, and a check of its own says so."""
        try:
            machine = await facts.machine()
        except (NotChecked, Denied, Unavailable):
            return MachineFacts(uid="", provider_id=facts.request.csr.provider_id)
        try:
            infrastructure = await self.infrastructure(machine)
        except (NotChecked, Denied, Unavailable):
            infrastructure = None
        recorded = self.inputs.attestation
        keys = platform_endorsement_keys(
            machine, infrastructure, has_joined=recorded is not None and recorded.has_joined
        )
        return machine.facts(endorsement_keys=keys, secret=self.inputs.attestation_secret(self._sound_policy()))

    def _sound_policy(self) -> Policy | None:
        """Return the policy; what is wrong with it is a check of its own."""
        try:
            return self.policy()
        except (NotChecked, Denied, Unavailable):
            return None

    def _ledger_facts(self, request: NodeRequest, first: NodeRequest | None) -> LedgerFacts:
        """Leave the clock out for a request that was certified before the newest: the record of its day had another."""
        attestation = self.inputs.attestation
        if attestation is None:
            return LedgerFacts()
        found = attestation.facts(request, first.uid if first else "")
        spki = request.csr.spki_sha256
        is_newest = bool(attestation.issued) and attestation.issued[-1].spki == spki
        return found if is_newest or not found.answered else replace(found, clock=None)


_CHALLENGE_KEYS = "node-attestation-challenge-keys"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What was given for one request; None and empty mean that it was not."""

    key: ClusterKey | None = None
    """Which cluster it is; None where neither a Cluster nor a machine says."""
    cluster: JsonObject | None = None
    policies: tuple[JsonObject, ...] = ()
    inventory: Inventory = field(default_factory=Inventory)
    machine: MachineView | None = None
    """The first with the request's provider ID, or node name."""
    has_machines: bool = False
    """Whether any machine was given."""
    infra: JsonObject | None = None
    attestation: Attestation | None = None
    pins: frozenset[ClusterPin] = frozenset()
    challenge_keys: tuple[SecretBytes, ...] = ()
    documents: tuple[JsonObject, ...] = ()

    @property
    def secret_documents(self) -> dict[str, bool]:
        """Name the documents that hold the machine's attestation secret, each with whether it was given."""
        machine = self.machine
        if not any(flag(policy, "spec", "challenge", "createSecrets") for policy in self.policies):
            name = operators_secret_name(machine.name) if machine else ""
            return {"Secret <machine>-attestation": self.named("Secret", name) is not None}
        config = machine.bootstrap.name if machine and machine.bootstrap else ""
        return {
            f"Secret {challenge_secret_name('<KubeadmConfig>')}": self.named("Secret", challenge_secret_name(config))
            is not None,
            "KubeadmConfig": self.named("KubeadmConfig", config) is not None,
        }

    def attestation_secret(self, policy: Policy | None) -> SecretBytes | UnusableSecret | None:
        """Return the machine's attestation secret as the controller reads it; None where it was not given."""
        machine = self.machine
        if machine is None:
            return None
        if policy is None or not creates_secrets(policy):
            return secret_value(self.named("Secret", operators_secret_name(machine.name)))
        if machine.bootstrap is None or not has_own_config(machine):
            return no_own_config(machine)
        secret = self.named("Secret", challenge_secret_name(machine.bootstrap.name))
        config = self.named("KubeadmConfig", machine.bootstrap.name)
        if secret is None or config is None:
            return None
        return read_secret(secret, kept_config(slim_config(config)), machine.uid)

    def named(self, kind: str, name: str) -> JsonObject | None:
        """Return a given object by kind and name."""
        return named(of_kind(self.documents, kind), name)


def pick(documents: Sequence[JsonObject], *, provider_id: str = "", node_name: NodeName | None = None) -> Inputs:
    """Pick what belongs to a request, which names its machine by a provider ID, or by the node that asks."""
    everyone = [view for one in of_kind(documents, *MACHINE_KINDS) for view in machine_views(one)]
    claimed = [
        one for one in everyone if (provider_id and one.provider_id == provider_id) or node_name in claimed_names(one)
    ]
    machine = min(claimed, key=lambda one: one.is_pool_instance, default=None)
    cluster = _one(of_kind(documents, *CLUSTER_KINDS), machine.cluster_name if machine else None)
    key = _key_of(machine, cluster)
    cluster_name = text(cluster or {}, "metadata", "name")
    inventory = index(documents, key)
    infra = machine.infra if machine else None
    wanted = machine.provider_id if machine else provider_id
    recorded = (parse_attestation(one) for one in of_kind(documents, ATTESTATION))
    return Inputs(
        key=key,
        cluster=cluster,
        policies=tuple(of_kind(documents, POLICY)),
        inventory=inventory,
        machine=machine,
        has_machines=bool(everyone),
        infra=_one(of_kind(documents, infra.kind), infra.name) if infra else None,
        attestation=next((one for one in recorded if one.provider_id == wanted), None),
        pins=_pins(_one(of_kind(documents, "Secret"), f"{cluster_name}-ca")) if cluster else frozenset(),
        challenge_keys=_values(_one(of_kind(documents, "Secret"), _CHALLENGE_KEYS), "current", "previous"),
        documents=tuple(documents),
    )


def _key_of(machine: MachineView | None, cluster: JsonObject | None) -> ClusterKey | None:
    if machine is not None:
        return cluster_key(machine.namespace, machine.cluster_name)
    if cluster is not None:
        return cluster_key(text(cluster, "metadata", "namespace"), text(cluster, "metadata", "name"))
    return None


def _one(found: Sequence[JsonObject], name: str | None) -> JsonObject | None:
    """Return the object of a name; without a name, the only one."""
    if name is None:
        return found[0] if len(found) == 1 else None
    return next((one for one in found if text(one, "metadata", "name") == name), None)


def _values(secret: JsonObject | None, *names: str) -> tuple[SecretBytes, ...]:
    data = mapping(secret or {}, "data")
    try:
        return tuple(SecretBytes(decode_base64(text(data, name))) for name in names if name in data)
    except ValueError:
        return ()


def _pins(secret: JsonObject | None) -> frozenset[ClusterPin]:
    found: frozenset[ClusterPin] = frozenset()
    for value in _values(secret, "tls.crt"):
        try:
            found = bundle_pins(x509.load_pem_x509_certificates(value.reveal()))
        except ValueError:
            continue
    return found
