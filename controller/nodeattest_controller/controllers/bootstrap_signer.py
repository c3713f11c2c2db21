"""Runs the token controllers of ``nodeattest_discovery`` in each cluster, and reports what they do.

Writes and failures reach the log (once a minute and cluster), the metrics, and, where a permission is missing, an
Event on the Cluster that names the manifest which grants it. No token's secret gets here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import Final

from nodeattest_controller.metrics import Metrics, write_outcome
from nodeattest_controller.runtime.cluster_controller import supervise
from nodeattest_controller.runtime.cluster_log import ClusterEvents
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.settings import Settings
from nodeattest_discovery.controllers.bootstrap_signer import TokenController
from nodeattest_discovery.controllers.token_controllers import TokenControllers
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Conflict, Forbidden
from nodeattest_kube.events import EventRecorder
from nodeattest_kube.periodic import call_every

log = logging.getLogger(__name__)
_LOG_PERIOD: Final = 60.0
"""Seconds between two lines about one controller's trouble in one cluster."""
_CHECK_PERIOD: Final = 5.0
"""Seconds between two checks whether the informers are up to date; no request is sent for it."""
REMEDY: Final = (
    "apply manifests/workload-discovery in the workload cluster, or take these controllers from --controllers"
)
REASON: Final = "TokenControllerForbidden"


class TokenPairController:
    """Makes the pair of each cluster (``ClusterController``)."""

    name = "bootstrap-signer and token-cleaner"

    def __init__(
        self,
        management: ManagementCache,
        enabled: frozenset[TokenController],
        *,
        events: EventRecorder,
        metrics: Metrics,
    ) -> None:
        self._management, self._enabled, self._events, self._metrics = management, enabled, events, metrics

    def for_cluster(self, key: ClusterKey, client: ApiClient) -> TokenPairRunner:
        """Make the pair of one cluster."""
        events = ClusterEvents(key, self._management, self._events, log=log, clock=time.monotonic)
        return TokenPairRunner(client, self._enabled, events, self._metrics)


def enabled_controllers(settings: Settings) -> frozenset[TokenController]:
    """Read which of the pair run."""
    return frozenset(controller for controller in TokenController if settings.enabled(controller))


class TokenPairRunner:
    """The pair of one cluster (``ClusterRunner``), and what it reports (``Observer``)."""

    def __init__(
        self, client: ApiClient, enabled: frozenset[TokenController], events: ClusterEvents, metrics: Metrics
    ) -> None:
        self._events = events
        self._metrics = metrics
        self._pair = TokenControllers(client, enabled, observer=self, supervise=partial(supervise, cluster=events.key))

    @property
    def synced(self) -> bool:
        """Whether tokens and cluster-info have been read once."""
        return self._pair.synced

    @property
    def last_error(self) -> ApiError | None:
        """The error that keeps an informer from being up to date; None while there is none."""
        return self._pair.last_error

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pair.run())
            tasks.create_task(call_every(_CHECK_PERIOD, self.report_missing_right))

    def changed(self, keys: frozenset[str] | None) -> None:
        """Do nothing: all that these controllers read is in the workload cluster."""

    def report_missing_right(self) -> None:
        """Report that the pair may not even read what it needs; the reflector has logged the server's answer."""
        if isinstance(self.last_error, Forbidden):
            self._events.warn(("log", "watch"), "cannot follow tokens and cluster-info", _LOG_PERIOD, remedy=REMEDY)
            self._event("watch", f"{' and '.join(sorted(TokenController))} may not watch: {self.last_error}")

    def signed(self, tokens: int, seconds: float) -> None:
        """Count and log a signed cluster-info."""
        self._metrics.token_write(TokenController.SIGNER, "written")
        self._events.info("signed cluster-info", tokens=tokens, seconds=round(seconds, 4))

    def cleaned(self, name: str) -> None:
        """Count and log a deleted token."""
        self._metrics.token_write(TokenController.CLEANER, "written")
        self._events.info("deleted an expired bootstrap token", secret=name)

    def failed(self, controller: TokenController, error: ApiError, delay: float) -> None:
        """Count a failed write, and report it unless another writer was merely faster."""
        self._metrics.token_write(controller, write_outcome(error))
        if isinstance(error, Conflict):
            return
        what = "cannot sign cluster-info" if controller is TokenController.SIGNER else "cannot delete an expired token"
        remedy = REMEDY if isinstance(error, Forbidden) else ""
        more = {"error": error.reason, "message_": error.message, "delay": delay, "remedy": remedy}
        self._events.warn(("log", controller), what, _LOG_PERIOD, **more)
        if remedy:
            self._event(controller, f"{controller} {what}: {error}")

    def _event(self, about: str, message: str) -> None:
        if self._events.allow(("event", about)):
            self._events.event("Warning", REASON, f"{message}; {REMEDY}")
