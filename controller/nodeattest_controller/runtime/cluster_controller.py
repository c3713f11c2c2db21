"""Interfaces of controllers that work in every connected workload cluster.

A ``ClusterController`` is one controller; for each connection it makes a ``ClusterRunner``, which runs as long as the
connection exists and is notified when an object of the cluster changes in the management cluster.
Leaves to others: connecting (``cluster_manager``), and every decision (the controller).
"""

from __future__ import annotations

from typing import Protocol

from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_kube.client import ApiClient, ApiError

__all__ = ["ClusterController", "ClusterRunner"]


class ClusterRunner(Protocol):
    """What one controller does in one connected cluster."""

    @property
    def synced(self) -> bool:
        """Whether all that is watched has been read once."""
        ...

    @property
    def last_error(self) -> ApiError | None:
        """What keeps a watch from being followed; None while all is well."""
        ...

    async def run(self) -> None:
        """Serve until cancelled. An exception is a bug: the cluster is connected to anew after a while."""
        ...

    def changed(self) -> None:
        """Hear that something of the cluster changed: Cluster, policy, Machine, pool, kubeconfig. Must not block."""
        ...


class ClusterController(Protocol):
    """One controller that works in every connected cluster."""

    def of(self, key: ClusterKey, client: ApiClient) -> ClusterRunner | None:
        """Make the work of one connection; ``client`` is the workload cluster's. None: nothing to do there."""
        ...
