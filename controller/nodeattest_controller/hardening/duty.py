"""The controller ``hardening`` at work in each opted-in cluster: look, remove, look again, tell; then again later.

Promises: nothing is asked of a cluster before its control plane came up, nor while it is paused or on its way out; a
look follows a change within seconds and otherwise after some minutes, and takes no more than a tenth of the time; what
fails is tried again ever later. A kill at any instant costs nothing: each step begins with a look.
Leaves to others: connections (``fleet``), facts (``survey``), what to do (``decide``), telling (``report``).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Final
from weakref import WeakValueDictionary

from nodeattest_controller.hardening.decide import Finding, Why, decide, is_initialized, not_initialized, unverified
from nodeattest_controller.hardening.doors import Grant
from nodeattest_controller.hardening.report import MANAGEMENT_REMEDY, REMEDY, Report
from nodeattest_controller.hardening.survey import Survey
from nodeattest_controller.logs import fields
from nodeattest_controller.model.objects import mapping
from nodeattest_controller.runtime.csr_observer import CSRDenied, CSRIssued
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.ownership import Ownership
from nodeattest_controller.runtime.periodic import PeriodicReconciler, ResyncConfig
from nodeattest_kube.client import ApiClient, ApiError, Conflict, Forbidden, NotFound
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.errors import Denied, Unavailable

__all__ = ["HardeningDuty"]

_LOG: Final = logging.getLogger(__name__)
_LOOKS: Final = 4
"""Looks in one run: after the removal of one binding, of the other, and two for an API server that lags behind."""
_TELLS_AFTER: Final = 3
"""Failures in a row after which the condition says that nobody knows; a short outage is no news."""


_PACE: Final = ResyncConfig(period=300.0)
"""kubeadm makes its bindings again at each upgrade (cmd/kubeadm/app/phases/upgrade/postupgrade.go)."""
_SETTLE: Final = 1.0
"""Seconds after a removal: API servers authorize from caches."""


class _Untold(ApiError):
    """The condition could not be written; that is logged already."""


class HardeningDuty:
    """Makes the work of each cluster, and lets it hear of certificates."""

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
        self._works: WeakValueDictionary[ClusterKey, PeriodicReconciler] = WeakValueDictionary()

    def of(self, key: ClusterKey, client: ApiClient) -> PeriodicReconciler | None:
        """Make the work of one connection; None where the controller does not run."""
        if not self._enabled:
            return None
        survey = Survey(key, client, self._management.inventory, now=self._now, clock=self._clock)
        looker = _Looker(key, survey, self._management, self._report, ownership=self._ownership)
        work = PeriodicReconciler(looker, self._pace, clock=self._clock, chance=self._chance)
        self._works[key] = work
        return work

    def granted(self, verdict: CSRIssued) -> None:
        """Look again: this may have been the last Node that was not in the ledger."""
        work = self._works.get(verdict.cluster)
        if work is not None:
            work.changed()

    def refused(self, verdict: CSRDenied) -> None:
        """Take no notice: a refusal opens and closes nothing."""


class _Looker:
    """One cluster's doors (``looks.Looker``)."""

    def __init__(
        self, key: ClusterKey, survey: Survey, management: ManagementCache, report: Report, *, ownership: Ownership
    ) -> None:
        self._key = key
        self._survey = survey
        self._management = management
        self._report = report
        self._ownership = ownership

    async def look(self) -> bool:
        """Look, act, tell; a change, a certificate or the usual time brings the next look."""
        cluster = self._standing()
        finding = None if cluster is None else await self._found(cluster)
        if finding is not None:
            await self._tell(finding)
        return False

    async def failed(self, error: ApiError, failures: int, pause: float) -> None:
        """Tell of a failure, a missing right at once."""
        if isinstance(error, _Untold):
            return
        _LOG.warning("cannot look after side doors", extra=fields(cluster=self._key, error=str(error), delay=pause))
        with suppress(_Untold):
            if isinstance(error, Forbidden):
                await self._tell(unverified(f"{error}; {REMEDY}"))
            elif failures >= _TELLS_AFTER:
                await self._tell(unverified(f"the cluster does not answer: {error}"))

    def _standing(self) -> JsonObject | None:
        """Return the Cluster if it may be acted for now."""
        cluster = self._management.cluster(self._key) if self._ownership.owns(self._key) else None
        if cluster is None or self._management.is_paused(cluster):
            return None
        return None if "deletionTimestamp" in mapping(cluster, "metadata") else cluster

    async def _found(self, cluster: JsonObject) -> Finding | None:
        if not is_initialized(cluster):
            return not_initialized()
        finding: Finding | None = None
        for look in range(_LOOKS):
            if look:
                await asyncio.sleep(_SETTLE)
            enforce = self._enforces()
            if enforce is None:
                return None
            if isinstance(enforce, Finding):
                return enforce
            decision = decide(await self._survey.look(enforce=enforce))
            finding = decision.finding
            if decision.remove and self._standing() is not None and self._enforces() is True:
                for grant in decision.remove:
                    await self._remove(grant)
            elif finding.reason is not Why.FOREIGN_AUTHORIZER:
                break  # of an authorizer it is told only when it says so again: its cache may lag behind
        return finding

    def _enforces(self) -> bool | Finding | None:
        """Read the policy; None where there is none any more."""
        cluster = self._management.cluster(self._key)
        if cluster is None:
            return None
        try:
            return self._management.policy_of(cluster).enforce
        except Unavailable:
            return None
        except Denied as denied:
            return unverified(f"the policy cannot be used, so nothing is changed: {denied}")

    async def _remove(self, grant: Grant) -> None:
        try:
            await self._survey.remove(grant)
        except (NotFound, Conflict):
            return  # somebody was faster: the next look sees what there is now
        self._report.removed(self._key, grant)

    async def _tell(self, finding: Finding) -> None:
        """Write the condition; raises ``_Untold``."""
        try:
            await self._report.tell(self._key, finding)
        except ApiError as error:
            remedy = MANAGEMENT_REMEDY if isinstance(error, Forbidden) else ""
            _LOG.warning(
                "cannot write the Cluster's condition",
                extra=fields(cluster=self._key, error=str(error), finding=finding.reason, remedy=remedy),
            )
            raise _Untold(error.status, error.reason, error.message) from error
