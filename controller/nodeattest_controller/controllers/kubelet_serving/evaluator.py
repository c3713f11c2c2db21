"""Kubelet's own serving requests (``kubernetes.io/kubelet-serving``): approved, refused or left alone, not signed here.

Only where a policy says ``serving.kubelet: Approve``; elsewhere, and where the policy cannot be read, they are left
to whoever approves them today. Nothing is attested: the node's client certificate says who asks, and the inventory
says which names and addresses are its own. Docs: docs/adr/0008.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from nodeattest_controller.controllers.kubelet_serving.sans import SANEvaluator, SANRequest
from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model.csr_request import KUBELET, CSRSummary, summarize
from nodeattest_controller.model.identity_rules import (
    NameContext,
    allowed_node_names,
    check_machine_ready,
    check_no_hijack,
)
from nodeattest_controller.model.kubelet_csr import KubeletServingRequest, parse_kubelet_request, requesting_node
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.objects import text
from nodeattest_controller.runtime.events import EventRecorder
from nodeattest_controller.runtime.indexes import ClusterKey, cluster_key
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.objectref import member_ref
from nodeattest_controller.runtime.workload_client import WorkloadClient
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.names import NodeName, ProviderName

__all__ = ["KubeletServingEvaluator", "check_name", "check_node", "one_machine"]

_LOG: Final = logging.getLogger(__name__)
RECHECK: Final = 2.0
"""Seconds; kubelet files its first request about when its Node appears, and nobody watches Nodes here."""


class KubeletServingEvaluator:
    """Decides on kubelet's own serving requests."""

    def __init__(
        self, management: ManagementCache, *, addresses: SANEvaluator, events: EventRecorder, metrics: Metrics
    ) -> None:
        self._management = management
        self._addresses = addresses
        self._events = events
        self._metrics = metrics

    async def read(self, workload: WorkloadClient, stored: CSRSummary) -> JsonObject | None:
        """Read a request whole; None when somebody else decided it meanwhile."""
        found = await workload.read_request(stored.name)
        now = summarize(found) if found is not None else None
        return found if now is not None and now.uid == stored.uid and now.is_open else None

    async def approve(self, workload: WorkloadClient, csr: JsonObject) -> None:
        """Approve exactly this request; raises Denied, Unavailable, Conflict or ApiError."""
        request = parse_kubelet_request(csr)
        member = await self._judge(workload, request)
        await workload.approve(csr, "AddressesVerified", "names and addresses are those of the node's Machine")
        self._metrics.verdict(KUBELET, "approve", "")
        names = ", ".join((*request.names.dns_names, *request.names.ip_addresses))
        _LOG.info(
            "approved",
            extra=fields(cluster=workload.key, csr=request.name, node=request.node_name, machine=member.name),
        )
        self._events.record(
            member_ref(member), "Normal", "ServingApproved", f"kubelet of node {request.node_name} serves {names}"
        )

    def provider_id_of(self, cluster: ClusterKey, csr: JsonObject) -> str:
        """Tell which machine asks, for Events; empty where that is not clear."""
        node_name = requesting_node(csr)
        found = self._management.inventory.members_of_node(cluster, node_name) if node_name else []
        return found[0].provider_id if len(found) == 1 else ""

    def approves(self, key: ClusterKey) -> bool:
        """Tell whether the policy has kubelet's own requests decided here."""
        cluster = self._management.cluster(key)
        if cluster is None:
            return False
        try:
            return self._management.policy_of(cluster).serving.approves_kubelet
        except (Denied, Unavailable):
            return False

    def only_reports(self, key: ClusterKey) -> bool:
        """Tell whether the policy is an audit, under which somebody else's way to a certificate is not closed."""
        cluster = self._management.cluster(key)
        try:
            return cluster is not None and not self._management.policy_of(cluster).enforce
        except (Denied, Unavailable):
            return False

    async def _judge(self, workload: WorkloadClient, request: KubeletServingRequest) -> MachineView:
        """Find the Machine that may have this certificate.

        1. One live Machine has this node name; 2. its names, from memory; 3. Machine and Node read now; 4. nobody else
        has the name; 5. its names as they are now.
        """
        cluster = self._management.active_cluster(workload.key)
        inventory = self._management.inventory
        cached = one_machine(request.node_name, inventory.members_of_node(workload.key, request.node_name))  # 1
        self._addresses.check_remembered(self._wanted(cluster, cached, request))  # 2
        live = await self._management.live_member(cached)  # 3
        holders = inventory.holders(workload.key, request.node_name)
        member = one_machine(request.node_name, [live] if live else [])
        proven = request.node_name if any(each.provider_id == member.provider_id for each in holders) else None
        check_name(request.node_name, member, proven)
        node = await workload.read_node(request.node_name)
        check_node(member, node)
        around = NameContext(
            claimants=(),
            holders=holders,
            is_alive=lambda ledger: bool(inventory.members(workload.key, ledger.provider_id)),
        )
        check_no_hijack(member, around, node)  # 4
        await self._addresses.check(self._wanted(cluster, member, request))  # 5
        return member

    def _wanted(self, cluster: JsonObject, member: MachineView, request: KubeletServingRequest) -> SANRequest:
        return SANRequest(
            cluster=cluster,
            member=member,
            names=request.names,
            node_name=request.node_name,
            at=request.created,
            provider=self._attested_by(cluster, member),
        )

    def _attested_by(self, cluster: JsonObject, member: MachineView) -> ProviderName | None:
        """Tell who attested a machine, as far as the policy still has it."""
        key = cluster_key(member.namespace, member.cluster_name)
        ledger = self._management.inventory.ledger(key, member.provider_id)
        if ledger is None or ledger.provider not in self._management.policy_of(cluster).attestors:
            return None
        return ledger.provider


