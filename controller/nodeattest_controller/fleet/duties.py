"""What runs in a connected cluster beside the queue of requests: the seam that each further controller fits into.

A ``Duty`` is one controller; for each connection it makes a ``Work``, which runs as long as the connection does and is
told when anything of the cluster changed in the management cluster. What one cluster's work dies of ends nobody else's.
Leaves to others: connecting (``fleet``), and every decision (the duty).
"""

from __future__ import annotations

from typing import Protocol

from nodeattest_controller.clusters.inventory import ClusterKey
from nodeattest_kube.client import ApiClient, ApiError

__all__ = ["Duty", "Work"]


class Work(Protocol):
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


class Duty(Protocol):
    """One controller that works in every connected cluster."""

    def of(self, key: ClusterKey, client: ApiClient) -> Work | None:
        """Make the work of one connection; ``client`` is the workload cluster's. None: nothing to do there."""
        ...
