"""Where a machine's addresses come from, and what else of its cluster they are compared with.

Promises: where the provider that attested a machine has a platform that tells addresses, what that says now decides
alone, so that an address that moved away is not believed for as long as Cluster API's controllers take to notice;
elsewhere ``Machine.status.addresses`` decides. Never both together, and a platform that does not answer is waited for.
Leaves the rules to ``serving``, and what a platform says to its provider (``interface.PlatformAddresses``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.certificate_authority import SubjectAltNames
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.serving_names import (
    Addresses,
    addresses_final,
    check_sans_listed,
    check_sans_unclaimed,
    for_machine,
    network_of,
)
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.verifiers.runner import VerificationRunner
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.names import NodeName, ProviderName
from nodeattest_providers.platform import reads_infrastructure
from nodeattest_providers.verifier_interface import ClusterAPISigner, Facts, LedgerFacts, PlatformAddresses

__all__ = ["AddressSource", "PlatformAddressSource", "SANEvaluator", "SANRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SANRequest:
    """The names that a machine's node asks for."""

    cluster: JsonObject
    member: MachineView
    names: SubjectAltNames
    node_name: NodeName
    at: datetime
    """The request's creation: whether the Machine is young is judged there."""
    provider: ProviderName | None
    """The one that attested the machine and that the policy authorises; None: nobody's."""


class AddressSource(Protocol):
    """Tells at which names and addresses some machines can be reached now."""

    def tells(self, provider: ProviderName | None) -> bool:
        """Tell whether this source is the one to ask about a provider's machines."""
        ...

    async def addresses(self, wanted: SANRequest) -> Addresses | None:
        """Return (type, address) pairs, None where it cannot tell; raises Denied, or Unavailable while it might."""
        ...


class PlatformAddressSource:
    """What the platform of the provider that attested a machine says."""

    def __init__(
        self,
        management: ManagementCache,
        *,
        signer: Callable[[ProviderName], ClusterAPISigner],
        verifications: VerificationRunner,
        now: Callable[[], datetime],
    ) -> None:
        self._management = management
        self._signer = signer
        self._verifications = verifications
        self._now = now

    def tells(self, provider: ProviderName | None) -> bool:
        """Tell whether the provider's half asks a platform; raises Denied where it is not installed."""
        return provider is not None and isinstance(self._signer(provider), PlatformAddresses)

    async def addresses(self, wanted: SANRequest) -> Addresses | None:
        """Ask the platform, for as long as a verification may take."""
        provider, member = wanted.provider, wanted.member
        signer = self._signer(provider) if provider is not None else None
        if provider is None or not isinstance(signer, PlatformAddresses):
            return None
        management = self._management
        key = ClusterKey(f"{member.namespace}/{member.cluster_name}")
        policy, ledger = management.policy_of(wanted.cluster), management.inventory.ledger(key, member.provider_id)
        infra = await management.infra_of(member) if reads_infrastructure(signer) else None
        facts = Facts(
            cluster=management.facts_of(wanted.cluster),
            machine=member.facts(infra=infra),
            settings=policy.settings(provider),
            sections=policy.sections,
            ledger=_pins(ledger, provider),
            verified_at=self._now(),
        )
        return await self._verifications.run(("addresses", key, member.provider_id), lambda: signer.addresses(facts))


def _pins(ledger: Attestation | None, provider: ProviderName) -> LedgerFacts:
    if ledger is None:
        return LedgerFacts()
    return LedgerFacts(fingerprints=ledger.pins_for(provider), provider=ledger.provider)


class SANEvaluator:
    """Checks the names of a serving request against the inventory and the machine's own addresses."""

    def __init__(self, management: ManagementCache, source: AddressSource) -> None:
        self._management = management
        self._source = source

    def check_remembered(self, wanted: SANRequest) -> None:
        """Apply the rules that memory can answer; raises Denied or Unavailable."""
        self._check_places(wanted)
        if not self._source.tells(wanted.provider):
            _check_status(wanted)

    async def check(self, wanted: SANRequest) -> None:
        """Let names through that are this machine's alone; raises Denied or Unavailable."""
        self._check_places(wanted)
        listed = await self._source.addresses(wanted) if self._source.tells(wanted.provider) else None
        if listed is None:
            _check_status(wanted)
            return
        # A platform that lists any addresses lists all that there are now: nothing is filled in later.
        check_sans_listed(wanted.names, node_name=wanted.node_name, listed=listed, settled=bool(listed))

    def _check_places(self, wanted: SANRequest) -> None:
        inventory, member = self._management.inventory, wanted.member
        key = ClusterKey(f"{member.namespace}/{member.cluster_name}")
        network, rivals = for_machine(
            member, network_of(wanted.cluster), lambda place: inventory.rivals(key, place, member.provider_id)
        )
        check_sans_unclaimed(wanted.names, network=network, rivals=rivals)


def _check_status(wanted: SANRequest) -> None:
    member = wanted.member
    check_sans_listed(
        wanted.names, node_name=wanted.node_name, listed=member.addresses, settled=addresses_final(member, wanted.at)
    )
