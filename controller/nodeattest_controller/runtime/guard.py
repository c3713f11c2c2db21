"""Whether this replica may act: on a cluster, or on what belongs to no one cluster.

Promises: an answer holds for this instant and becomes False by time alone, so ask again after each wait and before each
write. Leaves to others: writes that stay safe when a paused replica makes them late (compare-and-swap).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from nodeattest_controller.model.machine_record import cluster_active
from nodeattest_controller.model.policy import Policy
from nodeattest_controller.runtime.cluster_marks import ClusterMarks
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.errors import Denied, Unavailable

__all__ = ["ClusterGuard", "LeaderOwnsAll", "MarkedClusters", "Ownership"]


class Ownership(Protocol):
    """Which clusters this replica serves."""

    def owns(self, cluster: ClusterKey) -> bool:
        """Return whether this replica serves the cluster now: reads and writes in it, and of its Machines' objects."""
        ...

    def leads(self) -> bool:
        """Return whether this replica does now what belongs to no one cluster, such as the status of policies."""
        ...


class LeaderOwnsAll:
    """The leader serves every cluster while it leads."""

    def __init__(self, may_act: Callable[[], bool]) -> None:
        self._may_act = may_act

    def owns(self, cluster: ClusterKey) -> bool:
        """Return whether this replica leads."""
        return self._may_act()

    def leads(self) -> bool:
        """Return whether this replica leads."""
        return self._may_act()


class MarkedClusters(LeaderOwnsAll):
    """The leader serves the clusters that its label and marks leave to this controller.

    Cluster API's controllers serve every Cluster where they have no watch filter. Here it is only those without the
    label: two controllers must never serve one Cluster.
    """

    def __init__(self, may_act: Callable[[], bool], management: ManagementCache, marks: ClusterMarks) -> None:
        super().__init__(may_act)
        self._management = management
        self._marks = marks

    def owns(self, cluster: ClusterKey) -> bool:
        """Return whether this replica leads and the Cluster exists and is not another controller's.

        A deleted Cluster is nobody's: another one of its name may be another controller's.
        """
        found = self._management.cluster(cluster)
        return self.leads() and found is not None and self._marks.may_serve(found)


class ClusterGuard:
    """Answers for every controller whether it may act on a cluster now."""

    def __init__(self, management: ManagementCache, ownership: Ownership) -> None:
        self._management = management
        self._ownership = ownership

    def active_cluster(self, key: ClusterKey) -> JsonObject | None:
        """Return the Cluster if it is this replica's, exists, is not paused and is not being deleted; else None."""
        cluster = self._management.cluster(key) if self._ownership.owns(key) else None
        return cluster if cluster is not None and cluster_active(cluster) else None

    def enforced_cluster(self, key: ClusterKey) -> tuple[JsonObject, Policy] | None:
        """Return such a Cluster with its policy, if that can be read and says ``enforcement: Enforce``; else None."""
        cluster = self.active_cluster(key)
        try:
            policy = self._management.policy_of(cluster) if cluster is not None else None
        except (Denied, Unavailable):
            return None
        return (cluster, policy) if cluster is not None and policy is not None and policy.enforce else None

    def may_act(self, key: ClusterKey) -> bool:
        """Return whether there is such a Cluster."""
        return self.active_cluster(key) is not None
