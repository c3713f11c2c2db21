"""Makes the reconciler of each cluster, and passes CSR outcomes to it."""

from __future__ import annotations

import logging
from typing import Final

from nodeattest_controller.controllers.node_attested.pending import PendingOutcomes
from nodeattest_controller.controllers.node_attested.reconciler import NodeAttestedDeps, NodeAttestedReconciler
from nodeattest_controller.controllers.node_attested.refusal_recorder import NodeAttestedEvents
from nodeattest_controller.runtime.cluster_controller import CSRDenied, CSRIssued
from nodeattest_controller.runtime.cluster_log import ClusterEvents
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_kube.client import ApiClient
from nodeattest_kube.events import EventRecorder

_LOG: Final = logging.getLogger(__name__)


class NodeAttestedController:
    """The reconcilers of all clusters (``ClusterController``, ``CSRObserver``)."""

    name = "standing"

    def __init__(self, deps: NodeAttestedDeps, *, events: EventRecorder) -> None:
        self._deps = deps
        self._events = events
        self._reconcilers: dict[ClusterKey, tuple[PendingOutcomes, NodeAttestedReconciler]] = {}
        """The newest reconciler of each cluster; an older one has ended."""

    def for_cluster(self, key: ClusterKey, client: ApiClient) -> NodeAttestedReconciler:
        """Make the reconciler of one connection."""
        deps = self._deps
        pending = PendingOutcomes(key, deps.management.inventory, deps.clock)
        events = ClusterEvents(key, deps.management, self._events, log=_LOG, clock=deps.clock)
        reconciler = NodeAttestedReconciler(deps, key, client, pending, NodeAttestedEvents(events))
        self._reconcilers[key] = (pending, reconciler)
        return reconciler

    def granted(self, verdict: CSRIssued) -> None:
        """Take in a certificate."""
        found = self._reconcilers.get(verdict.cluster)
        if found is not None:
            pending, reconciler = found
            pending.granted(verdict)
            reconciler.enqueue(verdict.member.provider_id)

    def refused(self, verdict: CSRDenied) -> None:
        """Take in a denial."""
        found = self._reconcilers.get(verdict.cluster)
        if found is not None:
            pending, reconciler = found
            if pending.refused(verdict):
                reconciler.enqueue(verdict.provider_id)
