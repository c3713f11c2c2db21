"""Where verdicts arrive and clusters open: the controller ``standing`` as a duty and as an observer."""

from __future__ import annotations

from nodeattest_controller.controllers.node_attested.events import NodeAttestedEvents
from nodeattest_controller.controllers.node_attested.pending import PendingOutcomes
from nodeattest_controller.controllers.node_attested.reconciler import NodeAttestedDeps, NodeAttestedReconciler
from nodeattest_controller.runtime.csr_observer import CSRDenied, CSRIssued
from nodeattest_controller.runtime.events import EventRecorder
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_kube.client import ApiClient

__all__ = ["NodeAttestedController"]


class NodeAttestedController:
    """Makes the work of each cluster, and hands it what was said of its machines (``Duty``, ``VerdictObserver``)."""

    def __init__(self, ground: NodeAttestedDeps, *, events: EventRecorder) -> None:
        self._ground = ground
        self._events = events
        self._open: dict[ClusterKey, tuple[PendingOutcomes, NodeAttestedReconciler]] = {}
        """The newest work of each cluster; an older one has ended."""

    def of(self, key: ClusterKey, client: ApiClient) -> NodeAttestedReconciler:
        """Make the work of one connection."""
        ground = self._ground
        words = PendingOutcomes(key, ground.management.inventory, ground.clock)
        reports = NodeAttestedEvents(key, ground.management, self._events, ground.clock)
        work = NodeAttestedReconciler(ground, key, client, words, reports)
        self._open[key] = (words, work)
        return work

    def granted(self, verdict: CSRIssued) -> None:
        """Hear of a certificate."""
        found = self._open.get(verdict.cluster)
        if found is not None:
            words, work = found
            words.granted(verdict)
            work.heard(verdict.member.provider_id)

    def refused(self, verdict: CSRDenied) -> None:
        """Hear of a denial."""
        found = self._open.get(verdict.cluster)
        if found is not None:
            words, work = found
            if words.refused(verdict):
                work.heard(verdict.provider_id)
