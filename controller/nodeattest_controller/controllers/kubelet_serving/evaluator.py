"""Kubelet's own serving requests (``kubernetes.io/kubelet-serving``): approved, refused or left alone, not signed here.

Only where a policy says ``serving.kubelet: Approve``; elsewhere they are left to their present approver.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ClassVar, Final

from nodeattest_controller.controllers.kubelet_serving.checks import CHECKS, KubeletFacts
from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model.csr_request import (
    KUBELET,
    CSRSummary,
    parse_kubelet_request,
    requesting_node,
    summarize,
)
from nodeattest_controller.model.policy import Policy
from nodeattest_controller.runtime.cluster_log import member_ref
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.workload_client import WorkloadClient
from nodeattest_controller.verification.checks import Pipeline
from nodeattest_controller.verification.controller_facts import ControllerFacts
from nodeattest_kube.events import EventRecorder
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Unavailable

_LOG: Final = logging.getLogger(__name__)


class KubeletServingEvaluator:
    """Decides on kubelet's own serving requests."""

    _pipeline: ClassVar[Pipeline[KubeletFacts]] = Pipeline(CHECKS)
    """No setting, flag or parameter changes it."""

    def __init__(
        self,
        management: ManagementCache,
        *,
        facts_of: Callable[[WorkloadClient], ControllerFacts],
        events: EventRecorder,
        metrics: Metrics,
    ) -> None:
        """``facts_of`` gives the facts of a cluster."""
        self._management = management
        self._facts_of = facts_of
        self._events = events
        self._metrics = metrics

    async def read(self, workload: WorkloadClient, stored: CSRSummary) -> JsonObject | None:
        """Read a request whole; None when somebody else decided it meanwhile."""
        found = await workload.read_request(stored.name)
        now = summarize(found) if found is not None else None
        return found if now is not None and now.uid == stored.uid and now.is_open else None

    async def approve(self, workload: WorkloadClient, csr: JsonObject) -> None:
        """Approve exactly this request, or leave it alone where the policy no longer has it decided here.

        Raises Denied, Unavailable, Conflict or ApiError.
        """
        if not self.approves(workload.key):
            return
        request = parse_kubelet_request(csr)
        facts = KubeletFacts(self._facts_of(workload), request)
        await self._pipeline.run(facts)
        member = await facts.machine()
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
        """Return which machine asks, for Events; empty where that is not clear."""
        node_name = requesting_node(csr)
        found = self._management.inventory.members_of_node(cluster, node_name) if node_name else []
        return found[0].provider_id if len(found) == 1 else ""

    def approves(self, key: ClusterKey) -> bool:
        """Return whether the policy has kubelet's own requests decided here."""
        policy = self._policy(key)
        return policy is not None and policy.serving.approves_kubelet

    def only_reports(self, key: ClusterKey) -> bool:
        """Return whether the policy is an audit, under which somebody else's way to a certificate is not closed."""
        policy = self._policy(key)
        return policy is not None and not policy.enforce

    def _policy(self, key: ClusterKey) -> Policy | None:
        cluster = self._management.cluster(key)
        try:
            return self._management.policy_of(cluster) if cluster is not None else None
        except (Denied, Unavailable):
            return None
