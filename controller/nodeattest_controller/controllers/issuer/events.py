"""Reports of the controller ``issuer``: log lines, metrics, Events on the Cluster.

Promises: each trouble once in ten minutes a cluster, with a remedy; keys that stay although the cluster does not name
them once a day, by name; no key and no credential.
"""

from __future__ import annotations

import logging
from typing import Final

from nodeattest_controller.controllers.issuer.publish_target import PublishTarget
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.cluster_events import ClusterEvents
from nodeattest_identity.publish.publisher import PublishResult

__all__ = ["LOG", "NOT_PUBLISHED", "PUBLISHED", "IssuerEvents"]

LOG: Final = logging.getLogger(__name__)
PUBLISHED: Final = "IssuerPublished"
NOT_PUBLISHED: Final = "IssuerNotPublished"
_DAY: Final = 24 * 3600.0


class IssuerEvents:
    """Reports about one cluster's documents."""

    def __init__(self, events: ClusterEvents, metrics: Metrics) -> None:
        self._events, self._metrics = events, metrics

    def published(self, target: PublishTarget, published: PublishResult) -> None:
        """Report what is published now, where that changed."""
        self._metrics.issuer_publication("written" if published.writes else "equal")
        notes = "; ".join(published.notes)
        if not published.writes:
            if notes and self._events.allow("unwanted", _DAY):
                self._events.info("an issuer's documents hold what is not wanted", notes=notes)
            return
        keys = len(published.documents.keys)
        self._events.info("published an issuer's documents", place=str(target.location), keys=keys)
        if notes:
            self._events.event("Normal", PUBLISHED, f"{keys} keys of {target.issuer}: {notes}")

    def other_issuer(self, why: str) -> None:
        """Report once a day that a cluster is another issuer."""
        self._metrics.issuer_publication("other-issuer")
        if self._events.allow("other-issuer", _DAY):
            self._events.info("not publishing a cluster of another issuer", why=why)

    def failed(self, outcome: str, message: str) -> None:
        """Report a failure."""
        self._metrics.issuer_publication(outcome)
        if self._events.warn(outcome, "cannot publish an issuer's documents", outcome=outcome, error=message):
            self._events.event("Warning", NOT_PUBLISHED, message)
