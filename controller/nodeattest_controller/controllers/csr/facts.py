"""The facts about one attested request, each gathered once, when the first check needs it.

Leaves to others: every rule (``checks``), and where a fact comes from (``verification.facts.FactSource``).
"""

from __future__ import annotations

from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.certificate_authority import SubjectAltNames
from nodeattest_controller.model.csr_request import RequestState, parse_request, summarize
from nodeattest_controller.model.identity_rules import find_machine
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.verification.checks import Round
from nodeattest_controller.verification.facts import FactSource, RequestFacts, Verification, fact
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.errors import Denied
from nodeattest_providers.names import ProviderID, ProviderName
from nodeattest_providers.node_interface import FirstRequestRef
from nodeattest_providers.pins import COMPOSITE, split_pin
from nodeattest_providers.platform import provable_names
from nodeattest_providers.verifier_interface import AttestedNode, ChallengeSigner, ClusterAPISigner, NodeRequest

__all__ = ["CSRFacts"]


class CSRFacts(RequestFacts):
    """The facts about one attested request."""

    def __init__(self, source: FactSource, request: NodeRequest, state: RequestState = RequestState.PENDING) -> None:
        """``state`` is the request's own."""
        super().__init__(
            source,
            purpose=request.purpose,
            node_name=request.csr.node_name,
            names=SubjectAltNames(request.csr.dns_names, request.csr.ip_addresses),
            created=request.created,
        )
        self.request = request
        self.state = state

    async def verifier(self) -> ClusterAPISigner:
        """Return the verifier that the request names; looked up by name, so only after the policy named it."""
        return self.source.verifier(self.request.evidence.provider)

    @fact
    async def ref(self) -> FirstRequestRef | None:
        """Return which first request this one answers; raises Denied on malformed evidence."""
        verifier = await self.verifier()
        return verifier.first_request(self.request) if isinstance(verifier, ChallengeSigner) else None

    @fact
    async def round(self) -> Round:
        """Return whether this request could be granted."""
        two_rounds = isinstance(await self.verifier(), ChallengeSigner)
        return Round.FIRST if two_rounds and await self.ref() is None else Round.FINAL

    def require_one(self, machines: list[MachineView]) -> MachineView:
        """Apply identity rule 1 by provider ID."""
        return find_machine(self.request, machines)

    @fact
    async def candidates(self) -> list[MachineView]:
        """Return the machines with the request's provider ID."""
        return self.source.machines(self.request.csr.provider_id)

    async def cached_machine(self) -> MachineView:
        """Return the first of the candidates; the rule that there is but one is a check of its own."""
        candidates = await self.candidates()
        return candidates[0] if candidates else self.require_one([])

    async def machine_for_memory_checks(self) -> MachineView:
        """Return the machine, which was read live by then where the request could be granted."""
        return await self.machine()

    async def address_provider(self) -> ProviderName | None:
        """Return the provider of the evidence."""
        return self.request.evidence.provider

    @fact
    async def first_object(self) -> JsonObject | None:
        """Return the object of the first request, read live."""
        ref = await self.ref()
        return await self.source.csr(ref.name) if ref is not None else None

    @fact
    async def first(self) -> NodeRequest | None:
        """Return the first request, parsed; None where there is none that a node could have filed here."""
        first = await self.first_object()
        stored = summarize(first) if first is not None else None
        if first is None or stored is None or stored.is_kubelets:
            return None
        return parse_request(first, provider_id_oid=self.source.provider_id_oid)

    @fact
    async def attested(self) -> AttestedNode:
        """Return what the provider's verification proved; raises Denied, Unavailable or ChallengeRequired."""
        verification = Verification(
            request=self.request, verifier=await self.verifier(), ref=await self.ref(), first=await self.first()
        )
        return await self.source.verify(self, verification)

    @fact
    async def registered_machines(self) -> frozenset[ProviderID]:
        """Return the machines to which a section of the policy gives the requested name, whichever provider attests.

        ``composite`` has no names of its own: those of its parts are in the parts' sections.
        """
        sections = (await self.policy()).sections
        found: set[ProviderID] = set()
        for provider in sections.keys() - {COMPOSITE}:
            try:
                verifier = self.source.verifier(provider)
            except Denied:  # not installed here
                continue
            names = provable_names(verifier, sections) or {}
            found.update(machine for machine, name in names.items() if name == self.node_name)
        return frozenset(found)

    @fact
    async def node(self) -> JsonObject | None:
        """Return the Node of the requested name, read live."""
        return await self.source.node(self.node_name, by_node=self.request.is_renewal)

    async def holders_of_fingerprints(self) -> list[Attestation]:
        """Return the attestations of the cluster that pin what this machine proved itself by."""
        inventory, key = self.source.inventory, self.source.key
        pins = (await self.attested()).pins.items()
        return [
            holder for pin, value in pins for holder in inventory.fingerprint_holders(key, split_pin(pin)[1], value)
        ]
