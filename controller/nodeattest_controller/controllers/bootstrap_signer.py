"""Runs the token controllers of ``nodeattest_discovery`` in each cluster, and reports what they do.

Writes and failures reach the log and the metrics. Where a permission is missing, an Event on the Cluster names the
manifest that grants it. No token's secret gets here.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from nodeattest_controller.metrics import write_outcome
from nodeattest_controller.runtime.cluster_controller import ClusterEvents, ReconcilerDeps, supervise
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.settings import Settings
from nodeattest_discovery.controllers.bootstrap_signer import TokenController
from nodeattest_discovery.controllers.token_controllers import TokenControllers
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Conflict, Forbidden
from nodeattest_kube.periodic import call_every

_CHECK_PERIOD: Final = 5.0
"""Seconds between two checks whether the informers are up to date; no request is sent for it."""
REMEDY: Final = (
    "apply manifests/workload-discovery in the workload cluster, or take these controllers from --controllers"
)
REASON: Final = "TokenControllerForbidden"


def enabled_controllers(settings: Settings) -> frozenset[TokenController]:
    return frozenset(controller for controller in TokenController if settings.enabled(controller))


class TokenPairRunner:
    """The pair of one cluster (``ClusterRunner``), and what it reports (``Observer``)."""

    def __init__(
        self, deps: ReconcilerDeps, enabled: frozenset[TokenController], key: ClusterKey, client: ApiClient
    ) -> None:
        self._events = ClusterEvents(deps, key, logging.getLogger(__name__))
        self._metrics = deps.metrics
        self._pair = TokenControllers(client, enabled, observer=self, supervise=partial(supervise, cluster=key))

    @property
    def synced(self) -> bool:
        return self._pair.synced

    @property
    def last_error(self) -> ApiError | None:
        return self._pair.last_error

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pair.run())
            tasks.create_task(call_every(_CHECK_PERIOD, self.report_missing_right))

    def changed(self, keys: frozenset[str] | None) -> None:
        """Do nothing: all that these controllers read is in the workload cluster."""

    def report_missing_right(self) -> None:
        """Report that the pair may not even read what it needs."""
        if isinstance(self.last_error, Forbidden):
            self._report("cannot watch tokens and cluster-info", self.last_error)

    def signed(self, tokens: int, seconds: float) -> None:
        self._metrics.token_write(TokenController.SIGNER, "written")
        self._events.info("signed cluster-info", tokens=tokens, seconds=round(seconds, 4))

    def cleaned(self, name: str) -> None:
        self._metrics.token_write(TokenController.CLEANER, "written")
        self._events.info("deleted an expired bootstrap token", secret=name)

    def failed(self, controller: TokenController, error: ApiError, delay: float) -> None:
        self._metrics.token_write(controller, write_outcome(error))
        if isinstance(error, Conflict):
            return
        what = "cannot sign cluster-info" if controller is TokenController.SIGNER else "cannot delete an expired token"
        self._report(what, error, delay=delay)

    def _report(self, what: str, error: ApiError, **more: object) -> None:
        self._events.report(what, error, reason=REASON, remedy=REMEDY, **more)
