"""The facts that checks ask for, each gathered once for a request, when the first check needs it.

``FactSource`` is where facts come from: ``ControllerFacts`` (caches and live reads), or stored documents in
``nodeattest explain``. ``RequestFacts`` is what checks see: it holds a fact, or the exception that came instead of it.
Leaves to others: every rule.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Concatenate, Final, ParamSpec, TypeVar, cast

from nodeattest_controller.model.attestation import Attestation, new_attestation
from nodeattest_controller.model.certificate_authority import SubjectAltNames
from nodeattest_controller.model.challenge_secret import (
    challenge_secret_name,
    creates_secrets,
    has_own_config,
    no_own_config,
    operators_secret_name,
    owner_uid,
    read_secret,
    secret_value,
)
from nodeattest_controller.model.csr_request import CSRSummary, summarize
from nodeattest_controller.model.identity_rules import NameContext
from nodeattest_controller.model.infrastructure_kinds import known_kind
from nodeattest_controller.model.machine_record import check_cluster_active
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.policy import Policy
from nodeattest_controller.model.resolver import Infrastructure, expected_provider_id, platform_endorsement_keys
from nodeattest_controller.model.token_binding import NamedTokens, is_kubeadm_config
from nodeattest_controller.runtime.challenge_keys import ChallengeKeys
from nodeattest_controller.runtime.indexes import ClusterKey, Inventory
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.references import KubeadmConfigs
from nodeattest_controller.runtime.workload_client import WorkloadClient
from nodeattest_controller.verification.checks import Round
from nodeattest_controller.verification.infrastructure import may_derive_same, read_infrastructure
from nodeattest_controller.verification.runner import VerificationRunner
from nodeattest_kube.batches import in_batches
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.config_fields import COMPOSITE
from nodeattest_providers.errors import Denied, Unavailable
from nodeattest_providers.identifiers import PROVIDER_ID_OID, NodeName, ProviderID, ProviderName, Purpose
from nodeattest_providers.node_interface import FirstRequestRef, JsonValue, SecretBytes
from nodeattest_providers.platform import provable_names
from nodeattest_providers.verifier_interface import (
    Addresses,
    AttestedNode,
    ClusterAPISigner,
    Facts,
    LedgerFacts,
    NodeRequest,
    UnusableSecret,
)

_MAX_READ: Final = 8
"""KubeadmConfigs of one token that are read again: from two on the token is refused."""
S = TypeVar("S", bound="RequestFacts")
T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a provider's verification is made of."""

    request: NodeRequest
    verifier: ClusterAPISigner
    ref: FirstRequestRef | None
    first: NodeRequest | None
    """The first request, read and parsed."""


