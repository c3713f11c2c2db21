"""When a cluster whose watches recover is audited: many that recover together, as after a partition, are spread.

Promises: a cluster that recovers alone is audited at once; of many, ``PER_SECOND`` are, and none waits longer than
``MAX_DELAY``, however many they are. A cluster that hangs takes no turn of another: turns are times, not slots.
Leaves to others: whether an audit is needed (``reconciler``), and how it runs (``controller``).

Reconciles automatic approval in one cluster: install the block, audit, delete bindings, audit again, report.

Promises: no binding is deleted before the control plane is initialized, nor while the cluster is paused or being
deleted; what is open is closed first and then reported, even when it is closed a second later; what cannot be verified
is Unknown. Each step begins with an audit, so that the process may end at any time.
Leaves to others: facts (``rbac_audit``, ``certificate_log``), decisions (``decide``), reports (``status``), timing
(``controller``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Final

from nodeattest_controller.controllers.auto_approval.approval_block import ApprovalBlock
from nodeattest_controller.controllers.auto_approval.certificate_log import CertificateLog
from nodeattest_controller.controllers.auto_approval.decide import (
    BESIDES,
    CLOSED_REASONS,
    CONDITION,
    REVIEWED,
    ApprovalReason,
    AuditFacts,
    Finding,
    Unverified,
    block_not_verified,
    decide,
    is_initialized,
    not_initialized,
    other_bootstrap_provider,
    record_incomplete,
    unverified,
    waiting_for_cluster_info,
    with_certificates,
)
from nodeattest_controller.controllers.auto_approval.permissions import RoleGrant, SubjectKind
from nodeattest_controller.controllers.auto_approval.rbac_audit import RBACAudit
from nodeattest_controller.controllers.auto_approval.rbac_watch import RBACWatch
from nodeattest_controller.controllers.auto_approval.status import REMEDY, StatusReporter
from nodeattest_controller.model.infrastructure_kinds import control_plane_provider
from nodeattest_controller.model.policy import selects
from nodeattest_controller.runtime.guard import ClusterGuard
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Conflict, Forbidden, NotFound, TooManyRequests, Unreachable
from nodeattest_kube.fair_queue import RateLimiter
from nodeattest_parsing.objects import condition, items, moment, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Unavailable

PER_SECOND: Final = 10.0
"""Clusters; an audit sends some ten requests."""
MAX_DELAY: Final = 60.0
"""Seconds. Until its audit a cluster is reported as before or as Unknown, never as closed by mistake."""


class RecoveryPace:
    """The turns of all clusters."""

    def __init__(self, *, clock: Callable[[], float], random: Callable[[], float]) -> None:
        """``clock`` is monotonic seconds; ``random`` draws from [0, 1)."""
        self._limiter = RateLimiter(burst=1, per_second=PER_SECOND, clock=clock, remembered=1)
        self._random = random

    def delay(self) -> float:
        """Take the next turn; returns the seconds until it is there."""
        reserved = self._limiter.reserve("", MAX_DELAY)
        return MAX_DELAY * self._random() if reserved is None else reserved


_ATTEMPTS: Final = 4
"""Audits in one run: one after each of two deletions, and two for an API server whose caches lag."""
_RECHECK: Final = 10.0
"""Seconds until the next audit while something is awaited that no watch shows."""
_DOUBTS: Final = frozenset({ApprovalReason.CANNOT_VERIFY, ApprovalReason.FOREIGN_AUTHORIZER})
"""What may be over without a change that a watch shows."""
_DOUBLINGS: Final = 5
"""Doublings of it, where what was found may as well last; then the resync period is as short."""
_CLOCK_SKEW: Final = 60.0
"""Seconds that the operator's clock may be ahead; what he confirmed is then taken in when its time has come."""
_REPORT_AFTER: Final = 3
"""Failures in a row after which the condition becomes Unknown; a short outage does not change it."""
_REMOVAL_LIMIT: Final = 5.0
"""Seconds for removing the block when a cluster is disconnected."""
_SETTLE: Final = 1.0
"""Seconds to wait after a deletion: API servers authorize from caches."""
_EARLIER: Final = 600
"""Characters kept of what an earlier process reported of certificates."""


