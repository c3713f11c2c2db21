"""The change bus: passes changes of the management cluster to the controllers that subscribed.

Promises: subscribers register after construction, so no part refers to one that does not exist yet; a bug in one
subscriber is logged and keeps no other from being notified. Subscribers must not block.
"""

from __future__ import annotations

from collections.abc import Callable

from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_kube.notify import notify

__all__ = ["ChangeBus", "ClusterChanged"]

ClusterChanged = Callable[[ClusterKey, frozenset[str] | None], None]
"""Gets a cluster, and the provider IDs and names (``sources.node_key``) of the machines that changed; None: any may
have changed, or the Cluster, its policy, its kubeconfig or its CA."""


class ChangeBus:
    """Subscribers of each kind of change."""

    def __init__(self) -> None:
        self._clusters: list[ClusterChanged] = []
        self._policies: list[Callable[[str], None]] = []

    def subscribe_clusters(self, subscriber: ClusterChanged) -> None:
        """Have a subscriber notified of changed clusters."""
        self._clusters.append(subscriber)

    def subscribe_policies(self, subscriber: Callable[[str], None]) -> None:
        """Have a subscriber notified of a namespace whose policies changed."""
        self._policies.append(subscriber)

    def cluster_changed(self, cluster: ClusterKey, keys: frozenset[str] | None) -> None:
        """Notify of a changed cluster."""
        for subscriber in self._clusters:
            notify(subscriber, cluster, keys)

    def policies_changed(self, namespace: str) -> None:
        """Notify of changed policies."""
        for subscriber in self._policies:
            notify(subscriber, namespace)
