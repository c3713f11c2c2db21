"""Decides whether this replica may act, and marks a Cluster so that no other controller serves it at the same time.

An answer holds for this instant, so ask again after each wait and before each write. A Cluster is served only if it has
our label (Cluster API's watch filter) and our mark, a condition that is written by compare-and-swap. Another
controller's mark is never replaced. Ours is removed after all work in the cluster has ended. A Cluster is marked only
after the records of its former controller are in the cache, so that checks across machines hold when a Cluster moves.
Out of scope: late writes of a paused replica (each is a compare-and-swap), connecting (``cluster_manager``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

from nodeattest_controller.logs import fields
from nodeattest_controller.model.machine_record import cluster_active
from nodeattest_controller.model.policy import Policy
from nodeattest_controller.runtime.cluster_log import PERIOD
from nodeattest_controller.runtime.conditions import (
    Condition,
    ConditionStatus,
    update_status,
    with_condition,
    without_condition,
)
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache, cluster_path, cluster_ref
from nodeattest_kube.errors import NotFound
from nodeattest_kube.events import EventLimiter, EventRecorder
from nodeattest_parsing.objects import condition, items, text
from nodeattest_parsing.values import JsonObject, one_line
from nodeattest_providers.errors import Denied, Unavailable


class ClusterGuard:
    """Tells every controller whether it may act now."""

    def __init__(
        self, management: ManagementCache, leads: Callable[[], bool], marks: ClusterMarks | None = None
    ) -> None:
        """``leads``: whether this replica leads now. ``marks`` leave clusters to other controllers; None: none."""
        self._management = management
        self.leads = leads
        self._marks = marks

    def owns(self, key: ClusterKey) -> bool:
        """Return whether this replica serves the cluster now; nobody serves a deleted Cluster."""
        if not self.leads() or self._marks is None:
            return self.leads()
        found = self._management.cluster(key)
        return found is not None and self._marks.may_serve(found)

    def active_cluster(self, key: ClusterKey) -> JsonObject | None:
        """Return the Cluster if this replica serves it, and it is neither paused nor being deleted; else None."""
        cluster = self._management.cluster(key) if self.owns(key) else None
        return cluster if cluster is not None and cluster_active(cluster) else None

    def enforced_cluster(self, key: ClusterKey) -> tuple[JsonObject, Policy] | None:
        """Return an active Cluster with its policy if the policy can be read and enforces; else None."""
        cluster = self.active_cluster(key)
        try:
            policy = self._management.policy_of(cluster) if cluster is not None else None
        except (Denied, Unavailable):
            return None
        return (cluster, policy) if cluster is not None and policy is not None and policy.enforce else None

    def may_act(self, key: ClusterKey) -> bool:
        """Return whether the Cluster is active."""
        return self.active_cluster(key) is not None


log = logging.getLogger(__name__)
ANOTHER: Final = "ServedByAnotherController"
"""The reason of an Event."""
TOO_MANY: Final = "TooManyClusters"
"""The reason of an Event."""


class ClusterMarks:
    """The marks of one controller."""

    def __init__(
        self,
        management: ManagementCache,
        *,
        controller: str,
        watch_filter: str | None,
        events: EventRecorder,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take part as ``controller``, the same name for all replicas; ``clock`` is monotonic seconds."""
        self._management = management
        self._controller = controller
        self._watch_filter = watch_filter or ""
        self._events = events
        self._now = now
        self._limiter = EventLimiter(clock)

    def is_ours(self, cluster: JsonObject) -> bool:
        """Return whether a Cluster has our mark."""
        return mark_of(cluster) == self._controller

    def may_serve(self, cluster: JsonObject) -> bool:
        """Return whether a Cluster has our label, and no other controller's mark.

        Without a watch filter, only Clusters without the label are ours: two controllers must never serve one Cluster.
        """
        return watch_filter_of(cluster) == self._watch_filter and mark_of(cluster) in {"", self._controller}

    def report_conflict(self, cluster: JsonObject) -> None:
        """Report a Cluster with our label that another controller serves."""
        mark = mark_of(cluster)
        if watch_filter_of(cluster) == self._watch_filter and not self.may_serve(cluster):
            message = f"{mark} serves this Cluster, so {self._controller} does not; docs/scale.md says how to move it"
            self._report(cluster, ANOTHER, message, "another controller serves this cluster", controller=mark)

    def report_full(self, cluster: JsonObject, limit: int) -> None:
        """Report a Cluster beyond the limit of its namespace."""
        message = (
            f"{self._controller} serves {limit} Clusters of this namespace (clustersPerNamespace), and this is one "
            "more: raise the limit, or let another controller serve some (docs/scale.md)"
        )
        self._report(cluster, TOO_MANY, message, "too many clusters in a namespace", limit=limit)

    def _report(self, cluster: JsonObject, reason: str, message: str, line: str, **more: object) -> None:
        ref = cluster_ref(cluster)
        if self._limiter.allow((ref.uid, reason, *more.values()), PERIOD):
            log.warning(line, extra=fields(cluster=f"{ref.namespace}/{ref.name}", **more))
            self._events.record(ref, "Warning", reason, message)

    async def claim(self, key: ClusterKey, cluster: JsonObject) -> None:
        """Mark a Cluster that ``may_serve`` allows; raises ApiError, Conflict if somebody wrote it meanwhile."""
        if self.is_ours(cluster):
            return
        await self._management.check_ledgers(key)
        mark = Condition(SERVED, ConditionStatus.TRUE, "Serving", mark_text(self._controller))
        patch = with_condition(cluster, mark, self._now())
        if patch is not None:
            await self._management.client.merge_patch(f"{cluster_path(cluster)}/status", patch)

    async def release(self, cluster: JsonObject) -> None:
        """Remove our mark, if there is one; raises ApiError."""
        if not self.is_ours(cluster):
            return

        def without_ours(current: JsonObject) -> JsonObject | None:
            return without_condition(current, SERVED) if self.is_ours(current) else None

        try:
            await update_status(self._management.client, cluster_path(cluster), cluster, without_ours)
        except NotFound:
            return


WATCH_FILTER_LABEL: Final = "cluster.x-k8s.io/watch-filter"
"""Cluster API's label (api/core/v1beta2/common_types.go, WatchLabel)."""
SERVED: Final = "NodeAttestationServed"
"""The type of the condition that marks a Cluster."""
_BEGIN: Final = "by "
_LONGEST: Final = 320
"""Characters of a mark: a namespace's and a Lease's name."""


def watch_filter_of(cluster: JsonObject) -> str:
    """Return the value of the label; empty if there is none."""
    return text(cluster, "metadata", "labels", WATCH_FILTER_LABEL)


def mark_of(cluster: JsonObject) -> str:
    """Return the controller that serves a Cluster; empty if none does."""
    found = condition(items(cluster, "status", "conditions"), SERVED)
    return one_line(text(dict(found), "message").removeprefix(_BEGIN), _LONGEST) if found is not None else ""


def mark_text(controller: str) -> str:
    """Return the condition's message."""
    return f"{_BEGIN}{controller}"
