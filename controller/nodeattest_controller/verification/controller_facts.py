"""The facts of the controller: caches of the management cluster, and live reads.

An infrastructure or host object counts only if it names the Machine, or what names it, in turn. A host object is read
only in a namespace that the policy allows. What cannot be read or does not count yet is waited for: it never opens a
weaker source of trust.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Protocol

from nodeattest_controller.model.infrastructure_kinds import HostReference, InfrastructureKind, Objects, known_kind
from nodeattest_controller.model.kubeadm_config import (
    KeptConfig,
    challenge_secret_name,
    creates_secrets,
    has_own_config,
    is_kubeadm_config,
    no_own_config,
    owner_uid,
    read_secret,
    secret_value,
)
from nodeattest_controller.model.machine_view import ContractReference, MachineView, check_cluster_active
from nodeattest_controller.model.policy import InfrastructurePolicy, Policy
from nodeattest_controller.model.resolver import Infrastructure, expected_provider_id, platform_endorsement_keys
from nodeattest_controller.runtime.challenge_keys import ChallengeKeys
from nodeattest_controller.runtime.indexes import ClusterKey, Inventory
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.references import KubeadmConfigs, no_platform
from nodeattest_controller.runtime.workload_client import WorkloadClient
from nodeattest_controller.verification.facts import CSRFacts, FactSource, RequestFacts
from nodeattest_controller.verification.verifiers import VerificationRunner
from nodeattest_kube.store import in_batches
from nodeattest_parsing.objects import strings, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Unavailable
from nodeattest_providers.identifiers import ANNOTATION_TPM_ENDORSEMENT_KEY, NodeName, ProviderName, Purpose
from nodeattest_providers.node_interface import FirstRequestRef, SecretBytes
from nodeattest_providers.verifier_interface import Addresses, AttestedNode, ClusterAPISigner, Facts, LedgerFacts

_MAX_READ: Final = 8
"""KubeadmConfigs of one token that are read again: from two on the token is refused."""


@dataclass(frozen=True, kw_only=True)
class ControllerFacts(FactSource):
    """The facts of one cluster."""

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
        return self.workload.key

    @property
    def inventory(self) -> Inventory:
        return self.management.inventory

    def now(self) -> datetime:
        return self.clock()

    def cluster(self) -> JsonObject:
        """Return the cluster's object; raises Unavailable while it is inactive, or not all of it is known."""
        found = check_cluster_active(self.key, self.management.cluster(self.key))
        self.management.check_attestations(self.key)
        return found

    def policy(self) -> Policy:
        return self.management.policy_of(self.cluster())

    def verifier(self, provider: ProviderName) -> ClusterAPISigner:
        return self.verifiers(provider)

    async def machine_now(self, machine: MachineView) -> MachineView | None:
        return await self.management.live_member(machine)

    async def machines_of_token(self, token_id: str, *, is_needed: bool) -> list[MachineView]:
        """Find them by the watch of KubeadmConfigs, of the Machines that own them, and by the records.

        Several are read again: nobody is refused by what was true a moment ago.
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
        return await read_infrastructure(machine, self.policy().infrastructure, self.management.platforms)

    async def hosts_with_name(self, machine: MachineView, node_name: NodeName) -> list[str]:
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
        found = await self.management.platforms.others_with(machine, machine.provider_id)
        policy, infrastructure = self.policy().infrastructure, await self.infrastructure(machine)
        if machine.infra is None or infrastructure is None:
            return found
        is_derived = not text(infrastructure.infra, "spec", "providerID")
        async for other in in_batches(self.inventory.machines_of(self.key)):
            if other.infra is None or other.provider_id or other.uid == machine.uid:
                continue
            if not _may_derive_same(other.infra, machine.infra if is_derived else None, policy):
                continue
            with suppress(Unavailable):  # an object that is not there gives no provider ID
                expected = expected_provider_id(other, await self.infrastructure(other))
                if expected is not None and expected.matches(machine.provider_id):
                    found.append(f"{other.kind} {other.name}")
        return found

    async def makes_machines(self, pool: MachineView) -> bool:
        return await self.management.platforms.makes_machines(pool)

    async def named_tokens(self, configured: MachineView, token_id: str) -> KeptConfig:
        return await self.kubeadm_configs.tokens_of(configured, token_id)

    async def first_request(self, ref: FirstRequestRef) -> JsonObject | None:
        """Return the first request from the watch that brought the second one; read it if it is not open there.

        TPM protocol §3 step 10: one watch shows writes in their order, so what shows the second request shows the first
        one as it was then. The content of a request cannot change under its UID.
        """
        found = self.workload.pending_request(ref.name, ref.uid)
        return found if found is not None else await self.workload.read_request(ref.name)

    async def node(self, name: NodeName, *, by_node: bool) -> JsonObject | None:
        return await self.workload.read_node(name)

    async def verify(self, facts: CSRFacts) -> AttestedNode:
        request, verifier, ref, first = facts.request, await facts.verifier(), await facts.ref(), await facts.first()
        machine = await facts.machine()
        ledger = (await facts.attestation()).facts(request, ref.uid if ref else "")
        given = replace(
            await self._facts_for(facts, verifier, ledger, await self._secret(facts, machine, verifier)),
            first_request=first,
            challenge_keys=self.challenge_keys.keys() if verifier.two_step else (),
        )
        serving = facts.purpose is Purpose.SERVING
        verify = verifier.verify_serving_attestation_data if serving else verifier.verify_client_attestation_data
        # Not by machine alone: requests that name another's machine again and again would delay that machine.
        turn: Hashable = (self.key, machine.provider_id, request.username)
        return await self.runner.run(turn, lambda: verify(request, given))

    async def platform_addresses(self, facts: RequestFacts, provider: ProviderName) -> Addresses | None:
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
        secret: SecretBytes | Denied | None = None,
    ) -> Facts:
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

        Who writes host objects must not end a node's renewals: if one cannot be used, the key of the join counts.
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
    ) -> SecretBytes | Denied | None:
        """Read the attestation secret from the one place that its policy names; raises Denied or Unavailable."""
        if not verifier.reads_secret:
            return None
        if not creates_secrets(await facts.policy()):
            return secret_value(await self.management.secret(machine.namespace, f"{machine.name}-attestation"))
        if machine.bootstrap is None or not has_own_config(machine):
            return no_own_config(machine)
        secret = await self.management.secret(machine.namespace, challenge_secret_name(machine.bootstrap.name))
        owner = owner_uid(secret or {})
        config = await self.kubeadm_configs.find(
            machine.bootstrap, machine.namespace, lambda kept: (kept.uid, kept.machine_uid) == (owner, machine.uid)
        )
        return read_secret(secret, config, machine.uid)


# Infrastructure machines and host objects


class ObjectReader(Protocol):
    """Where the objects of infrastructure providers are; raises Unavailable."""

    async def get(self, reference: ContractReference, namespace: str) -> JsonObject: ...

    async def consumers(self, host: HostReference, consumer: str) -> list[JsonObject]:
        """Return the host objects that name an infrastructure machine (``HostReference.names``)."""
        ...

    async def holders_of_key(self, reference: ContractReference, fingerprint: str) -> list[str]:
        """Return the namespaces of the objects of a kind that have an endorsement key, one each."""
        ...


def _kind_of(reference: ContractReference, policy: InfrastructurePolicy) -> InfrastructureKind:
    """Return what is known of the kind of an infrastructure machine, by the shipped table and by the policy."""
    known, own = known_kind(reference), policy.provider_ids.get((reference.group, reference.kind))
    return known if own is None else replace(known, provider_ids=(own,))


def _may_derive_same(
    reference: ContractReference, derived: ContractReference | None, policy: InfrastructurePolicy
) -> bool:
    """Return whether the expressions of a kind can give a provider ID that another infrastructure machine has.

    ``derived``: that machine, if an expression gives its own.
    """
    expressions = _kind_of(reference, policy).provider_ids
    is_same_kind = derived is not None and (derived.group, derived.kind) == (reference.group, reference.kind)
    return bool(expressions) and not (is_same_kind and all(one.has_name_of("infra") for one in expressions))


async def read_infrastructure(
    machine: MachineView, policy: InfrastructurePolicy, objects: ObjectReader
) -> Infrastructure | None:
    """Return a Machine's infrastructure machine, with its host object where that is needed; raises Unavailable.

    None where the Machine names no infrastructure machine.
    """
    if machine.infra is None:
        return None
    kind, infra = _kind_of(machine.infra, policy), await objects.get(machine.infra, machine.namespace)
    what = f"{machine.infra.kind} {machine.infra.name}"
    counts = kind.host is not None and kind.host.kind in policy.host_objects
    is_believed = counts or not machine.is_confirmed or not machine.provider_id
    if is_believed and machine.uid not in strings(infra, "metadata", "owners"):
        raise no_platform(f"{what} does not have Machine {machine.name} as owner")
    about: JsonObject = {
        "metadata": {"name": machine.name, "namespace": machine.namespace},
        "spec": {"clusterName": machine.cluster_name},
    }
    found = {"machine": about, "infra": infra}
    if kind.host is None or not kind.host.expects(found):  # such as a RemoteMachine without a pool
        return Infrastructure(kind=kind, objects=found)
    if not counts and not _needs_host(kind, found, machine):
        key = kind.host.key(found, machine.namespace)
        named: JsonObject = {"metadata": {"namespace": key.namespace, "name": key.name} if key is not None else {}}
        return Infrastructure(kind=kind, objects={**found, "host": named})
    host = await _read_host(kind.host, found, machine, policy, objects)
    if host is None and counts:
        raise no_platform(f"{what} has no {kind.host.kind} in a namespace that counts yet")
    if host is None:
        return Infrastructure(kind=kind, objects=found)
    shared = await _shared_keys(kind.host, host, machine, policy, objects) if counts else frozenset[str]()
    return Infrastructure(kind=kind, objects={**found, "host": host}, host_counts=counts, keys_of_several_hosts=shared)


def _needs_host(kind: InfrastructureKind, objects: Objects, machine: MachineView) -> bool:
    if machine.provider_id or text(objects["infra"], "spec", "providerID"):
        return False
    for expression in kind.provider_ids:
        if expression.reads_host or kind.host is None or kind.host.name is None:
            return not expression.identifier(objects)
    return False


async def _read_host(
    reference: HostReference,
    found: Objects,
    machine: MachineView,
    policy: InfrastructurePolicy,
    objects: ObjectReader,
) -> JsonObject | None:
    """Read the one host object that names the infrastructure machine, in a namespace that counts; None: none yet."""
    counting = {machine.namespace, *policy.host_namespaces}
    if reference.name is None:
        hosts = await objects.consumers(reference, reference.expects(found))
        hosts = [host for host in hosts if text(host, "metadata", "namespace") in counting]
    else:
        key = reference.key(found, machine.namespace)
        if key is not None and key.namespace not in counting:
            raise no_platform(
                f"{key.kind} {key.name} is in namespace {key.namespace}, which is neither the Machine's nor one of "
                "the policy's spec.infrastructure.hostNamespaces"
            )
        wanted = ContractReference(reference.group, reference.kind, key.name) if key is not None else None
        hosts = [await objects.get(wanted, key.namespace)] if wanted is not None and key is not None else []
    if len(hosts) > 1:
        raise no_platform(f"{len(hosts)} {reference.kind} objects name one infrastructure machine")
    if hosts and not reference.is_mutual({**found, "host": hosts[0]}):
        raise no_platform(f"the {reference.kind} does not name the infrastructure machine that names it")
    return hosts[0] if hosts else None


async def _shared_keys(
    reference: HostReference,
    host: JsonObject,
    machine: MachineView,
    policy: InfrastructurePolicy,
    objects: ObjectReader,
) -> frozenset[str]:
    """Return the endorsement key of a host object, where another that may count has it, too."""
    fingerprint = text(host, "metadata", "annotations", ANNOTATION_TPM_ENDORSEMENT_KEY)
    if not fingerprint:
        return frozenset()
    holders = await objects.holders_of_key(ContractReference(reference.group, reference.kind, ""), fingerprint)
    counting = {machine.namespace, *policy.host_namespaces}
    return frozenset({fingerprint} if sum(namespace in counting for namespace in holders) > 1 else ())