class _ConditionNotWritten(ApiError):
    """The condition could not be written; this is logged already."""


class AutoApprovalReconciler:
    """Automatic approval in one cluster (``periodic.PeriodicTask``)."""

    def __init__(
        self,
        key: ClusterKey,
        client: ApiClient,
        management: ManagementCache,
        report: StatusReporter,
        *,
        guard: ClusterGuard,
        now: Callable[[], datetime],
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.key = key
        self._client = client
        self._management = management
        self._report = report
        self._guard = guard
        self._now = now
        self._sleep = sleep
        self._rbac = RBACWatch(client, on_recovery=self._recovered)
        self._rbac_audit = RBACAudit(
            key, client, management.inventory, now=now, clock=clock, revision=self._rbac.revision
        )
        self._block = ApprovalBlock(client)
        self._certificates = CertificateLog(
            key, client, management.inventory, now=now, clock=clock, on_recovery=self._recovered
        )
        self._recovery_subscribers: list[Callable[[], None]] = []
        self._in_doubt = False
        self._open_seen = False
        """Whether a watch has shown a permission that no audit has covered yet."""
        self._was_closed: bool | None = None
        """Whether the last condition states that bootstrap tokens have no permission; None until it was read once."""
        self._enforced_from: datetime | None = None
        """When the policy was first seen to say ``Enforce`` after ``Audit``, under which others may approve."""
        self._was_audit = False
        self._reason: ApprovalReason | None = None
        """What the last audit found."""
        self._repeated = 0
        """How often it was found again since."""
        self._nodes: Mapping[str, datetime | None] | None = None
        """When each Node was created, as far as they were counted."""
        self._rbac.subscribe(self._grant_appeared)

    @property
    def in_doubt(self) -> bool:
        """Whether an audit is under way, failed, or found what may be over when a watch recovers."""
        return self._in_doubt

    def subscribe(self, hurry: Callable[[], None]) -> None:
        """Have a subscriber notified of what needs an audit at once: a permission or a certificate in a watch."""
        self._rbac.subscribe(hurry)
        self._certificates.subscribe(hurry)

    def subscribe_recovery(self, recovered: Callable[[], None]) -> None:
        """Have a subscriber notified of a watch that recovers after an audit in doubt: the next one may be far."""
        self._recovery_subscribers.append(recovered)

    def watches(self) -> list[Coroutine[object, object, None]]:
        """Return the watches, to be run beside the periodic audits."""
        return [self._rbac.run(), self._certificates.run()]

    # The block

    def is_uninitialized(self) -> bool:
        """Return whether the control plane has not come up yet."""
        cluster = self._management.cluster(self.key)
        return cluster is not None and not is_initialized(cluster)

    async def install_block(self) -> bool:
        """Install it where the policy says ``Enforce``; raises ApiError."""
        if not self._guard.may_act(self.key) or self._enforces() is not True:
            return False
        await self._block.install()
        return True

    async def remove_block(self) -> None:
        """Remove it where no policy selects the cluster any more, which this replica owns and nobody deletes."""
        cluster = self._guard.active_cluster(self.key)
        if cluster is None or self._management.opts_in(cluster):
            return
        try:
            async with asyncio.timeout(_REMOVAL_LIMIT):
                await self._block.remove()
        except (ApiError, TimeoutError) as error:
            self._report.block_not_removed(error)

    # Audits

    async def reconcile(self) -> float | None:
        """Reconcile; a change, a watch event or the resync period starts the next run."""
        self._in_doubt = True
        self._restore_state()
        self._review_certificates()
        cluster = self._guard.active_cluster(self.key)
        finding = None if cluster is None else await self._reconcile(cluster)
        if finding is not None:
            await self._write_condition(finding)
        self._in_doubt = finding is not None and finding.reason in _DOUBTS
        return None if finding is None else self._recheck_after(finding.reason)

    def _recheck_after(self, reason: ApprovalReason) -> float | None:
        """Return when to audit again though no watch may show that what was found is over."""
        self._repeated = self._repeated + 1 if reason is self._reason else 0
        self._reason = reason
        match reason:
            case ApprovalReason.WAITING_FOR_CLUSTER_INFO | ApprovalReason.BLOCK_NOT_VERIFIED:
                return _RECHECK
            case _ if reason in _DOUBTS and self._repeated < _DOUBLINGS:
                return _RECHECK * 2**self._repeated  # a list that failed, a cache of the API server that lags
            case _:
                return self._until_review()

    def _until_review(self) -> float | None:
        """Return the seconds until the time that the operator confirmed, whose clock may be a little ahead of ours."""
        cluster = self._management.cluster(self.key)
        reviewed = moment(text(cluster or {}, "metadata", "annotations", REVIEWED))
        left = (reviewed - self._now()).total_seconds() if reviewed is not None else 0.0
        return left + 1.0 if 0.0 < left <= _CLOCK_SKEW else None

    async def failed(self, error: ApiError, failures: int, delay: float) -> None:
        """Report a failure: a missing right at once, and at once where a watch has shown a permission."""
        if isinstance(error, _ConditionNotWritten):
            return
        cluster = self._guard.active_cluster(self.key)
        comes_up = cluster is None or not is_initialized(cluster)
        self._report.not_audited(error, delay, expected=comes_up or self._client.has_reported(error))
        self._review_certificates()
        if cluster is None:
            return
        with suppress(_ConditionNotWritten):
            if isinstance(error, Forbidden):
                await self._write_condition(unverified(f"{error}; {REMEDY}"))
            elif not is_initialized(cluster):
                await self._write_condition(not_initialized())
            elif failures >= _REPORT_AFTER or self._open_seen:
                await self._write_condition(unverified(f"the cluster does not answer: {error}"))

    def _grant_appeared(self) -> None:
        self._open_seen = True

    def _recovered(self) -> None:
        """Notify: a watch that recovers shows no change."""
        if self._in_doubt:
            for subscriber in self._recovery_subscribers:
                subscriber()

    async def _reconcile(self, cluster: JsonObject) -> Finding | None:
        enforce = self._enforces()
        if enforce is None:
            return None
        if isinstance(enforce, Finding):
            return enforce
        refused = await self._reconcile_block(enforce=enforce)
        if is_initialized(cluster):
            finding = await self._close(refused)
        else:
            finding = unverified(f"{refused}; {REMEDY}") if refused is not None else not_initialized()
        if isinstance(refused, TooManyRequests):
            if finding is not None and finding.reason not in _DOUBTS:
                await self._write_condition(finding)
            raise refused  # the next run starts when the server allows it
        return finding

    async def _reconcile_block(self, *, enforce: bool) -> ApiError | None:
        """Install or remove the block; an error of the server does not prevent the deletion of bindings."""
        try:
            await (self._block.install() if enforce else self._block.remove())
        except Unreachable:
            raise
        except ApiError as error:
            return error
        return None

    async def _close(self, refused: ApiError | None) -> Finding | None:
        """Audit, delete, and audit again, so that only what was verified is reported.

        ``refused`` is the server's error for the block.
        """
        finding: Finding | None = None
        for look in range(_ATTEMPTS):
            if look:
                await self._sleep(_SETTLE)
            enforce = self._enforces()
            if enforce is None:
                return None
            if isinstance(enforce, Finding):
                return enforce
            self._open_seen = False
            facts, doubt = await self._facts(refused, enforce=enforce)
            decision = decide(replace(facts, unverified=doubt))
            finding = decision.finding
            if decision.remove and self._guard.may_act(self.key) and self._enforces() is True:
                await self._remove(decision.remove, finding)
            elif finding.reason is not ApprovalReason.FOREIGN_AUTHORIZER:
                break  # a foreign authorizer is reported only if a second audit shows it: caches may lag
        self._review_certificates()
        return finding

    async def _facts(self, refused: ApiError | None, *, enforce: bool) -> tuple[AuditFacts, Unverified | None]:
        """Audit; also returns why the cluster cannot be called closed, though nothing is open."""
        has_cluster_info = False
        if refused is None:
            try:  # before the audit, which is complete only after it
                has_cluster_info = await self._rbac_audit.has_cluster_info()
            except Forbidden as error:
                refused = error
        facts = await self._rbac_audit.look(enforce=enforce)
        self._nodes = facts.coverage.created
        other = control_plane_provider(self._management.cluster(self.key) or {})
        if other is not None:
            return facts, other_bootstrap_provider(other)
        if refused is None and not has_cluster_info:
            return facts, waiting_for_cluster_info()
        try:
            doubt = await self._unverified(facts, enforce=enforce)
            return facts, doubt if refused is None else _cannot_verify(refused)
        except Forbidden as error:
            return facts, _cannot_verify(error)

    async def _unverified(self, facts: AuditFacts, *, enforce: bool) -> Unverified | None:
        for what, trouble in (
            ("ClusterRoles and ClusterRoleBindings", self._rbac.trouble()),
            ("requests for the in-tree signer", self._certificates.trouble()),
        ):
            if trouble:
                return Unverified(ApprovalReason.CANNOT_VERIFY, f"{what} are not being watched: {trouble}; {REMEDY}")
        if not enforce:  # nothing is blocked, and no certificate is a violation
            return None
        if not await self._block.in_force():
            return block_not_verified()
        since, observed = self._since(), self._certificates.observed_from()
        since = max(since, facts.born) if facts.born is not None else since
        opened = [grant.created for grant in facts.grants if SubjectKind.BOOTSTRAPPERS in grant.to]
        if observed is None or any(created is None or created < observed for created in opened):
            self._was_closed = False
        if not self._was_closed and (observed is None or since < observed):
            return record_incomplete(since)
        return None

    async def _remove(self, grants: tuple[RoleGrant, ...], finding: Finding) -> None:
        """Delete bindings; whatever the result, the condition is not left True."""
        try:
            for grant in grants:
                with suppress(NotFound, Conflict):  # changed meanwhile: the next audit sees the present state
                    await self._rbac_audit.remove(grant)
                    self._report.removed(grant)
        finally:
            if finding.reason not in CLOSED_REASONS and self._said_closed():
                await self._write_condition(finding)

    # Certificates

    def _restore_state(self) -> None:
        """Read the condition once: what an earlier process reported outlives the requests that showed it."""
        cluster = self._management.cluster(self.key)
        if self._was_closed is not None or cluster is None:
            return
        reported = self._condition(cluster)
        reason, message = text(reported, "reason"), text(reported, "message")
        self._was_closed = reason in CLOSED_REASONS
        self._was_audit = reason == ApprovalReason.AUDIT
        if reason == ApprovalReason.CERTIFICATES_ISSUED:
            found = self._certificates.found
            found.earlier = message.partition(BESIDES)[0][:_EARLIER]
            found.earlier_reported = moment(text(reported, "lastTransitionTime")) or self._now()

    def _review_certificates(self) -> None:
        """Process what the in-tree signer issued since the last audit."""
        cluster = self._management.cluster(self.key)
        enforce = self._enforces()
        if enforce is False or (enforce is True and self._was_audit):
            self._enforced_from = self._now()
            self._was_audit = enforce is False
        if cluster is None or enforce is not True:
            return
        self._certificates.found.accept(self._reviewed(cluster))
        for issued in self._certificates.review(self._since(), self._nodes):
            self._report.issued(issued)

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
        """Return the time that the operator confirmed; one in the future would hide later certificates."""
        found = moment(text(cluster, "metadata", "annotations", REVIEWED))
        return found if found is not None and found <= self._now() else None

    # The condition

    def _condition(self, cluster: JsonObject) -> JsonObject:
        found = condition(items(cluster, "status", "conditions"), CONDITION)
        return dict(found) if found is not None else {}

    def _said_closed(self) -> bool:
        cluster = self._management.cluster(self.key)
        return cluster is not None and text(self._condition(cluster), "status") == "True"

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

    async def _write_condition(self, finding: Finding) -> None:
        """Write the condition; raises ``_ConditionNotWritten``."""
        if finding.reason in CLOSED_REASONS:
            self._was_closed = True
        certificates = self._certificates.found
        if certificates and self._enforces() is True:
            finding = with_certificates(finding, str(certificates))
        try:
            await self._report.tell(finding)
        except ApiError as error:
            self._report.not_written(error, finding)
            raise _ConditionNotWritten(
                error.status, error.reason, error.message, retry_after=error.retry_after
            ) from error


def _cannot_verify(error: ApiError) -> Unverified:
    return Unverified(ApprovalReason.CANNOT_VERIFY, f"{error}; {REMEDY}")
