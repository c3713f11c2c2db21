"""Which clusters this replica serves: the seam between one leader and clusters shared out among replicas.

Promises: the answer is for this instant, and turns False by time alone; so ask again after each wait, before a write.
Leaves to others: writes that are safe all the same when a paused replica makes them late (compare-and-swap).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from nodeattest_controller.runtime.indexes import ClusterKey

__all__ = ["LeaderOwnsAll", "Ownership"]


class Ownership(Protocol):
    """Who serves a cluster."""

    def owns(self, cluster: ClusterKey) -> bool:
        """Tell whether this replica serves the cluster now: reads and writes in it, and of its Machines' objects."""
        ...

    def owns_management(self) -> bool:
        """Tell whether this replica does now what is of no one cluster, such as the status of policies."""
        ...


class LeaderOwnsAll:
    """The leader's: it serves every cluster, while it leads."""

    def __init__(self, may_act: Callable[[], bool]) -> None:
        self._may_act = may_act

    def owns(self, cluster: ClusterKey) -> bool:
        """Serve it."""
        return self._may_act()

    def owns_management(self) -> bool:
        """Do it."""
        return self._may_act()
