"""Interfaces of controllers that work in every connected workload cluster.

A ``ClusterController`` is one controller; for each connection it makes a ``ClusterRunner``, which runs as long as the
connection exists and is notified when an object of the cluster changes in the management cluster.
Leaves to others: connecting (``cluster_manager``), restarting after bugs (``supervisor``), every decision.
"""

from __future__ import annotations

from typing import Protocol

from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_kube.client import ApiClient, ApiError

__all__ = ["ClusterController", "ClusterRunner"]


class ClusterRunner(Protocol):
    """One controller in one connected cluster."""

    @property
    def synced(self) -> bool:
        """Whether all that is watched has been read once."""
        ...

    @property
    def last_error(self) -> ApiError | None:
        """The error that keeps an informer from being up to date; None while there is none."""
        ...

    async def run(self) -> None:
        """Run until cancelled. An exception is a bug: this runner is made anew after a while, and no other."""
        ...

    def changed(self, keys: frozenset[str] | None, /) -> None:
        """Take in a change of the cluster's objects in the management cluster (``changes.ClusterChanged``).

        Must not block.
        """
        ...


class ClusterController(Protocol):
    """One controller that works in every connected cluster."""

    @property
    def name(self) -> str:
        """The controller's name, for the log."""
        ...

    def for_cluster(self, key: ClusterKey, client: ApiClient) -> ClusterRunner | None:
        """Make the runner of one connection; ``client`` is the workload cluster's. None: nothing to do there."""
        ...
