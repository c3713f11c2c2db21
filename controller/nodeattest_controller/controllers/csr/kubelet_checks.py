"""Every check of kubelet's own serving request, in the order in which they run: for controller and ``explain``.

Nothing is attested: the node's client certificate proves who asks, and the caches have the names and addresses of its
machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.csr_request import KubeletServingRequest, Round
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.node_names import NameSources, check_claim, has_name, node_names
from nodeattest_controller.model.resolver import one_ready_machine
from nodeattest_controller.verification import checks as shared
from nodeattest_controller.verification.checks import RequestCheck, declare
from nodeattest_controller.verification.facts import FactSource, RequestFacts, fact
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import NodeName, ProviderName, Purpose

RECHECK: Final = 2.0
"""Seconds; kubelet files its first request about when its Node appears, and nobody watches Nodes here."""


class KubeletFacts(RequestFacts):
    """The facts about one request of kubelet itself."""

    def __init__(self, source: FactSource, request: KubeletServingRequest) -> None:
        super().__init__(
            source,
            purpose=Purpose.SERVING,
            node_name=request.node_name,
            names=request.names,
            created=request.created,
        )

    async def round(self) -> Round:
        return Round.FINAL

    def require_one(self, machines: list[MachineView]) -> MachineView:
        return machine_of_node(self.node_name, machines)

    @fact
    async def cached_machine(self) -> MachineView:
        holders = (await self.name_context()).holders
        return machine_of_node(self.node_name, self.source.machines_of_node(self.node_name), holders)

    async def machine_for_memory_checks(self) -> MachineView:
        """Return the cached machine: what memory refuses costs no read."""
        return await self.cached_machine()

    async def address_provider(self) -> ProviderName | None:
        """Name who attested the machine, as far as the policy still has it."""
        recorded = self.source.attestation(await self.cached_machine())
        return recorded.provider if recorded.provider in (await self.policy()).attestors else None

    @fact
    async def node(self) -> JsonObject | None:
        return await self.source.node(self.node_name, by_node=True)


@declare("policy approves", "serving certificates")
async def policy_approves(facts: KubeletFacts) -> None:
    """The policy says serving.kubelet: Approve."""
    if not (await facts.policy()).approves_kubelet:
        raise Denied(
            Reason.SERVING_NOT_ALLOWED,
            expected="serving.kubelet: Approve",
            got="Ignore: the request is left to another approver",
            remedy="set it in the policy, or approve by other means",
        )


@declare("one Machine, alive and ready", "identity rule 1")
async def one_machine_of_node(facts: KubeletFacts) -> None:
    """Exactly one machine of the cluster has the node's name; it stays, is not paused, and has its bootstrap data."""
    await facts.cached_machine()


@declare("the Machine's node name", "identity rule 2")
async def own_name(facts: KubeletFacts) -> None:
    """The name is the machine's own, or it is bound to the name on record."""
    claims = node_names(await facts.machine(), NameSources(recorded=await facts.recorded_name()))
    check_claim(facts.node_name, claims, short_names=(await facts.name_context()).short_names)


@declare("a confirmed provider ID", "identity rule 1")
async def confirmed(facts: KubeletFacts) -> None:
    """Cluster API has set the Machine's provider ID: the cluster's own signer issues for longer than a day."""
    machine = await facts.machine()
    if not machine.is_confirmed:
        remedy = "wait until the infrastructure provider sets it"
        raise _not_yet(f"{machine.kind} {machine.name} has no spec.providerID yet", remedy)


@declare("a registered Node", "identity rule 3")
async def node_registered(facts: KubeletFacts) -> None:
    """The Node is there, and has a provider ID or is the Machine's nodeRef."""
    machine, node = await facts.machine(), await facts.node()
    if node is None:
        raise _not_yet("the Node does not exist yet", "wait until the node has registered")
    if text(node, "spec", "providerID") or machine.node_ref_uid == text(node, "metadata", "uid"):
        return  # another machine's provider ID is refused by a check of its own
    raise _not_yet("the Node has no provider ID yet", "set kubelet's --provider-id, or run a cloud controller manager")


def machine_of_node(
    node_name: NodeName, candidates: Sequence[MachineView], holders: Sequence[Attestation] = ()
) -> MachineView:
    """Rule 1, asked by node name: exactly one Machine of this cluster, alive and ready.

    Who only lists the name among its addresses does not count beside one that has it (``has_name``).
    """
    staying = [member for member in candidates if not member.deleting] or candidates
    staying = [member for member in staying if has_name(member, node_name, holders)] or staying
    if not staying:
        detail = f"no Machine of this cluster has the node name {node_name}"
        raise Unavailable(Reason.MACHINE_NOT_FOUND, detail, remedy="let the node carry its Machine's name")
    claims = "one Machine that claims this node name"
    return one_ready_machine(staying, expected=claims, remedy="give each Machine its own host name")


def _not_yet(detail: str, remedy: str) -> Unavailable:
    return Unavailable(Reason.MACHINE_NOT_READY, detail, remedy=remedy, retry_after=RECHECK)


CHECKS: Final[tuple[RequestCheck[KubeletFacts], ...]] = (
    shared.active_cluster,
    policy_approves,
    one_machine_of_node,
    shared.names_unclaimed,
    shared.names_on_record,
    shared.machine_now,
    own_name,
    confirmed,
    node_registered,
    shared.no_other_node,
    shared.names_unclaimed_now,
    shared.names_listed_now,
)
