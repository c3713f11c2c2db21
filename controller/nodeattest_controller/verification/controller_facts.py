"""The facts of the controller: caches of the management cluster, and live reads."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from nodeattest_controller.model.infrastructure_kinds import known_kind
from nodeattest_controller.model.kubeadm_config import (
    NamedTokens,
    challenge_secret_name,
    creates_secrets,
    has_own_config,
    is_kubeadm_config,
    no_own_config,
    operators_secret_name,
    owner_uid,
    read_secret,
    secret_value,
)
from nodeattest_controller.model.machine_record import check_cluster_active
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.policy import Policy
from nodeattest_controller.model.resolver import Infrastructure, expected_provider_id, platform_endorsement_keys
from nodeattest_controller.runtime.challenge_keys import ChallengeKeys
from nodeattest_controller.runtime.indexes import ClusterKey, Inventory
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.references import KubeadmConfigs
from nodeattest_controller.runtime.workload_client import WorkloadClient
from nodeattest_controller.verification.facts import CSRFacts, FactSource, RequestFacts
from nodeattest_controller.verification.infrastructure import may_derive_same, read_infrastructure
from nodeattest_controller.verification.verifiers import VerificationRunner
from nodeattest_kube.store import in_batches
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Unavailable
from nodeattest_providers.identifiers import NodeName, ProviderName, Purpose
from nodeattest_providers.node_interface import FirstRequestRef, SecretBytes
from nodeattest_providers.verifier_interface import (
    Addresses,
    AttestedNode,
    ClusterAPISigner,
    Facts,
    LedgerFacts,
)

_MAX_READ: Final = 8
"""KubeadmConfigs of one token that are read again: from two on the token is refused."""


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
            if not may_derive_same(other.infra, machine.infra if is_derived else None, policy):
                continue
            with suppress(Unavailable):  # an object that is not there gives no provider ID
                expected = expected_provider_id(other, await self.infrastructure(other))
                if expected is not None and expected.matches(machine.provider_id):
                    found.append(f"{other.kind} {other.name}")
        return found

    async def makes_machines(self, pool: MachineView) -> bool:
        return await self.management.platforms.makes_machines(pool)

    async def named_tokens(self, configured: MachineView, token_id: str) -> NamedTokens:
        return await self.kubeadm_configs.tokens_of(configured, token_id)

    async def first_request(self, ref: FirstRequestRef) -> JsonObject | None:
        """Return the first request from the watch that brought the second one; read it where it is not open there.

        TPM protocol §3 step 10: one watch shows what was written in the order in which it was written, so what shows
        the second request shows the first one as it was then. What a first request says cannot change under its UID.
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
    ) -> SecretBytes | Denied | None:
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
