"""The controller ``hardening``: for each connected cluster a reconciler, and the watch that triggers it.

The block is installed within a second after the API server of a new cluster answers, before its control plane counts
as initialized. A certificate of the in-tree signer triggers an audit within seconds; otherwise one follows each resync
period. If no policy selects the cluster any more, the block is removed.
"""

from __future__ import annotations

import asyncio
import logging
import random as random_module
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final
from weakref import WeakValueDictionary

from nodeattest_controller.controllers.auto_approval.reconciler import AutoApprovalReconciler
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.cluster_controller import CSRDenied, CSRIssued
from nodeattest_controller.runtime.cluster_log import ClusterEvents
from nodeattest_controller.runtime.guard import ClusterGuard
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError
from nodeattest_kube.events import EventRecorder
from nodeattest_kube.periodic import PeriodicReconciler, ResyncConfig

log = logging.getLogger(__name__)
_RESYNC: Final = ResyncConfig(period=300.0, share_of_changes=50)
"""The resync finds changes of RBAC and other authorizers. An audit reads all bootstrap tokens, and each certificate is
a change; one of the in-tree signer is urgent, and does not wait for its share."""
_FIRST_CONTACT: Final = 1.0
"""Seconds between two attempts while the control plane is not initialized: kubeadm makes its bindings some seconds
after the API server answers (cmd/kubeadm/app/cmd/init.go, the order of its phases)."""
_FIRST_CONTACT_LIMIT: Final = 5.0
"""Seconds that one such attempt may take."""
Sleep = Callable[[float], Awaitable[None]]


class AutoApprovalController:
    """Makes the runner of each cluster (``ClusterController``), and notifies it of issued certificates."""

    name = "hardening"

    def __init__(
        self,
        management: ManagementCache,
        *,
        guard: ClusterGuard,
        events: EventRecorder,
        metrics: Metrics,
        now: Callable[[], datetime],
        resync: ResyncConfig = _RESYNC,
        random: Callable[[], float] = random_module.random,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._management, self._guard, self._events, self._metrics = management, guard, events, metrics
        self._now, self._random, self._sleep = now, random, sleep
        self._resync = resync
        self._runners: WeakValueDictionary[ClusterKey, AutoApprovalRunner] = WeakValueDictionary()

    def for_cluster(self, key: ClusterKey, client: ApiClient) -> AutoApprovalRunner:
        """Make the runner of one connection."""
        reconciler = AutoApprovalReconciler(
            client,
            self._management,
            events=ClusterEvents(key, self._management, self._events, log=log, clock=time.monotonic),
            metrics=self._metrics,
            guard=self._guard,
            now=self._now,
            sleep=self._sleep,
        )
        runner = self._runners[key] = AutoApprovalRunner(reconciler, self._resync, random=self._random)
        return runner

    def granted(self, verdict: CSRIssued) -> None:
        """Trigger an audit: this may have been the last Node that was not in the ledger."""
        runner = self._runners.get(verdict.cluster)
        if runner is not None:
            runner.changed()

    def refused(self, verdict: CSRDenied) -> None:
        """Do nothing: a denial changes no permission."""


class AutoApprovalRunner(PeriodicReconciler):
    """What runs in one cluster (``ClusterRunner``): the audits, and the watch beside them."""

    def __init__(
        self, reconciler: AutoApprovalReconciler, resync: ResyncConfig, *, random: Callable[[], float]
    ) -> None:
        super().__init__(reconciler, resync, random=random)
        self._reconciler = reconciler
        reconciler.hurry = reconciler.certificates.on_change = self.hurry

    async def run(self) -> None:
        """Run until cancelled; removes the block where no policy selects the cluster any more."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._install_at_first_contact())
                tasks.create_task(super().run())
                tasks.create_task(self._reconciler.certificates.run())
        finally:
            await self._reconciler.remove_block()

    async def _install_at_first_contact(self) -> None:
        """Retry every second until the API server of a new cluster answers; later each audit verifies it."""
        while self._reconciler.is_uninitialized():
            try:
                async with asyncio.timeout(_FIRST_CONTACT_LIMIT):
                    if await self._reconciler.install_block():
                        self.hurry()
                        return
            except (ApiError, TimeoutError):
                pass  # the machine is booting
            await self._reconciler.sleep(_FIRST_CONTACT)
