"""Runs the reconciler of bootstrap tokens in each cluster, and reports what it does.

Promises: nothing is done in a cluster that is paused, being deleted, another replica's, or under ``enforcement:
Audit``; a run follows a change within seconds, where there are thousands of tokens within a minute, and comes after a
minute in any case; failures are retried with back-off and reported once in ten minutes, a missing permission with the
manifest that grants it.
Leaves to others: the work (``reconciler``), connections (``cluster_manager``).
"""

from __future__ import annotations

import logging
import random as random_module
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from nodeattest_controller.controllers.bootstrap_token.decide import Owner
from nodeattest_controller.controllers.bootstrap_token.reconciler import BootstrapTokenReconciler
from nodeattest_controller.metrics import Metrics, write_outcome
from nodeattest_controller.runtime.cluster_log import ClusterEvents
from nodeattest_controller.runtime.guard import ClusterGuard
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.kubeadm_configs import KubeadmConfigs
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Forbidden
from nodeattest_kube.events import EventRecorder, ObjectRef
from nodeattest_kube.periodic import PeriodicReconciler, ResyncConfig
from nodeattest_parsing.values import JsonObject

_LOG: Final = logging.getLogger(__name__)
CONTROLLER: Final = "bootstrap-token"
REASON: Final = "BootstrapTokenForbidden"
LOST: Final = "BootstrapTokenLost"
REMEDY: Final = (
    "apply manifests/workload-bootstrap-token in the workload cluster, or take bootstrap-token from --controllers"
)
_RESYNC: Final = ResyncConfig(share_of_changes=50)
"""A run reads all tokens and Machines, and each machine that joins is a change: thousands pay for it once a minute."""
_MAX_CLOCK_SKEW: Final = timedelta(days=1)
"""A server's clock that differs more from ours is not believed."""


class BootstrapTokenController:
    """Makes the reconciler of each cluster (``ClusterController``)."""

    name = CONTROLLER

    def __init__(
        self,
        management: ManagementCache,
        *,
        configs: KubeadmConfigs,
        guard: ClusterGuard,
        events: EventRecorder,
        metrics: Metrics,
        now: Callable[[], datetime],
        resync: ResyncConfig = _RESYNC,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self._management = management
        self._configs = configs
        self._guard = guard
        self._events = events
        self._metrics = metrics
        self._now = now
        self._resync = resync
        self._clock = clock
        self._random = random

    def for_cluster(self, key: ClusterKey, client: ApiClient) -> PeriodicReconciler:
        """Make the reconciler of one connection."""
        events = ClusterEvents(key, self._management, self._events, log=_LOG, clock=self._clock)
        task = _Task(
            key,
            client,
            self._management,
            TokenEvents(events, self._metrics),
            guard=self._guard,
            configs=self._configs,
            now=self._now,
        )
        return PeriodicReconciler(task, self._resync, clock=self._clock, random=self._random)


class _Task:
    """One cluster's tokens (``PeriodicTask``)."""

    def __init__(
        self,
        key: ClusterKey,
        client: ApiClient,
        management: ManagementCache,
        events: TokenEvents,
        *,
        guard: ClusterGuard,
        configs: KubeadmConfigs,
        now: Callable[[], datetime],
    ) -> None:
        self._key = key
        self._client = client
        self._events = events
        self._guard = guard
        self._now = now
        self._reconciler = BootstrapTokenReconciler(
            key, client, management, configs, events, may_write=lambda: self._writable_cluster() is not None
        )

    async def reconcile(self) -> float | None:
        """Reconcile the tokens; soon again where one of them has to be seen twice."""
        cluster = self._writable_cluster()
        if cluster is None:
            return None
        return await self._reconciler.reconcile(cluster, self._server_time())

    async def failed(self, error: ApiError, failures: int, delay: float) -> None:
        """Report that the tokens, or the objects that they are for, cannot be read."""
        if not self._client.has_reported(error):
            self._events.cannot_reconcile(error, failures, delay)

    def _writable_cluster(self) -> JsonObject | None:
        """Return the Cluster if its tokens may be written now."""
        enforced = self._guard.enforced_cluster(self._key)
        return enforced[0] if enforced is not None else None

    def _server_time(self) -> datetime:
        """Tell the time by the clock that decides on the tokens: the workload cluster's API server's."""
        theirs, ours = self._client.server_time(), self._now()
        return theirs if theirs is not None and abs(theirs - ours) < _MAX_CLOCK_SKEW else ours


class TokenEvents:
    """Reports what becomes of one cluster's tokens (``reconciler.Recorder``)."""

    def __init__(self, events: ClusterEvents, metrics: Metrics) -> None:
        self._events = events
        self._metrics = metrics

    def written(self, what: str, token_id: str, owner: str) -> None:
        """Count and log a write."""
        self._metrics.token_write(CONTROLLER, "written")
        self._events.info("bootstrap token", what=what, token=token_id, owner=owner)

    def failed(self, error: ApiError, token_id: str) -> None:
        """Count and report a failed write."""
        self._metrics.token_write(CONTROLLER, write_outcome(error))
        self._trouble("cannot write a bootstrap token", error, token=token_id)

    def cannot_reconcile(self, error: ApiError, failures: int, delay: float) -> None:
        """Report that the tokens, or the objects that they are for, cannot be read."""
        self._trouble("cannot set the ends of bootstrap tokens", error, failures=failures, delay=delay)

    def lost(self, owner: Owner) -> None:
        """Report on the machine that it cannot join with the token that it has."""
        if not self._events.warn(("lost", owner.uid), "a machine's bootstrap token is gone", owner=owner.key):
            return
        machine = ObjectRef(
            api_version=owner.api_version, kind=owner.kind, namespace=owner.namespace, name=owner.name, uid=owner.uid
        )
        message = (
            "the bootstrap token that its bootstrap data holds is not there, has run out, or is not the bootstrap "
            "provider's: a machine that has not joined yet cannot; delete the Machine, so that another is made with a "
            "new token"
        )
        self._events.event("Warning", LOST, message, on=machine)

    def unreadable(self, owner: Owner, detail: str) -> None:
        """Report that a bootstrap configuration could not be read."""
        about = ("unreadable", owner.uid)
        self._events.warn(about, "cannot read a bootstrap configuration", owner=owner.key, detail=detail)

    def _trouble(self, what: str, error: ApiError, **more: object) -> None:
        remedy = REMEDY if isinstance(error, Forbidden) else ""
        due = self._events.warn((what, type(error)), what, error=str(error), remedy=remedy, **more)
        if due and remedy:
            self._events.event("Warning", REASON, f"{CONTROLLER} {what}: {error}; {remedy}")
