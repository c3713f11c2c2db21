"""The controllers ``bootstrap-signer`` and ``token-cleaner`` in the fleet: a pair a cluster, and what operators hear.

Promises: what they do and what keeps them from it reaches the log (once a minute and cluster), the metrics, and, where
a right is missing, an Event on the Cluster that names the manifest which grants it. No token's secret gets here.
Leaves to others: the work (``nodeattest_discovery.controllers``), connections (``fleet``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.event_limiter import EventLimiter, outcome_of
from nodeattest_controller.runtime.events import EventRecorder
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.objectref import cluster_ref
from nodeattest_controller.settings import Settings
from nodeattest_discovery.controllers.deps import TokenController
from nodeattest_discovery.controllers.token_controllers import TokenControllers
from nodeattest_kube.client import ApiClient, ApiError, Conflict, Forbidden

__all__ = [
    "EVENT_PERIOD",
    "LOG_PERIOD",
    "REASON",
    "REMEDY",
    "Reporter",
    "TokenPairController",
    "TokenPairRunner",
    "enabled_controllers",
]

_LOG: Final = logging.getLogger(__name__)
LOG_PERIOD: Final = 60.0
"""Seconds between two lines about one controller's trouble in one cluster."""
EVENT_PERIOD: Final = 600.0
"""Seconds between two Events about it."""
LOOK_PERIOD: Final = 5.0
"""Seconds between two looks at whether the watches are followed; nobody is asked for it."""
REMEDY: Final = (
    "apply manifests/workload-discovery in the workload cluster, or take these controllers from --controllers"
)
REASON: Final = "TokenControllerForbidden"


class TokenPairController:
    """Makes and runs the pair of each cluster."""

    def __init__(
        self,
        management: ManagementCache,
        enabled: frozenset[TokenController],
        *,
        events: EventRecorder,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._management = management
        self._enabled = enabled
        self._events = events
        self._metrics = metrics
        self._clock = clock

    def of(self, key: ClusterKey, client: ApiClient) -> TokenPairRunner | None:
        """Make the pair of one cluster; None where none of them is enabled."""
        if not self._enabled:
            return None
        reporter = Reporter(key, self._management, events=self._events, metrics=self._metrics, clock=self._clock)
        return TokenPairRunner(TokenControllers(client, self._enabled, observer=reporter), reporter)


class TokenPairRunner:
    """The pair of one cluster at work."""

    def __init__(self, pair: TokenControllers, reporter: Reporter) -> None:
        self._pair = pair
        self._reporter = reporter

    @property
    def synced(self) -> bool:
        """Whether tokens and cluster-info have been read once."""
        return self._pair.synced

    @property
    def last_error(self) -> ApiError | None:
        """What keeps a watch from being followed; None while all is well."""
        return self._pair.last_error

    async def run(self) -> None:
        """Serve the cluster until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pair.run())
            while True:
                await asyncio.sleep(LOOK_PERIOD)
                if isinstance(self._pair.last_error, Forbidden):
                    self._reporter.may_not_watch(self._pair.last_error)

    def changed(self) -> None:
        """Do nothing: all that matters to these stands in the workload cluster."""


def enabled_controllers(settings: Settings) -> frozenset[TokenController]:
    """Read which of the pair run."""
    return frozenset(controller for controller in TokenController if settings.enabled(controller))


class Reporter:
    """Tells what the pair of one cluster does (``Observer``)."""

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

    def signed(self, tokens: int, seconds: float) -> None:
        """Count and log a signed cluster-info."""
        self._metrics.token_write(TokenController.SIGNER, "written")
        self._metrics.signing_seconds(seconds)
        _LOG.info("signed cluster-info", extra=fields(cluster=self._key, tokens=tokens, seconds=round(seconds, 4)))

    def cleaned(self, name: str) -> None:
        """Count and log a deleted token."""
        self._metrics.token_write(TokenController.CLEANER, "written")
        _LOG.info("deleted an expired bootstrap token", extra=fields(cluster=self._key, secret=name))

    def failed(self, controller: TokenController, error: ApiError, delay: float) -> None:
        """Count a failed write, and tell of it unless somebody else was merely faster."""
        self._metrics.token_write(controller, outcome_of(error))
        if isinstance(error, Conflict):
            return
        what = "cannot sign cluster-info" if controller is TokenController.SIGNER else "cannot delete an expired token"
        if self._tellings.may_tell(f"log {controller}", LOG_PERIOD):
            remedy = REMEDY if isinstance(error, Forbidden) else ""
            _LOG.warning(
                what,
                extra=fields(cluster=self._key, error=error.reason, message_=error.message, delay=delay, remedy=remedy),
            )
        if isinstance(error, Forbidden):
            self._tell_on_cluster(controller, f"{controller} {what}: {error}")

    def may_not_watch(self, error: Forbidden) -> None:
        """Tell that what the pair needs may not even be read; the reflector has logged the server's answer."""
        who = " and ".join(sorted(TokenController))
        if self._tellings.may_tell("log watch", LOG_PERIOD):
            _LOG.warning("cannot follow tokens and cluster-info", extra=fields(cluster=self._key, remedy=REMEDY))
        self._tell_on_cluster("watch", f"{who} cannot follow tokens and cluster-info: {error}")

    def _tell_on_cluster(self, about: str, message: str) -> None:
        cluster = self._management.cluster(self._key)
        if cluster is None or not self._tellings.may_tell(f"event {about}", EVENT_PERIOD):
            return
        self._events.record(cluster_ref(cluster), "Warning", REASON, f"{message}; {REMEDY}")