class FactSource(ABC):
    """Where the facts of one cluster come from; what cannot be had raises.

    What is looked up in the inventory is here; other sources than the controller may lack documents, and say so.
    """

    provider_id_oid = PROVIDER_ID_OID
    """The extension that carries a provider ID in a certificate request."""

    @property
    @abstractmethod
    def key(self) -> ClusterKey:
        """Which cluster it is."""

    @property
    @abstractmethod
    def inventory(self) -> Inventory:
        """Machines and attestations by what a request can claim."""

    @abstractmethod
    def now(self) -> datetime:
        """Return the time of the evaluation."""

    @abstractmethod
    def cluster(self) -> JsonObject:
        """Return the cluster's object; raises Unavailable while it is not to be acted for."""

    @abstractmethod
    def policy(self) -> Policy:
        """Return the cluster's one policy; raises Denied or Unavailable."""

    @abstractmethod
    def verifier(self, provider: ProviderName) -> ClusterAPISigner:
        """Return a provider's verifier; raises Denied for an unknown one."""

    def machines(self, provider_id: str) -> list[MachineView]:
        """Return the machines of the cluster with this provider ID."""
        return self.inventory.members(self.key, provider_id)

    def machines_of_node(self, node_name: NodeName) -> list[MachineView]:
        """Return the machines of the cluster that claim a node's name or are bound to it."""
        return self.inventory.members_of_node(self.key, node_name)

    def attestation(self, machine: MachineView) -> Attestation:
        """Return a machine's attestation; an empty one where it never joined."""
        return self.inventory.attestation(self.key, machine.provider_id) or new_attestation(machine)

    def recorded_attestation(self, machine: MachineView) -> Attestation:
        """Return the same, for a rule that only a recorded one can fulfil."""
        return self.attestation(machine)

    def summary(self, first: JsonObject | None, request: NodeRequest, attestation: Attestation) -> CSRSummary | None:
        """Return where a first request stood when its answer came; None where there is none."""
        del request, attestation
        return summarize(first) if first is not None else None

    @abstractmethod
    async def machine_now(self, machine: MachineView) -> MachineView | None:
        """Read a machine live; None when it is gone or another by now."""

    @abstractmethod
    async def machines_of_token(self, token_id: str, *, is_needed: bool) -> list[MachineView]:
        """Return the Machines and MachineRecords of the cluster whose own token this is; raises Unavailable.

        ``is_needed``: whether nothing else names the machine.
        """

    @abstractmethod
    async def infrastructure(self, machine: MachineView) -> Infrastructure | None:
        """Return a Machine's infrastructure machine and host object; None where it names none. Raises Unavailable."""

    @abstractmethod
    async def hosts_with_name(self, machine: MachineView, node_name: NodeName) -> list[str]:
        """Name the host objects that give a node this name, where the policy takes names from them.

        Raises Unavailable.
        """

    @abstractmethod
    async def others_with_provider_id(self, machine: MachineView) -> list[str]:
        """Name the infrastructure machines of the cluster that have a Machine's provider ID, but for its own."""

    @abstractmethod
    async def makes_machines(self, pool: MachineView) -> bool:
        """Return whether Cluster API makes a Machine for each instance of a MachinePool; raises Unavailable."""

    @abstractmethod
    async def named_tokens(self, configured: MachineView, token_id: str) -> NamedTokens:
        """Return which tokens a machine's KubeadmConfig names; raises Unavailable."""

    @abstractmethod
    async def first_request(self, ref: FirstRequestRef) -> JsonObject | None:
        """Return the first request that a second one names, no older than the second one; None where there is none."""

    @abstractmethod
    async def node(self, name: NodeName, *, by_node: bool) -> JsonObject | None:
        """Read a Node live; ``by_node``: whether the node itself asks."""

    @abstractmethod
    async def verify(self, facts: RequestFacts, verification: Verification) -> AttestedNode:
        """Run the provider's verification; raises Denied, Unavailable or ChallengeRequired."""

    @abstractmethod
    async def platform_addresses(self, facts: RequestFacts, provider: ProviderName) -> Addresses | None:
        """Ask a provider's platform for the machine's addresses; None where it cannot tell."""


