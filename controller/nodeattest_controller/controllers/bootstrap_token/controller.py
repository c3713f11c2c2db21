"""Runs the reconciler of bootstrap tokens in each cluster, and reports what it does.

Promises: nothing is done in a cluster that is paused, being deleted, another replica's, or under ``enforcement:
Audit``; a run follows a change within seconds, where there are thousands of tokens within a minute, and comes after a
minute in any case; failures are retried with back-off and reported once in ten minutes, a missing permission with the
manifest that grants it.
Leaves to others: the work (``reconciler``), connections (``cluster_manager``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from nodeattest_controller.controllers.bootstrap_token.reconciler import (
    CONTROLLER,
    BootstrapTokenReconciler,
    TokenEvents,
)
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.cluster_controller import PeriodicController
from nodeattest_controller.runtime.cluster_log import ClusterEvents
from nodeattest_controller.runtime.guard import ClusterGuard
from nodeattest_controller.runtime.kubeadm_configs import KubeadmConfigs
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError
from nodeattest_kube.events import EventRecorder
from nodeattest_kube.periodic import ResyncConfig
from nodeattest_parsing.values import JsonObject

log = logging.getLogger(__name__)
_RESYNC: Final = ResyncConfig(share_of_changes=50)
"""A run reads all tokens and Machines, and each machine that joins is a change: thousands pay for it once a minute."""
_MAX_CLOCK_SKEW: Final = timedelta(days=1)
"""A server's clock that differs more from ours is not believed."""


def bootstrap_token_controller(
    management: ManagementCache,
    *,
    configs: KubeadmConfigs,
    guard: ClusterGuard,
    events: EventRecorder,
    metrics: Metrics,
    now: Callable[[], datetime],
    resync: ResyncConfig = _RESYNC,
) -> PeriodicController:
    """Make the controller of the tokens of all clusters."""

    def task(client: ApiClient, cluster_events: ClusterEvents) -> _Task:
        return _Task(client, management, TokenEvents(cluster_events, metrics), guard=guard, configs=configs, now=now)

    return PeriodicController(name=CONTROLLER, task=task, management=management, events=events, log=log, resync=resync)


class _Task:
    """One cluster's tokens (``PeriodicTask``)."""

    def __init__(
        self,
        client: ApiClient,
        management: ManagementCache,
        events: TokenEvents,
        *,
        guard: ClusterGuard,
        configs: KubeadmConfigs,
        now: Callable[[], datetime],
    ) -> None:
        self._client, self._events, self._guard, self._now = client, events, guard, now
        self._reconciler = BootstrapTokenReconciler(
            events.key, client, management, configs, events, may_write=lambda: self._writable_cluster() is not None
        )

    async def reconcile(self) -> float | None:
        """Reconcile the tokens; soon again where one of them has to be seen twice."""
        cluster = self._writable_cluster()
        if cluster is None:
            return None
        theirs, ours = self._client.server_time(), self._now()  # their API server decides what has expired
        believed = theirs is not None and abs(theirs - ours) < _MAX_CLOCK_SKEW
        return await self._reconciler.reconcile(cluster, theirs if theirs is not None and believed else ours)

    async def failed(self, error: ApiError, failures: int, delay: float) -> None:
        """Report that the tokens, or the objects that they are for, cannot be read."""
        if not self._client.has_reported(error):
            self._events.trouble("cannot set the ends of bootstrap tokens", error, failures=failures, delay=delay)

    def _writable_cluster(self) -> JsonObject | None:
        """Return the Cluster if its tokens may be written now."""
        enforced = self._guard.enforced_cluster(self._events.key)
        return enforced[0] if enforced is not None else None
