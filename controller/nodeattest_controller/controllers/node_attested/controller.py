"""Makes the reconciler of each cluster, and passes CSR outcomes to it."""

from __future__ import annotations

import logging
from typing import Final

from nodeattest_controller.controllers.node_attested.outcomes import CSROutcomes
from nodeattest_controller.controllers.node_attested.reconciler import NodeAttestedReconciler
from nodeattest_controller.runtime.cluster_controller import CSRDenied, CSRIssued, ReconcilerDeps
from nodeattest_controller.runtime.cluster_log import ClusterEvents
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_kube.client import ApiClient

log: Final = logging.getLogger(__name__)


class NodeAttestedController:
    """The reconcilers of all clusters (``ClusterController``, ``CSRObserver``)."""

    name = "standing"

    def __init__(self, deps: ReconcilerDeps) -> None:
        self._deps = deps
        self._reconcilers: dict[ClusterKey, tuple[CSROutcomes, NodeAttestedReconciler]] = {}
        """The newest reconciler of each cluster; an older one has ended."""

    def for_cluster(self, key: ClusterKey, client: ApiClient) -> NodeAttestedReconciler:
        """Make the reconciler of one connection."""
        deps = self._deps
        outcomes = CSROutcomes(key, deps.management.inventory, deps.clock)
        events = ClusterEvents(key, deps.management, deps.events, log=log, clock=deps.clock)
        reconciler = NodeAttestedReconciler(deps, key, client, outcomes, events)
        self._reconcilers[key] = (outcomes, reconciler)
        return reconciler

    def granted(self, verdict: CSRIssued) -> None:
        """Take in a certificate."""
        if verdict.cluster in self._reconcilers:
            outcomes, reconciler = self._reconcilers[verdict.cluster]
            outcomes.granted(verdict)
            reconciler.enqueue(verdict.member.provider_id)

    def refused(self, verdict: CSRDenied) -> None:
        """Take in a denial."""
        if verdict.cluster in self._reconcilers:
            outcomes, reconciler = self._reconcilers[verdict.cluster]
            if outcomes.refused(verdict):
                reconciler.enqueue(verdict.provider_id)