def fact(gather: Callable[Concatenate[S, P], Awaitable[T]]) -> Callable[Concatenate[S, P], Awaitable[T]]:
    """Gather a fact once: every check gets the same value, or the same exception object."""

    @functools.wraps(gather)
    async def once(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        if gather.__name__ not in self.gathered:
            try:
                self.gathered[gather.__name__] = (await gather(self, *args, **kwargs), None)
            except Exception as error:  # kept for the checks that ask next, and raised
                self.gathered[gather.__name__] = (None, error)
                raise
        value, error = self.gathered[gather.__name__]
        if error is not None:
            raise error
        return cast("T", value)

    return once


class RequestFacts(ABC):
    """The facts about one request, of whichever kind."""

    def __init__(
        self, source: FactSource, *, purpose: Purpose, node_name: NodeName, names: SubjectAltNames, created: datetime
    ) -> None:
        """``names`` are those of a serving request; ``created`` is the API server's time."""
        self.source = source
        self.purpose = purpose
        self.node_name = node_name
        self.names = names
        self.created = created
        self.gathered: dict[str, tuple[object, Exception | None]] = {}

    @abstractmethod
    def round(self) -> Awaitable[Round]:
        """Return which round it is."""

    @abstractmethod
    def cached_machine(self) -> Awaitable[MachineView]:
        """Return the request's machine as the cache has it."""

    @abstractmethod
    async def machine_for_memory_checks(self) -> MachineView:
        """Return the machine as it is known before the verification."""

    @abstractmethod
    def require_one(self, machines: list[MachineView]) -> MachineView:
        """Return the one machine that is ready, by the rule of this kind of request; raises Denied or Unavailable."""

    @abstractmethod
    async def address_provider(self) -> ProviderName | None:
        """Name the provider whose platform may tell the machine's addresses."""

    @abstractmethod
    def node(self) -> Awaitable[JsonObject | None]:
        """Return the Node of the requested name, read live."""

    @fact
    async def cluster(self) -> JsonObject:
        """Return the cluster's object."""
        return self.source.cluster()

    @fact
    async def policy(self) -> Policy:
        """Return the cluster's policy."""
        return self.source.policy()

    @fact
    async def machine(self) -> MachineView:
        """Return the request's machine: read live for a request that could be granted."""
        cached = await self.cached_machine()
        if await self.round() is Round.FIRST:
            return cached
        live = await self.source.machine_now(cached)
        return live if live is not None else self.require_one([])

    @fact
    async def attestation(self) -> Attestation:
        """Return what is recorded of the machine."""
        return self.source.attestation(await self.machine())

    @fact
    async def name_context(self) -> NameContext:
        """Return what else has the node's name, or claims it."""
        inventory, key = self.source.inventory, self.source.key
        short = (await self.policy()).infrastructure.short_node_names
        claimants = inventory.members_by_node_name(key, self.node_name)
        return NameContext(
            claimants=claimants + (inventory.members_by_short_name(key, self.node_name) if short else []),
            holders=inventory.attestations_by_node_name(key, self.node_name),
            is_alive=lambda other: bool(inventory.members(key, other.provider_id)),
            short_names=short,
        )

    async def recorded_name(self) -> NodeName | None:
        """Return the name under which the machine joined; None where it has not."""
        attestation = await self.attestation()
        return attestation.node_name if attestation.has_joined and attestation.node_name else None

    async def platform_tells_addresses(self) -> bool:
        """Return whether a platform, not the Machine's status, says where the machine can be reached."""
        provider = await self.address_provider()
        return provider is not None and self.source.verifier(provider).tells_addresses

    @fact
    async def platform_addresses(self) -> Addresses | None:
        """Return what the platform says now; None where there is none, or where it cannot tell."""
        provider = await self.address_provider()
        if provider is None or not await self.platform_tells_addresses():
            return None
        return await self.source.platform_addresses(self, provider)


@dataclass(frozen=True, kw_only=True)
class ControllerFacts(FactSource):
    """The controller's facts: caches of the management cluster, and live reads."""

    management: ManagementCache
    workload: WorkloadClient
    verifiers: Callable[[ProviderName], ClusterAPISigner]
    runner: VerificationRunner
    kubeadm_configs: KubeadmConfigs
    challenge_keys: ChallengeKeys
    provider_id_oid: str
    clock: Callable[[], datetime]

    @property
    def key(self) -> ClusterKey:
        """Which cluster it is."""
        return self.workload.key

    @property
    def inventory(self) -> Inventory:
        """The cache's indexes."""
        return self.management.inventory

    def now(self) -> datetime:
        """Return the controller's time."""
        return self.clock()

    def cluster(self) -> JsonObject:
        """Return the cluster's object; raises Unavailable while it is inactive, or not all of it is known."""
        found = check_cluster_active(self.key, self.management.cluster(self.key))
        self.management.check_attestations(self.key)
        return found

    def policy(self) -> Policy:
        """Return the cluster's one policy; raises Denied or Unavailable."""
        return self.management.policy_of(self.cluster())

    def verifier(self, provider: ProviderName) -> ClusterAPISigner:
        """Return a provider's verifier; raises Denied for an unknown one."""
        return self.verifiers(provider)

    async def machine_now(self, machine: MachineView) -> MachineView | None:
        """Read a machine live."""
        return await self.management.live_member(machine)

    async def machines_of_token(self, token_id: str, *, is_needed: bool) -> list[MachineView]:
        """Find them by the watch of KubeadmConfigs, and by the records.

        A configuration counts for the Machine that owns it. Of several, two are read again: nobody is refused by what
        was true a moment ago.
        """
        if is_needed:
            await self.kubeadm_configs.follow()
        machines = self._machines_naming(token_id)
        if len(machines) > 1:
            machines = [one for one in machines[:_MAX_READ] if await self.kubeadm_configs.names_now(one, token_id)]
        return machines + self.inventory.records_of_token(self.key, token_id)

    def machine_of_token(self, token_id: str) -> MachineView | None:
        """Return the one Machine whose KubeadmConfig names a token, as the watch shows it."""
        machines = self._machines_naming(token_id)
        return machines[0] if len(machines) == 1 else None

    def _machines_naming(self, token_id: str) -> list[MachineView]:
        return [
            machine
            for config in self.kubeadm_configs.naming(self.key.partition("/")[0], token_id)
            for machine in self.inventory.machines_of_config(self.key, config.name)
            if is_kubeadm_config(machine) and machine.uid == config.machine_uid
        ]

    async def infrastructure(self, machine: MachineView) -> Infrastructure | None:
        """Read them from the caches of their kinds."""
        return await read_infrastructure(machine, self.policy().infrastructure, self.management.platforms)

    async def hosts_with_name(self, machine: MachineView, node_name: NodeName) -> list[str]:
        """Ask the caches of the host objects."""
        policy = self.policy().infrastructure
        if not policy.host_objects:
            return []
        known = {known_kind(one.infra).host for one in self.inventory.machines_of(self.key)}
        hosts = [host for host in known if host is not None and host.kind in policy.host_objects]
        found = await self.management.platforms.hosts_with_name(hosts, policy, machine, node_name)
        infrastructure = await self.infrastructure(machine)
        own = infrastructure.host_key if infrastructure is not None else None
        return [f"{key.kind} {key.name}" for key in found if key != own]

    async def others_with_provider_id(self, machine: MachineView) -> list[str]:
        """Ask the caches of the infrastructure machines."""
        found = await self.management.platforms.others_with(machine, machine.provider_id)
        policy, infrastructure = self.policy().infrastructure, await self.infrastructure(machine)
        if machine.infra is None or infrastructure is None:
            return found
        is_derived = not text(infrastructure.infra, "spec", "providerID")
        async for other in in_batches(self.inventory.machines_of(self.key)):
            if other.infra is None or other.provider_id or other.uid == machine.uid:
                continue
            if not may_derive_same(other.infra, machine.infra if is_derived else None, policy):
                continue
            with suppress(Unavailable):  # an object that is not there gives no provider ID
                expected = expected_provider_id(other, await self.infrastructure(other))
                if expected is not None and expected.matches(machine.provider_id):
                    found.append(f"{other.kind} {other.name}")
        return found

    async def makes_machines(self, pool: MachineView) -> bool:
        """Read the pool's infrastructure object."""
        return await self.management.platforms.makes_machines(pool)

    async def named_tokens(self, configured: MachineView, token_id: str) -> NamedTokens:
        """Tell which tokens a machine's KubeadmConfig names."""
        return await self.kubeadm_configs.tokens_of(configured, token_id)

    async def first_request(self, ref: FirstRequestRef) -> JsonObject | None:
        """Return the first request from the watch that brought the second one; read it where it is not open there.

        TPM protocol §3 step 10: one watch shows what was written in the order in which it was written, so what shows
        the second request shows the first one as it was then. What a first request says cannot change under its UID.
        """
        found = self.workload.pending_request(ref.name, ref.uid)
        return found if found is not None else await self.workload.read_request(ref.name)

    async def node(self, name: NodeName, *, by_node: bool) -> JsonObject | None:
        """Read a Node live."""
        del by_node
        return await self.workload.read_node(name)

    async def verify(self, facts: RequestFacts, verification: Verification) -> AttestedNode:
        """Run the provider's verification, for as long as one may take."""
        request, verifier, machine = verification.request, verification.verifier, await facts.machine()
        ledger = (await facts.attestation()).facts(request, verification.ref.uid if verification.ref else "")
        given = replace(
            await self._facts_for(facts, verifier, ledger, await self._secret(facts, machine, verifier)),
            first_request=verification.first,
            challenge_keys=self.challenge_keys.keys() if verifier.two_step else (),
        )
        serving = facts.purpose is Purpose.SERVING
        verify = verifier.verify_serving_attestation_data if serving else verifier.verify_client_attestation_data
        # Not by machine alone: requests that name another's machine again and again would delay that machine.
        turn: Hashable = (self.key, machine.provider_id, request.username)
        return await self.runner.run(turn, lambda: verify(request, given))

    async def platform_addresses(self, facts: RequestFacts, provider: ProviderName) -> Addresses | None:
        """Ask the platform, for as long as a verification may take."""
        verifier, machine = self.verifier(provider), await facts.machine()
        recorded = self.inventory.attestation(self.key, machine.provider_id)
        pins = recorded.pins_for(provider) if recorded is not None else {}
        ledger = LedgerFacts(fingerprints=pins, provider=recorded.provider) if recorded is not None else LedgerFacts()
        given = await self._facts_for(facts, verifier, ledger)
        turn: Hashable = ("addresses", self.key, machine.provider_id)
        return await self.runner.run(turn, lambda: verifier.addresses(given))

    async def _facts_for(
        self,
        facts: RequestFacts,
        verifier: ClusterAPISigner,
        ledger: LedgerFacts,
        secret: SecretBytes | UnusableSecret | None = None,
    ) -> Facts:
        """Make what a provider gets of every request."""
        policy, machine = await facts.policy(), await facts.machine()
        keys = await self._endorsement_keys(machine) if verifier.reads_infrastructure else machine.endorsement_keys
        return Facts(
            cluster=self.management.facts_of(await facts.cluster()),
            machine=machine.facts(endorsement_keys=keys, secret=secret),
            settings=policy.settings(verifier.provider),
            sections=policy.sections,
            ledger=ledger,
            verified_at=self.now(),
        )

    async def _endorsement_keys(self, machine: MachineView) -> Mapping[str, str]:
        """Return the fingerprints that the platform's objects give; raises Denied or Unavailable.

        Who writes host objects must not end a node's renewals: where the host object cannot be used, the key with which
        the machine joined counts in its place.
        """
        recorded = self.inventory.attestation(self.key, machine.provider_id)
        pinned = recorded.endorsement_key if recorded is not None and recorded.has_joined else ""
        try:
            infrastructure = await self.infrastructure(machine)
        except Unavailable:
            if not pinned:
                raise
            without_hosts = replace(self.policy().infrastructure, host_objects=frozenset())
            infrastructure = await read_infrastructure(machine, without_hosts, self.management.platforms)
            found = platform_endorsement_keys(machine, infrastructure, has_joined=True)
            return found or {"MachineAttestation spec.fingerprints": pinned}
        return platform_endorsement_keys(machine, infrastructure, has_joined=bool(pinned))

    async def _secret(
        self, facts: RequestFacts, machine: MachineView, verifier: ClusterAPISigner
    ) -> SecretBytes | UnusableSecret | None:
        """Read the machine's attestation secret from the one place that its policy says; raises Denied, Unavailable.

        Where the controller creates it, it is found by the Machine's bootstrap configuration.
        """
        if not verifier.reads_secret:
            return None
        if not creates_secrets(await facts.policy()):
            return secret_value(await self.management.secret(machine.namespace, operators_secret_name(machine.name)))
        if machine.bootstrap is None or not has_own_config(machine):
            return no_own_config(machine)
        secret = await self.management.secret(machine.namespace, challenge_secret_name(machine.bootstrap.name))
        owner = owner_uid(secret or {})
        config = await self.kubeadm_configs.find(
            machine.bootstrap, machine.namespace, lambda kept: (kept.uid, kept.machine_uid) == (owner, machine.uid)
        )
        return read_secret(secret, config, machine.uid)


def registered_names(
    sections: Mapping[ProviderName, Mapping[str, JsonValue]], find: Callable[[ProviderName], ClusterAPISigner]
) -> Iterator[tuple[ProviderID, NodeName]]:
    """Yield each machine to which a section gives a name; ``find`` raises Denied for a provider that is not here.

    ``composite`` has no names of its own: those of its parts are in the parts' sections.
    """
    for provider in sections.keys() - {COMPOSITE}:
        try:
            verifier = find(provider)
        except Denied:
            continue
        yield from (provable_names(verifier, sections) or {}).items()
