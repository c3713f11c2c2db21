"""The controller ``bootstrap-token`` in the fleet: when it looks, and what operators hear of it.

Promises: nothing is done in a cluster that is paused, on its way out, another replica's, or under ``enforcement:
Audit``; a look follows a change within seconds and otherwise after a minute; what fails is tried again ever later, and
told once in ten minutes, a missing right with the manifest that grants it. A kill at any instant costs nothing: each
look begins anew.
Leaves to others: the work (``keeper``), connections (``fleet``).
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from nodeattest_controller.controllers.bootstrap_token.decide import Owner
from nodeattest_controller.controllers.bootstrap_token.reconciler import BootstrapTokenReconciler
from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model.objects import mapping
from nodeattest_controller.runtime.event_limiter import EventLimiter, outcome_of
from nodeattest_controller.runtime.events import EventRecorder, ObjectRef
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.kubeadm_configs import KubeadmConfigReader
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.objectref import cluster_ref
from nodeattest_controller.runtime.ownership import Ownership
from nodeattest_controller.runtime.periodic import PeriodicReconciler, ResyncConfig
from nodeattest_kube.client import ApiClient, ApiError, Forbidden
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.errors import Denied, Unavailable

__all__ = ["CONTROLLER", "LOST", "REASON", "REMEDY", "BootstrapTokenController"]

_LOG: Final = logging.getLogger(__name__)
CONTROLLER: Final = "bootstrap-token"
REASON: Final = "BootstrapTokenForbidden"
LOST: Final = "BootstrapTokenLost"
REMEDY: Final = (
    "apply manifests/workload-bootstrap-token in the workload cluster, or take bootstrap-token from --controllers"
)
_EVENT_PERIOD: Final = 600.0
"""Seconds between two tellings of the same."""
_CREDIBLE: Final = timedelta(days=1)
"""A server's clock that is further from ours is not believed."""


class BootstrapTokenController:
    """Makes the work of each cluster."""

    def __init__(
        self,
        management: ManagementCache,
        *,
        ownership: Ownership,
        enabled: bool,
        events: EventRecorder,
        metrics: Metrics,
        now: Callable[[], datetime],
        pace: ResyncConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._management = management
        self._ownership = ownership
        self._enabled = enabled
        self._events = events
        self._metrics = metrics
        self._now = now
        self._pace = pace or ResyncConfig()
        self._clock = clock
        self._chance = chance

    def of(self, key: ClusterKey, client: ApiClient) -> PeriodicReconciler | None:
        """Make the work of one connection; None where the controller does not run."""
        if not self._enabled:
            return None
        teller = Reporter(key, self._management, events=self._events, metrics=self._metrics, clock=self._clock)
        configs = KubeadmConfigReader(self._management.client, clock=self._clock)
        keeper = BootstrapTokenReconciler(
            key, client, self._management, configs, teller, may_write=lambda: self._standing(key) is not None
        )
        looker = _Looker(client, keeper, reporter=teller, standing=lambda: self._standing(key), now=self._now)
        return PeriodicReconciler(looker, self._pace, clock=self._clock, chance=self._chance)

    def _standing(self, key: ClusterKey) -> JsonObject | None:
        """Return the Cluster if its tokens may be written now."""
        cluster = self._management.cluster(key) if self._ownership.owns(key) else None
        if cluster is None or self._management.is_paused(cluster):
            return None
        if "deletionTimestamp" in mapping(cluster, "metadata"):
            return None
        try:
            return cluster if self._management.policy_of(cluster).enforce else None
        except (Denied, Unavailable):
            return None


class _Looker:
    """One cluster's tokens (``looks.Looker``)."""

    def __init__(
        self,
        client: ApiClient,
        keeper: BootstrapTokenReconciler,
        *,
        reporter: Reporter,
        standing: Callable[[], JsonObject | None],
        now: Callable[[], datetime],
    ) -> None:
        self._client = client
        self._keeper = keeper
        self._reporter = reporter
        self._standing = standing
        self._now = now

    async def look(self) -> bool:
        """Look after the tokens; tells whether one of them is to be seen again soon."""
        cluster = self._standing()
        return cluster is not None and await self._keeper.look(cluster, self._time())

    async def failed(self, error: ApiError, failures: int, pause: float) -> None:
        """Tell that the tokens, or what they are for, cannot be read."""
        self._reporter.cannot_look(error, pause)

    def _time(self) -> datetime:
        """Tell the time by the clock that judges the tokens: the workload cluster's API server's."""
        theirs, ours = self._client.server_time(), self._now()
        return theirs if theirs is not None and abs(theirs - ours) < _CREDIBLE else ours


class Reporter:
    """Tells what became of one cluster's tokens (``keeper.Teller``)."""

    def __init__(
        self,
        key: ClusterKey,
        management: ManagementCache,
        *,
        events: EventRecorder,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._key = key
        self._management = management
        self._events = events
        self._metrics = metrics
        self._tellings = EventLimiter(clock)

    def written(self, what: str, token_id: str, owner: str) -> None:
        """Count and log a write."""
        self._metrics.token_write(CONTROLLER, "written")
        _LOG.info("bootstrap token", extra=fields(cluster=self._key, what=what, token=token_id, owner=owner))

    def failed(self, error: ApiError, token_id: str) -> None:
        """Count a failed write, and tell of it."""
        self._metrics.token_write(CONTROLLER, outcome_of(error))
        self._trouble("cannot write a bootstrap token", error, token=token_id)

    def cannot_look(self, error: ApiError, delay: float) -> None:
        """Tell that the tokens, or what they are for, cannot even be read."""
        self._trouble("cannot look after bootstrap tokens", error, delay=delay)

    def lost(self, owner: Owner) -> None:
        """Tell on the machine that it will not join by the token that it has."""
        if not self._tellings.may_tell(f"lost {owner.uid}", _EVENT_PERIOD):
            return
        _LOG.warning("a machine's bootstrap token is gone", extra=fields(cluster=self._key, owner=owner.key))
        subject = ObjectRef(
            api_version=owner.api_version,
            kind=owner.kind,
            namespace=owner.namespace,
            name=owner.name,
            uid=owner.uid,
        )
        message = (
            "the bootstrap token that its bootstrap data holds is not there, has run out, or is not the bootstrap "
            "provider's: a machine that has not joined yet cannot; delete the Machine, so that another is made with a "
            "new token"
        )
        self._events.record(subject, "Warning", LOST, message)

    def unreadable(self, owner: Owner, detail: str) -> None:
        """Log that a configuration could not be read."""
        if self._tellings.may_tell(f"unreadable {owner.uid}", _EVENT_PERIOD):
            _LOG.warning(
                "cannot read a bootstrap configuration",
                extra=fields(cluster=self._key, owner=owner.key, detail=detail),
            )

    def _trouble(self, what: str, error: ApiError, **more: object) -> None:
        if not self._tellings.may_tell(f"{what} {type(error).__name__}", _EVENT_PERIOD):
            return
        remedy = REMEDY if isinstance(error, Forbidden) else ""
        _LOG.warning(what, extra=fields(cluster=self._key, error=str(error), remedy=remedy, **more))
        cluster = self._management.cluster(self._key)
        if remedy and cluster is not None:
            message = f"{CONTROLLER} {what}: {error}; {remedy}"
            self._events.record(cluster_ref(cluster), "Warning", REASON, message)
