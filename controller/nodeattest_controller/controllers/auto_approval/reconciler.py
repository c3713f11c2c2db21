"""Reconciles automatic approval in one cluster: install the block, audit, delete bindings, audit again, report.

No binding is deleted before the control plane is initialized, nor while the cluster is paused or being deleted. What
is open is closed first and then reported, even if it is closed a second later. What cannot be verified is Unknown.
Each step begins with an audit, so the process may end at any time. A condition that cannot be written is written by
the next run.
Out of scope: facts (``rbac_audit``, ``certificate_log``), decisions (``decide``), timing (``controller``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Final

from nodeattest_controller.controllers.auto_approval.approval_block import ApprovalBlock
from nodeattest_controller.controllers.auto_approval.certificate_log import CertificateLog, last_approval
from nodeattest_controller.controllers.auto_approval.decide import (
    BESIDES,
    BLOCK_NOT_VERIFIED,
    CLOSED_REASONS,
    CONDITION,
    NOT_INITIALIZED,
    REVIEWED,
    RUNBOOK,
    WAITING_FOR_CLUSTER_INFO,
    ApprovalReason,
    AuditFacts,
    Finding,
    cannot_verify,
    decide,
    is_initialized,
    other_bootstrap_provider,
    record_incomplete,
    with_certificates,
)
from nodeattest_controller.controllers.auto_approval.permissions import RoleGrant, SubjectKind
from nodeattest_controller.controllers.auto_approval.rbac_audit import RBACAudit
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model.bootstrap_providers import control_plane_provider
from nodeattest_controller.model.policy import selects
from nodeattest_controller.runtime.cluster_log import ClusterEvents, cluster_path
from nodeattest_controller.runtime.conditions import Condition, ConditionStatus, Severity, set_condition
from nodeattest_controller.runtime.guard import ClusterGuard
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Conflict, Forbidden, NotFound, TooManyRequests, Unreachable
from nodeattest_parsing.objects import condition, items, moment, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Unavailable

REMEDY: Final = (
    "apply manifests/workload-hardening in the workload cluster, or disable hardening with --controllers and close "
    "automatic approval yourself"
)
MANAGEMENT_REMEDY: Final = "apply manifests/rbac in the management cluster"
REMOVED: Final = "SideDoorRemoved"
ISSUED: Final = "InTreeCertificateIssued"
_QUIET: Final = frozenset(
    {ApprovalReason.CLOSED, ApprovalReason.NOT_INITIALIZED, ApprovalReason.WAITING_FOR_CLUSTER_INFO}
)
"""Reasons that are no warning."""
_ATTEMPTS: Final = 4
"""Audits in one run: one after each of two deletions, and two for an API server whose caches lag."""
_SETTLE: Final = 1.0
"""Seconds to wait after a deletion: API servers authorize from caches."""
_RECHECK: Final = {
    ApprovalReason.WAITING_FOR_CLUSTER_INFO: 10.0,
    ApprovalReason.BLOCK_NOT_VERIFIED: 10.0,
    ApprovalReason.CANNOT_VERIFY: 60.0,
    ApprovalReason.FOREIGN_AUTHORIZER: 60.0,
}
"""Seconds until the next audit where something is awaited that no watch shows."""
_REPORT_AFTER: Final = 3
"""Failures in a row after which the condition becomes Unknown; a short outage does not change it."""
_REMOVAL_LIMIT: Final = 5.0
"""Seconds for removing the block when a cluster is disconnected."""
_EARLIER: Final = 600
"""Characters kept of what an earlier process reported of certificates."""


class AutoApprovalReconciler:
    """Automatic approval in one cluster (``periodic.PeriodicTask``)."""

    def __init__(
        self,
        client: ApiClient,
        management: ManagementCache,
        *,
        events: ClusterEvents,
        metrics: Metrics,
        guard: ClusterGuard,
        now: Callable[[], datetime],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        key, inventory = events.key, management.inventory
        self._key, self._client, self._management = key, client, management
        self._events, self._metrics, self._guard = events, metrics, guard
        self._now, self.sleep = now, sleep
        self.hurry: Callable[[], None] = lambda: None
        """Has the cluster audited again soon."""
        self._rbac = RBACAudit(key, client, inventory, now=now, clock=time.monotonic)
        self._block = ApprovalBlock(client)
        self.certificates: Final = CertificateLog(key, client, inventory, now=now)
        self._was_closed: bool | None = None
        """Whether the last condition states that bootstrap tokens have no permission; None until it was read once."""
        self._enforced_from: datetime | None = None
        """When the policy was first seen to say ``Enforce`` after ``Audit``, under which others may approve."""
        self._was_audit = False
        self._nodes: Mapping[str, datetime | None] | None = None
        """When each Node was created, as far as they were counted."""

    # The block

    def is_uninitialized(self) -> bool:
        """Return whether the control plane has not come up yet."""
        cluster = self._management.cluster(self._key)
        return cluster is not None and not is_initialized(cluster)

    async def install_block(self) -> bool:
        """Install it where the policy says ``Enforce``; raises ApiError."""
        if not self._guard.may_act(self._key) or self._enforces() is not True:
            return False
        await self._block.install()
        return True

    async def remove_block(self) -> None:
        """Remove it where no policy selects the cluster any more, which this replica owns and nobody deletes."""
        cluster = self._guard.active_cluster(self._key)
        if cluster is None or self._management.opts_in(cluster):
            return
        try:
            async with asyncio.timeout(_REMOVAL_LIMIT):
                await self._block.remove()
        except (ApiError, TimeoutError) as error:
            message = f"cannot remove the block of in-tree approvals; see {RUNBOOK}"
            self._events.warn(None, message, error=str(error))

    # Audits

    async def reconcile(self) -> float | None:
        """Reconcile; a change, a certificate or the resync period starts the next run.

        An error of the block does not prevent the deletion of bindings.
        """
        self._restore_state()
        self._review_certificates()
        cluster, enforce = self._guard.active_cluster(self._key), self._enforces()
        if cluster is None or enforce is None:
            return None
        block_error: ApiError | None = None
        finding: Finding | None = enforce if isinstance(enforce, Finding) else NOT_INITIALIZED
        if not isinstance(enforce, Finding):
            try:
                await (self._block.install() if enforce else self._block.remove())
            except Unreachable:
                raise
            except ApiError as error:
                block_error, finding = error, cannot_verify(f"{error}; {REMEDY}")
            if is_initialized(cluster):
                finding = await self._close(block_error)
        if finding is None:
            return None
        if isinstance(block_error, TooManyRequests):  # the next run starts when the server allows it
            if finding.reason is not ApprovalReason.CANNOT_VERIFY:
                await self._write_condition(finding)
            raise block_error
        written = await self._write_condition(finding)
        return _RECHECK.get(finding.reason) if written else min(_RECHECK.values())

    async def failed(self, error: ApiError, failures: int, delay: float) -> None:
        """Report a failure: a missing right at once."""
        cluster = self._guard.active_cluster(self._key)
        expected = cluster is None or not is_initialized(cluster) or self._client.has_reported(error)
        message = "cannot audit automatic approval"
        if expected:
            self._events.debug(message, error=str(error), delay=delay)
        else:
            self._events.warn(None, message, error=str(error), delay=delay)
        self._review_certificates()
        if cluster is None:
            return
        if isinstance(error, Forbidden):
            await self._write_condition(cannot_verify(f"{error}; {REMEDY}"))
        elif not is_initialized(cluster):
            await self._write_condition(NOT_INITIALIZED)
        elif failures >= _REPORT_AFTER:
            await self._write_condition(cannot_verify(f"the cluster does not answer: {error}"))

    async def _close(self, block_error: ApiError | None) -> Finding | None:
        """Audit, delete, and audit again, so that only what was verified is reported."""
        finding: Finding | None = None
        for attempt in range(_ATTEMPTS):
            if attempt:
                await self.sleep(_SETTLE)
            enforce = self._enforces()
            if enforce is None or isinstance(enforce, Finding):
                return enforce
            decision = decide(await self._facts(block_error, enforce=enforce))
            finding = decision.finding
            if decision.remove and self._guard.may_act(self._key) and self._enforces() is True:
                await self._remove(decision.remove, finding)
            elif finding.reason is not ApprovalReason.FOREIGN_AUTHORIZER:
                break  # a foreign authorizer is reported only if a second audit shows it: caches may lag
        self._review_certificates()
        return finding

    async def _facts(self, block_error: ApiError | None, *, enforce: bool) -> AuditFacts:
        """Audit, and find why the cluster cannot be called closed though nothing is open."""
        error, has_cluster_info = block_error, False
        if error is None:
            try:  # before the audit, which is complete only after it
                has_cluster_info = await self._rbac.has_cluster_info()
            except Forbidden as forbidden:
                error = forbidden
        facts = await self._rbac.look(enforce=enforce)
        self._nodes = facts.coverage.created
        other = control_plane_provider(self._management.cluster(self._key) or {})
        if other is not None:
            return replace(facts, doubt=other_bootstrap_provider(other))
        if error is None and not has_cluster_info:
            return replace(facts, doubt=WAITING_FOR_CLUSTER_INFO)
        try:
            doubt = await self._doubt(facts) if error is None else cannot_verify(f"{error}; {REMEDY}")
        except Forbidden as forbidden:
            doubt = cannot_verify(f"{forbidden}; {REMEDY}")
        return replace(facts, doubt=doubt)

    async def _doubt(self, facts: AuditFacts) -> Finding | None:
        trouble = self.certificates.trouble()
        if trouble:
            return cannot_verify(f"requests for the in-tree signer are not being watched: {trouble}; {REMEDY}")
        if not facts.enforce:  # nothing is blocked, and no certificate is a violation
            return None
        if not await self._block.in_force():
            return BLOCK_NOT_VERIFIED
        since, observed = self._since(), self.certificates.observed_from()
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
                    await self._rbac.remove(grant)
                    self._events.info("deleted an auto-approving binding", binding=grant.name, role=grant.role)
                    message = f"deleted ClusterRoleBinding {grant} in the workload cluster"
                    self._events.event("Normal", REMOVED, message)
            self.hurry()  # the next audit is short, so that later changes do not wait for this one's share of time
        finally:
            if finding.reason not in CLOSED_REASONS and text(self._condition(), "status") == "True":
                await self._write_condition(finding)

    # Certificates

    def _restore_state(self) -> None:
        """Read once what an earlier process reported."""
        if self._was_closed is None and self._management.cluster(self._key) is not None:
            reason = text(self._condition(), "reason")
            self._was_closed = reason in CLOSED_REASONS
            self._was_audit = reason == ApprovalReason.AUDIT

    def _uncovered(self, cluster: JsonObject) -> str:
        """Describe the certificates without attestation: what was reported outlives the requests that showed it."""
        reported, reviewed = self._condition(), self._reviewed(cluster)
        if self.certificates.found.count or reported.get("reason") != ApprovalReason.CERTIFICATES_ISSUED:
            return str(self.certificates.found)
        message = text(reported, "message").partition(BESIDES)[0]
        last = last_approval(message) or moment(text(reported, "lastTransitionTime"))
        if reviewed is not None and last is not None and reviewed > last:
            return ""
        return message[:_EARLIER]

    def _review_certificates(self) -> None:
        """Report what the in-tree signer issued since the last audit and no attestation covers."""
        cluster = self._management.cluster(self._key)
        enforce = self._enforces()
        if enforce is False or (enforce is True and self._was_audit):
            self._enforced_from = self._now()
            self._was_audit = enforce is False
        if cluster is None or enforce is not True:
            return
        self.certificates.found.accept(self._reviewed(cluster))
        for issued in self.certificates.review(self._since(), self._nodes):
            self._metrics.in_tree_certificate(self._key)
            self._events.warn(None, "a certificate was issued past attestation", certificate=str(issued))
            message = f"the in-tree signer's approval was given without attestation: {issued}; see {RUNBOOK}"
            self._events.event("Warning", ISSUED, message)

    def _since(self) -> datetime:
        """Return from when on in-tree approval is a violation: policy, Cluster, end of Audit, operator's review."""
        cluster = self._management.cluster(self._key)
        if cluster is None:
            return self._now()
        beside = self._management.policies(text(cluster, "metadata", "namespace"))
        objects = [cluster, *(policy for policy in beside if selects(policy, cluster))]
        times = [moment(text(each, "metadata", "creationTimestamp")) for each in objects]
        times += [self._reviewed(cluster), self._enforced_from]
        return max((time for time in times if time is not None), default=self._now())

    def _reviewed(self, cluster: JsonObject) -> datetime | None:
        """Return the time that the operator confirmed; one in the future would hide later certificates."""
        found = moment(text(cluster, "metadata", "annotations", REVIEWED))
        return found if found is not None and found <= self._now() else None

    # The condition

    def _enforces(self) -> bool | Finding | None:
        """Read the policy; None where there is none any more, a finding where it cannot be used."""
        cluster = self._management.cluster(self._key)
        if cluster is None:
            return None
        try:
            return self._management.policy_of(cluster).enforce
        except Unavailable:
            return None
        except Denied as denied:
            return cannot_verify(f"the policy cannot be used, so nothing is changed: {denied}")

    def _condition(self) -> JsonObject:
        """Return the condition as it is stored, or an empty object."""
        conditions = items(self._management.cluster(self._key) or {}, "status", "conditions")
        return dict(condition(conditions, CONDITION) or {})

    async def _write_condition(self, finding: Finding) -> bool:
        """Write the condition, with an Event where its reason is new; returns False, and logs, where that fails."""
        if finding.reason in CLOSED_REASONS:
            self._was_closed = True
        cluster = self._management.cluster(self._key)
        if cluster is None:
            return True
        if self._enforces() is not False:
            finding = with_certificates(finding, self._uncovered(cluster))
        self._metrics.auto_approval_closed(self._key, closed=finding.status is ConditionStatus.TRUE)
        severity = Severity.INFO if finding.reason is ApprovalReason.AUDIT else Severity.WARNING
        wanted = Condition(CONDITION, finding.status, finding.reason, finding.message, severity)
        is_new = text(self._condition(), "reason") != finding.reason
        try:
            written = await set_condition(self._management.client, cluster_path(cluster), cluster, wanted, self._now)
        except ApiError as error:
            remedy = MANAGEMENT_REMEDY if isinstance(error, Forbidden) else ""
            more = {"error": str(error), "finding": finding.reason, "remedy": remedy}
            self._events.warn(None, "cannot write the Cluster's condition", **more)
            return False
        if written and is_new:
            kind = "Normal" if finding.reason in _QUIET else "Warning"
            message = f"{CONDITION} is {finding.status}: {finding.message}"
            self._events.event(kind, f"SideDoors{finding.reason}", message)
            self._events.info("automatic approval", reason=finding.reason, message_=finding.message)
        return True
