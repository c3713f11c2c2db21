"""The controller ``hardening`` at work in each opted-in cluster: one reconciler, and the watches that wake it.

Promises: the block stands in the way from the first second in which the cluster's API server answers, before its
control plane counts as initialized; a permission or a certificate that appears is looked at within seconds, and
otherwise everything is looked at after some minutes. When no policy selects the cluster any more, the block goes.
Leaves to others: connections (``fleet``), what is done and said (``reconciler``).
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

from nodeattest_controller.hardening.reconciler import HardeningReconciler
from nodeattest_controller.hardening.report import Report
from nodeattest_controller.logs import fields
from nodeattest_controller.runtime.csr_observer import CSRDenied, CSRIssued
from nodeattest_controller.runtime.guard import Ownership
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_kube.client import ApiClient, ApiError
from nodeattest_kube.periodic import PeriodicReconciler, ResyncConfig

__all__ = ["ClusterHardening", "HardeningDuty"]

_LOG: Final = logging.getLogger(__name__)
_PACE: Final = ResyncConfig(period=300.0)
"""What no watch shows: other authorizers, and what a watch missed."""
_FIRST_CONTACT: Final = 1.0
"""Seconds between two attempts while the control plane is not initialized: kubeadm makes its bindings some seconds
after the API server answers (cmd/kubeadm/app/cmd/init.go, the order of its phases)."""
_FIRST_CONTACT_LIMIT: Final = 5.0
"""Seconds that one such attempt may take."""
_REMOVAL_LIMIT: Final = 5.0
"""Seconds for taking the block away when a cluster is left."""


class HardeningDuty:
    """Makes what works in each cluster, and lets it hear of certificates."""

    name = "hardening"

    def __init__(
        self,
        management: ManagementCache,
        report: Report,
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
        self._works: WeakValueDictionary[ClusterKey, ClusterHardening] = WeakValueDictionary()

    def for_cluster(self, key: ClusterKey, client: ApiClient) -> ClusterHardening | None:
        """Make the work of one connection; None where the controller does not run."""
        if not self._enabled:
            return None

        def hurry() -> None:
            work.hurry()

        reconciler = HardeningReconciler(
            key,
            client,
            self._management,
            self._report,
            ownership=self._ownership,
            now=self._now,
            clock=self._clock,
            hurry=hurry,
        )
        work = ClusterHardening(
            reconciler, PeriodicReconciler(reconciler, self._pace, clock=self._clock, random=self._chance)
        )
        self._works[key] = work
        return work

    def granted(self, verdict: CSRIssued) -> None:
        """Look again: this may have been the last Node that was not in the ledger."""
        work = self._works.get(verdict.cluster)
        if work is not None:
            work.changed(None)

    def refused(self, verdict: CSRDenied) -> None:
        """Take no notice: a refusal opens and closes nothing."""


class ClusterHardening:
    """What runs in one cluster (``ClusterRunner``)."""

    def __init__(self, reconciler: HardeningReconciler, looks: PeriodicReconciler) -> None:
        self._reconciler = reconciler
        self._looks = looks

    @property
    def synced(self) -> bool:
        """Tell nothing of how requests are served."""
        return True

    @property
    def last_error(self) -> ApiError | None:
        """None: what fails is told by the condition."""
        return None

    def changed(self, keys: frozenset[str] | None) -> None:
        """Look again soon."""
        self._looks.changed(keys)

    def hurry(self) -> None:
        """Look again at once."""
        self._looks.hurry()

    async def run(self) -> None:
        """Serve until cancelled; takes the block away where no policy selects the cluster any more."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._install_at_first_contact())
                tasks.create_task(self._looks.run())
                for watch in self._reconciler.watches():
                    tasks.create_task(watch)
        finally:
            await self._leave()

    async def _install_at_first_contact(self) -> None:
        """Try every second until the API server of a new cluster answers; afterwards each look sees to the block."""
        while self._reconciler.is_unborn():
            try:
                async with asyncio.timeout(_FIRST_CONTACT_LIMIT):
                    if await self._reconciler.install_block():
                        self._looks.hurry()
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
                "cannot take the block of in-tree approvals away; see docs/in-tree-certificates.md",
                extra=fields(cluster=self._reconciler.key, error=str(error)),
            )
