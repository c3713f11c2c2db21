"""Where verdicts arrive and clusters open: the controller ``standing`` as a duty and as an observer."""

from __future__ import annotations

from nodeattest_controller.clusters.events import EventRecorder
from nodeattest_controller.clusters.inventory import ClusterKey
from nodeattest_controller.clusters.verdicts import Granted, Refused
from nodeattest_controller.standing.reports import Reports
from nodeattest_controller.standing.words import Words
from nodeattest_controller.standing.work import Ground, StandingWork
from nodeattest_kube.client import ApiClient

__all__ = ["Standing"]


class Standing:
    """Makes the work of each cluster, and hands it what was said of its machines (``Duty``, ``VerdictObserver``)."""

    def __init__(self, ground: Ground, *, events: EventRecorder) -> None:
        self._ground = ground
        self._events = events
        self._open: dict[ClusterKey, tuple[Words, StandingWork]] = {}
        """The newest work of each cluster; an older one has ended."""

    def of(self, key: ClusterKey, client: ApiClient) -> StandingWork:
        """Make the work of one connection."""
        ground = self._ground
        words = Words(key, ground.management.inventory, ground.clock)
        reports = Reports(key, ground.management, self._events, ground.clock)
        work = StandingWork(ground, key, client, words, reports)
        self._open[key] = (words, work)
        return work

    def granted(self, verdict: Granted) -> None:
        """Hear of a certificate."""
        found = self._open.get(verdict.cluster)
        if found is not None:
            words, work = found
            words.granted(verdict)
            work.heard(verdict.member.provider_id)

    def refused(self, verdict: Refused) -> None:
        """Hear of a denial."""
        found = self._open.get(verdict.cluster)
        if found is not None:
            words, work = found
            if words.refused(verdict):
                work.heard(verdict.provider_id)
