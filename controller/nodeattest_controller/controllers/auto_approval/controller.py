"""The controller ``hardening``: for each connected cluster a reconciler, and the watches that trigger it.

Promises: the block is installed within a second after the API server of a new cluster answers, before its control plane
counts as initialized; a new permission or certificate triggers an audit within seconds, and otherwise one follows each
resync period. When no policy selects the cluster any more, the block is removed.
Leaves to others: connections (``runtime.cluster_manager``), what is done and reported (``reconciler``).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from datetime import datetime
from typing import Final
from weakref import WeakValueDictionary

from nodeattest_controller.controllers.auto_approval.reconciler import AutoApprovalReconciler
from nodeattest_controller.controllers.auto_approval.status import StatusReporter
from nodeattest_controller.logs import fields
from nodeattest_controller.runtime.csr_observer import CSRDenied, CSRIssued
from nodeattest_controller.runtime.guard import Ownership
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_kube.client import ApiClient, ApiError
from nodeattest_kube.periodic import PeriodicReconciler, ResyncConfig

__all__ = ["AutoApprovalController", "AutoApprovalRunner"]

_LOG: Final = logging.getLogger(__name__)
_PACE: Final = ResyncConfig(period=300.0)
"""The resync finds what no watch shows: other authorizers, and missed events."""
_FIRST_CONTACT: Final = 1.0
"""Seconds between two attempts while the control plane is not initialized: kubeadm makes its bindings some seconds
after the API server answers (cmd/kubeadm/app/cmd/init.go, the order of its phases)."""
_FIRST_CONTACT_LIMIT: Final = 5.0
"""Seconds that one such attempt may take."""
_REMOVAL_LIMIT: Final = 5.0
"""Seconds for removing the block when a cluster is disconnected."""


class AutoApprovalController:
    """Makes the runner of each cluster, and notifies it of issued certificates."""

    name = "hardening"

    def __init__(
        self,
        management: ManagementCache,
        report: StatusReporter,
        *,
        ownership: Ownership,
        enabled: bool,
        now: Callable[[], datetime],
        pace: ResyncConfig = _PACE,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._management = management
        self._report = report
        self._ownership = ownership
        self._enabled = enabled
        self._now = now
        self._pace = pace
        self._clock = clock
        self._chance = chance
        self._runners: WeakValueDictionary[ClusterKey, AutoApprovalRunner] = WeakValueDictionary()

    def for_cluster(self, key: ClusterKey, client: ApiClient) -> AutoApprovalRunner | None:
        """Make the runner of one connection; None where the controller is disabled."""
        if not self._enabled:
            return None

        def hurry() -> None:
            work.hurry()

        reconciler = AutoApprovalReconciler(
            key,
            client,
            self._management,
            self._report,
            ownership=self._ownership,
            now=self._now,
            clock=self._clock,
            hurry=hurry,
        )
        work = AutoApprovalRunner(
            reconciler, PeriodicReconciler(reconciler, self._pace, clock=self._clock, random=self._chance)
        )
        self._runners[key] = work
        return work

    def granted(self, verdict: CSRIssued) -> None:
        """Trigger an audit: this may have been the last Node that was not in the ledger."""
        work = self._runners.get(verdict.cluster)
        if work is not None:
            work.changed(None)

    def refused(self, verdict: CSRDenied) -> None:
        """Do nothing: a denial changes no permission."""


class AutoApprovalRunner:
    """What runs in one cluster (``ClusterRunner``)."""

    def __init__(self, reconciler: AutoApprovalReconciler, audits: PeriodicReconciler) -> None:
        self._reconciler = reconciler
        self._audits = audits

    @property
    def synced(self) -> bool:
        """True: this says nothing of how requests are served."""
        return True

    @property
    def last_error(self) -> ApiError | None:
        """None: failures are reported by the condition."""
        return None

    def changed(self, keys: frozenset[str] | None) -> None:
        """Trigger an audit soon."""
        self._audits.changed(keys)

    def hurry(self) -> None:
        """Trigger an audit at once."""
        self._audits.hurry()

    async def run(self) -> None:
        """Serve until cancelled; removes the block where no policy selects the cluster any more."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._install_at_first_contact())
                tasks.create_task(self._audits.run())
                for watch in self._reconciler.watches():
                    tasks.create_task(watch)
        finally:
            await self._leave()

    async def _install_at_first_contact(self) -> None:
        """Retry every second until the API server of a new cluster answers; later each audit verifies it."""
        while self._reconciler.is_uninitialized():
            try:
                async with asyncio.timeout(_FIRST_CONTACT_LIMIT):
                    if await self._reconciler.install_block():
                        self._audits.hurry()
                        return
            except (ApiError, TimeoutError):
                pass  # the machine is booting
            await asyncio.sleep(_FIRST_CONTACT)

    async def _leave(self) -> None:
        if not self._reconciler.is_left():
            return
        try:
            async with asyncio.timeout(_REMOVAL_LIMIT):
                await self._reconciler.remove_block()
        except (ApiError, TimeoutError) as error:
            _LOG.warning(
                "cannot remove the block of in-tree approvals; see docs/in-tree-certificates.md",
                extra=fields(cluster=self._reconciler.key, error=str(error)),
            )