def one_machine(node_name: NodeName, candidates: Sequence[MachineView]) -> MachineView:
    """Rule 1, asked by node name: exactly one Machine of this cluster, alive and ready."""
    staying = [member for member in candidates if not member.deleting] or candidates
    if not staying:
        raise Unavailable(
            Reason.MACHINE_NOT_FOUND,
            f"no Machine of this cluster has the node name {node_name}",
            remedy="let the node carry its Machine's name",
        )
    if len(staying) > 1:
        raise Denied(
            Reason.MACHINE_AMBIGUOUS,
            expected="one Machine that claims this node name",
            got=", ".join(sorted(f"{member.kind} {member.name}" for member in staying)),
            remedy="give each Machine its own host name",
        )
    check_machine_ready(staying[0])
    return staying[0]


def check_name(node_name: NodeName, member: MachineView, proven: NodeName | None) -> None:
    """Rule 2: the name is still this Machine's when it is read anew."""
    allowed = allowed_node_names(member, proven)
    if node_name not in allowed:
        raise Denied(
            Reason.NODE_NAME_MISMATCH,
            expected=" or ".join(allowed) or "a name that the provider proves (pool instance)",
            got=node_name,
            remedy="let the node use its own Machine's name",
        )


def check_node(member: MachineView, node: JsonObject | None) -> None:
    """Rule 3: the Node is there and carries the Machine's provider ID, or is the Machine's nodeRef.

    Another provider ID is left to ``check_no_hijack``; none yet is waited for: the cloud's controller sets it.
    """
    if node is None:
        raise _not_yet("the Node does not exist yet", "wait until the node has registered")
    if text(node, "spec", "providerID") or member.node_ref_uid == text(node, "metadata", "uid"):
        return
    raise _not_yet("the Node has no provider ID yet", "set kubelet's --provider-id, or run a cloud controller manager")


def _not_yet(detail: str, remedy: str) -> Unavailable:
    return Unavailable(Reason.MACHINE_NOT_READY, detail, remedy=remedy, retry_after=RECHECK)
