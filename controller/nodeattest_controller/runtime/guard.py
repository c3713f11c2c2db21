"""Decides whether this replica may act, and marks a Cluster so that no other controller serves it at the same time.

An answer holds for this instant, so ask again after each wait and before each write. A Cluster is served only if it has
our label (Cluster API's watch filter) and no other controller's mark, a condition written by compare-and-swap. It is
marked only after the records of its former controller are in the cache, so that checks across machines hold.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from nodeattest_controller.model.machine_view import cluster_active
from nodeattest_controller.model.policy import Policy
from nodeattest_controller.runtime import conditions
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache, cluster_path
from nodeattest_kube.errors import NotFound
from nodeattest_parsing.objects import condition, items, text
from nodeattest_parsing.values import JsonObject, one_line
from nodeattest_providers import __version__
from nodeattest_providers.errors import Denied, Unavailable
from nodeattest_providers.version import COMMIT

WATCH_FILTER_LABEL: Final = "cluster.x-k8s.io/watch-filter"
"""Cluster API's label (api/core/v1beta2/common_types.go, WatchLabel)."""
SERVED: Final = "NodeAttestationServed"
_BEGIN: Final = "by "
_LONGEST: Final = 320
"""Characters of a mark: a namespace's and a Lease's name."""


class ClusterGuard:
    """Tells every controller whether it may act now, and marks the Clusters of one controller."""

    def __init__(
        self,
        management: ManagementCache,
        leads: Callable[[], bool],
        *,
        controller: str = "",
        watch_filter: str | None = None,
    ) -> None:
        """``leads``: whether this replica leads now. ``controller``: the same name for all replicas."""
        self._management = management
        self.leads = leads
        self.controller = controller
        self._watch_filter = watch_filter or ""

    def owns(self, key: ClusterKey) -> bool:
        """Return whether this replica serves the cluster now; nobody serves a deleted Cluster."""
        found = self._management.cluster(key) if self.leads() else None
        return found is not None and self.has_label(found) and mark_of(found) in {"", self.controller}

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

    def has_label(self, cluster: JsonObject) -> bool:
        """Return whether a Cluster has our label.

        Without a watch filter, only Clusters without the label are ours: two controllers must never serve one Cluster.
        """
        return text(cluster, "metadata", "labels", WATCH_FILTER_LABEL) == self._watch_filter

    async def claim(self, key: ClusterKey, cluster: JsonObject, now: datetime) -> None:
        """Mark a Cluster that ``owns`` allows; raises ApiError, Conflict if somebody wrote it meanwhile."""
        if mark_of(cluster) == self.controller:
            return
        await self._management.check_ledgers(key)
        mark = conditions.Condition(SERVED, conditions.ConditionStatus.TRUE, "Serving", f"{_BEGIN}{self.controller}")
        patch = conditions.with_condition(cluster, mark, now)
        if patch is not None:
            await self._management.client.merge_patch(f"{cluster_path(cluster)}/status", patch)

    async def release(self, cluster: JsonObject) -> None:
        """Remove our mark, if there is one; raises ApiError."""

        def without_ours(current: JsonObject) -> JsonObject | None:
            return conditions.without_condition(current, SERVED) if mark_of(current) == self.controller else None

        try:
            await conditions.update_status(self._management.client, cluster_path(cluster), cluster, without_ours)
        except NotFound:
            return


def mark_of(cluster: JsonObject) -> str:
    found = condition(items(cluster, "status", "conditions"), SERVED)
    return one_line(text(dict(found), "message").removeprefix(_BEGIN), _LONGEST) if found is not None else ""


VERSION_ANNOTATION: Final = "nodeattest.x-k8s.io/version"
COMMIT_ANNOTATION: Final = "nodeattest.x-k8s.io/commit"
HOLDER_ANNOTATION: Final = "nodeattest.x-k8s.io/version-of"
"""Whose version and commit they are: the Lease's ``holderIdentity`` when they were written."""


def lease_annotations(holder: str) -> dict[str, str]:
    """Return what a replica writes beside its Lease with every renewal: which version serves, for operators."""
    commit = {COMMIT_ANNOTATION: COMMIT} if COMMIT else {}
    return {VERSION_ANNOTATION: __version__, HOLDER_ANNOTATION: holder, **commit}
