"""What the controller ``issuer`` tells: in the log, by metrics, and as Events on the Cluster.

Promises: each trouble once in ten minutes a cluster, in words that say what helps; keys that stay although the cluster
does not name them once a day, by name; no key and no credential.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from nodeattest_controller.controllers.issuer.publish_target import PublishTarget
from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.event_limiter import EventLimiter
from nodeattest_controller.runtime.events import EventRecorder
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.objectref import cluster_ref
from nodeattest_identity.publish.publisher import Published

__all__ = ["NOT_PUBLISHED", "PUBLISHED", "Report"]

_LOG: Final = logging.getLogger(__name__)
PUBLISHED: Final = "IssuerPublished"
NOT_PUBLISHED: Final = "IssuerNotPublished"
_PERIOD: Final = 600.0
_DAY: Final = 24 * 3600.0


class Report:
    """Tells what became of documents."""

    def __init__(
        self, management: ManagementCache, *, events: EventRecorder, metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        self._management, self._events, self._metrics = management, events, metrics
        self._tellings = EventLimiter(clock)

    def published(self, key: ClusterKey, site: PublishTarget, published: Published) -> None:
        """Tell what stands in the place now, if that is news."""
        self._metrics.issuer_publication("written" if published.writes else "equal")
        if not published.writes:
            if published.notes and self._tellings.may_tell(f"{key} unwanted", _DAY):
                notes = "; ".join(published.notes)
                _LOG.info("an issuer's documents hold what is not wanted", extra=fields(cluster=key, notes=notes))
            return
        keys = len(published.documents.keys)
        _LOG.info("published an issuer's documents", extra=fields(cluster=key, place=site.place, keys=keys))
        if published.notes:
            self._event(key, "Normal", PUBLISHED, f"{keys} keys of {site.issuer}: {'; '.join(published.notes)}")

    def left_alone(self, key: ClusterKey, why: str) -> None:
        """Tell once a day that a cluster is another issuer."""
        self._metrics.issuer_publication("other-issuer")
        if self._tellings.may_tell(f"{key} other-issuer", _DAY):
            _LOG.info("not publishing a cluster of another issuer", extra=fields(cluster=key, why=why))

    def failed(self, key: ClusterKey, outcome: str, message: str) -> None:
        """Tell what went wrong."""
        self._metrics.issuer_publication(outcome)
        if not self._tellings.may_tell(f"{key} {outcome}", _PERIOD):
            return
        _LOG.warning("cannot publish an issuer's documents", extra=fields(cluster=key, outcome=outcome, error=message))
        self._event(key, "Warning", NOT_PUBLISHED, message)

    def _event(self, key: ClusterKey, kind: str, reason: str, message: str) -> None:
        cluster = self._management.cluster(key)
        if cluster is not None:
            self._events.record(cluster_ref(cluster), kind, reason, message)
