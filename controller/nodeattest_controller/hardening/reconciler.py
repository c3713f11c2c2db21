"""One cluster's automatic approval, reconciled: block, look, remove, look again, write the condition.

Promises: nothing is removed before the control plane came up, nor while the cluster is paused or on its way out; what
is seen open is removed first and then said, even when it is closed a second later; what cannot be said is Unknown.
A kill at any instant costs nothing: each step begins with a look.
Leaves to others: facts (``survey``, ``certificates``), what to do (``decide``), writing (``report``), when (``duty``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Final

from nodeattest_controller.hardening.approval_block import ApprovalBlock
from nodeattest_controller.hardening.certificates import CertificateLog
from nodeattest_controller.hardening.decide import (
    BESIDES,
    CLOSED_REASONS,
    CONDITION,
    REVIEWED,
    Facts,
    Finding,
    Unverified,
    Why,
    block_not_verified,
    decide,
    is_initialized,
    not_initialized,
    record_incomplete,
    unverified,
    waiting_for_cluster_info,
    with_certificates,
)
from nodeattest_controller.hardening.doors import Grant, Who
from nodeattest_controller.hardening.rbac_watch import RBACWatch
from nodeattest_controller.hardening.report import MANAGEMENT_REMEDY, REMEDY, Report
from nodeattest_controller.hardening.survey import Survey
from nodeattest_controller.logs import fields
from nodeattest_controller.model.objects import condition, items, mapping, moment, text, text_map
from nodeattest_controller.model.policy import selects
from nodeattest_controller.runtime.guard import Ownership
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_kube.client import ApiClient, ApiError, Conflict, Forbidden, NotFound, Unreachable
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.errors import Denied, Unavailable

__all__ = ["HardeningReconciler"]

_LOG: Final = logging.getLogger(__name__)
_LOOKS: Final = 4
"""Times to look in one run: after each of two removals, and twice for an API server that lags behind."""
_RECHECK: Final = 10.0
"""Seconds until the next look while something is waited for that no watch shows."""
_TELLS_AFTER: Final = 3
"""Failures in a row after which the condition says that nobody knows; a short outage is no news."""
_SETTLE: Final = 1.0
"""Seconds after a removal: API servers authorize from caches."""
_EARLIER: Final = 600
"""Characters kept of what an earlier controller said of certificates."""


class _ConditionNotWritten(ApiError):
    """The condition could not be written; that is logged already."""


class HardeningReconciler:
    """One cluster's automatic approval (``looks.Looker``)."""

    def __init__(
        self,
        key: ClusterKey,
        client: ApiClient,
        management: ManagementCache,
        report: Report,
        *,
        ownership: Ownership,
        now: Callable[[], datetime],
        clock: Callable[[], float],
        hurry: Callable[[], None],
    ) -> None:
        self.key = key
        self._management = management
        self._report = report
        self._ownership = ownership
        self._now = now
        self._hurry = hurry
        self._survey = Survey(key, client, management.inventory, now=now, clock=clock)
        self._block = ApprovalBlock(client)
        self._rbac = RBACWatch(client, on_grant=self._on_grant)
        self._certificates = CertificateLog(key, client, management.inventory, now=now, clock=clock, wake=hurry)
        self._open_seen = False
        """Whether a watch has shown a permission that no look has judged yet."""
        self._was_closed: bool | None = None
        """Whether what was said last is that no bootstrap token gets in; None until the condition was read once."""
        self._enforced_from: datetime | None = None
        """When the policy was first seen to say ``Enforce`` after ``Audit``, under which others may approve."""
        self._was_audit = False
        self._nodes: Mapping[str, datetime | None] | None = None
        """When each Node was created, as far as they were counted."""

    def watches(self) -> list[Coroutine[object, object, None]]:
        """Return what runs beside the looks."""
        return [self._rbac.run(), self._certificates.run()]

    # The block

    def is_unborn(self) -> bool:
        """Tell whether the control plane has not come up yet."""
        cluster = self._management.cluster(self.key)
        return cluster is not None and not is_initialized(cluster)

    def is_left(self) -> bool:
        """Tell whether no policy selects the cluster any more, which is ours to serve and not on its way out."""
        cluster = self._cluster()
        return cluster is not None and not self._management.opts_in(cluster)

    async def install_block(self) -> bool:
        """Install it where the policy says ``Enforce``; raises ApiError."""
        if self._cluster() is None or self._enforces() is not True:
            return False
        await self._block.install()
        return True

    async def remove_block(self) -> None:
        """Take it away; raises ApiError."""
        await self._block.remove()

    # Looks

    async def reconcile(self) -> float | None:
        """Look, act, tell; a change, a watch or the usual time brings the next look."""
        self._recall()
        self._review()
        cluster = self._cluster()
        finding = None if cluster is None else await self._found(cluster)
        if finding is not None:
            await self._tell(finding)
        waits = finding is not None and finding.reason in {Why.WAITING_FOR_CLUSTER_INFO, Why.BLOCK_NOT_VERIFIED}
        return _RECHECK if waits else None

    async def failed(self, error: ApiError, failures: int, delay: float) -> None:
        """Tell of a failure: a missing right at once, and at once where a watch has shown a permission."""
        if isinstance(error, _ConditionNotWritten):
            return
        cluster = self._cluster()
        level = logging.WARNING if cluster is not None and is_initialized(cluster) else logging.DEBUG
        _LOG.log(level, "cannot look after side doors", extra=fields(cluster=self.key, error=str(error), delay=delay))
        self._review()
        if cluster is None:
            return
        with suppress(_ConditionNotWritten):
            if isinstance(error, Forbidden):
                await self._tell(unverified(f"{error}; {REMEDY}"))
            elif not is_initialized(cluster):
                await self._tell(not_initialized())
            elif failures >= _TELLS_AFTER or self._open_seen:
                await self._tell(unverified(f"the cluster does not answer: {error}"))

    def _on_grant(self) -> None:
        self._open_seen = True
        self._hurry()

    def _cluster(self) -> JsonObject | None:
        """Return the Cluster if it may be acted for now."""
        cluster = self._management.cluster(self.key) if self._ownership.owns(self.key) else None
        if cluster is None or self._management.is_paused(cluster):
            return None
        return None if "deletionTimestamp" in mapping(cluster, "metadata") else cluster

    async def _found(self, cluster: JsonObject) -> Finding | None:
        enforce = self._enforces()
        if enforce is None:
            return None
        if isinstance(enforce, Finding):
            return enforce
        refused = await self._reconcile_block(enforce=enforce)
        if is_initialized(cluster):
            return await self._audited(refused)
        return unverified(f"{refused}; {REMEDY}") if refused is not None else not_initialized()

    async def _reconcile_block(self, *, enforce: bool) -> ApiError | None:
        """Install or remove the block; what the server refuses keeps nothing open from being closed."""
        try:
            await (self._block.install() if enforce else self._block.remove())
        except Unreachable:
            raise
        except ApiError as error:
            return error
        return None

    async def _audited(self, refused: ApiError | None) -> Finding | None:
        """Look, remove, and look again, so that nothing is said that was not seen.

        ``refused`` is what the server said to the block.
        """
        finding: Finding | None = None
        for look in range(_LOOKS):
            if look:
                await asyncio.sleep(_SETTLE)
            enforce = self._enforces()
            if enforce is None:
                return None
            if isinstance(enforce, Finding):
                return enforce
            self._open_seen = False
            facts, doubt = await self._facts(refused, enforce=enforce)
            decision = decide(replace(facts, unverified=doubt))
            finding = decision.finding
            if decision.remove and self._cluster() is not None and self._enforces() is True:
                await self._remove(decision.remove, finding)
            elif finding.reason is not Why.FOREIGN_AUTHORIZER:
                break  # of an authorizer it is told only when it says so again: its cache may lag behind
        self._review()
        return finding

    async def _facts(self, refused: ApiError | None, *, enforce: bool) -> tuple[Facts, Unverified | None]:
        """Look; also returns what keeps the cluster from being called closed, though nothing is open."""
        has_cluster_info = False
        if enforce and refused is None:
            try:  # before the look, which is a full one only after it
                has_cluster_info = await self._survey.has_cluster_info()
            except Forbidden as error:
                refused = error
        facts = await self._survey.look(enforce=enforce)
        self._nodes = facts.census.created
        if not enforce:
            return facts, None
        if refused is None and not has_cluster_info:
            return facts, waiting_for_cluster_info()
        try:
            return facts, await self._doubt(facts) if refused is None else _cannot_verify(refused)
        except Forbidden as error:
            return facts, _cannot_verify(error)

    async def _doubt(self, facts: Facts) -> Unverified | None:
        for what, trouble in (
            ("ClusterRoles and ClusterRoleBindings", self._rbac.trouble()),
            ("requests for the in-tree signer", self._certificates.trouble()),
        ):
            if trouble:
                return Unverified(Why.CANNOT_VERIFY, f"{what} are not being watched: {trouble}; {REMEDY}")
        if not await self._block.in_force():
            return block_not_verified()
        since, observed = self._since(), self._certificates.observed_from()
        since = max(since, facts.born) if facts.born is not None else since
        opened = [grant.created for grant in facts.grants if Who.BOOTSTRAPPERS in grant.to]
        if observed is None or any(created is None or created < observed for created in opened):
            self._was_closed = False
        if not self._was_closed and (observed is None or since < observed):
            return record_incomplete(since)
        return None

    async def _remove(self, grants: tuple[Grant, ...], finding: Finding) -> None:
        """Delete bindings; whatever comes of it, "closed" is taken back."""
        try:
            for grant in grants:
                with suppress(NotFound, Conflict):  # somebody was faster: the next look sees what there is now
                    await self._survey.remove(grant)
                    self._report.removed(self.key, grant)
        finally:
            if finding.reason not in CLOSED_REASONS and self._said_closed():
                await self._tell(finding)

    # Certificates

    def _recall(self) -> None:
        """Read once what an earlier controller said: its finding outlives the requests that it was found by."""
        cluster = self._management.cluster(self.key)
        if self._was_closed is not None or cluster is None:
            return
        told = self._told(cluster)
        reason, message = text(told, "reason"), text(told, "message")
        self._was_closed = reason in CLOSED_REASONS
        self._was_audit = reason == Why.AUDIT
        if reason == Why.CERTIFICATES_ISSUED:
            found = self._certificates.found
            found.earlier = message.partition(BESIDES)[0][:_EARLIER]
            found.earlier_told = moment(text(told, "lastTransitionTime")) or self._now()

    def _review(self) -> None:
        """Take account of what the in-tree signer issued since the last look."""
        cluster = self._management.cluster(self.key)
        enforce = self._enforces()
        if enforce is False or (enforce is True and self._was_audit):
            self._enforced_from = self._now()
            self._was_audit = enforce is False
        if cluster is None or enforce is not True:
            return
        self._certificates.found.accept(self._reviewed(cluster))
        for issued in self._certificates.review(self._since(), self._nodes):
            self._report.issued(self.key, issued)

    def _since(self) -> datetime:
        """Return from when on in-tree approval is a violation: policy, Cluster, end of Audit, operator's review."""
        cluster = self._management.cluster(self.key)
        if cluster is None:
            return self._now()
        beside = self._management.policies(text(cluster, "metadata", "namespace"))
        objects = [cluster, *(policy for policy in beside if selects(policy, cluster))]
        times = [moment(text(each, "metadata", "creationTimestamp")) for each in objects]
        known = [time for time in (*times, self._reviewed(cluster), self._enforced_from) if time is not None]
        return max(known, default=self._now())

    def _reviewed(self, cluster: JsonObject) -> datetime | None:
        """Return the time of the operator's word; one in the future would hide what is yet to come."""
        found = moment(text_map(cluster, "metadata", "annotations").get(REVIEWED, ""))
        return found if found is not None and found <= self._now() else None

    # What is said

    def _told(self, cluster: JsonObject) -> JsonObject:
        found = condition(items(cluster, "status", "conditions"), CONDITION)
        return dict(found) if found is not None else {}

    def _said_closed(self) -> bool:
        cluster = self._management.cluster(self.key)
        return cluster is not None and text(self._told(cluster), "status") == "True"

    def _enforces(self) -> bool | Finding | None:
        """Read the policy; None where there is none any more."""
        cluster = self._management.cluster(self.key)
        if cluster is None:
            return None
        try:
            return self._management.policy_of(cluster).enforce
        except Unavailable:
            return None
        except Denied as denied:
            return unverified(f"the policy cannot be used, so nothing is changed: {denied}")

    async def _tell(self, finding: Finding) -> None:
        """Write the condition; raises ``_ConditionNotWritten``."""
        if finding.reason in CLOSED_REASONS:
            self._was_closed = True
        certificates = self._certificates.found
        if certificates and self._enforces() is True:
            finding = with_certificates(finding, str(certificates))
        try:
            await self._report.tell(self.key, finding)
        except ApiError as error:
            remedy = MANAGEMENT_REMEDY if isinstance(error, Forbidden) else ""
            _LOG.warning(
                "cannot write the Cluster's condition",
                extra=fields(cluster=self.key, error=str(error), finding=finding.reason, remedy=remedy),
            )
            raise _ConditionNotWritten(error.status, error.reason, error.message) from error


def _cannot_verify(error: ApiError) -> Unverified:
    return Unverified(Why.CANNOT_VERIFY, f"{error}; {REMEDY}")
