"""Which clusters this replica serves: the seam between one leader and clusters shared out among replicas."""

from __future__ import annotations

from typing import Protocol

from nodeattest_controller.clusters.inventory import ClusterKey

__all__ = ["Everything", "Ownership"]


class Ownership(Protocol):
    """Who serves a cluster."""

    def owns(self, cluster: ClusterKey) -> bool:
        """Tell whether this replica serves the cluster now."""
        ...


class Everything:
    """The leader's: it serves every cluster."""

    def owns(self, cluster: ClusterKey) -> bool:  # noqa: ARG002 - the seam's signature
        """Serve it."""
        return True
