"""Reports automatic approval in one cluster: a condition on the Cluster, an Event when it changes, metrics and logs.

Promises: an unchanged condition is not written again; one that cannot be written raises ApiError and is written by the
next run. Leaves to others: the content (``decide``).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from nodeattest_controller.controllers.auto_approval.certificate_log import IssuedInTree
from nodeattest_controller.controllers.auto_approval.decide import CONDITION, RUNBOOK, ApprovalReason, Finding
from nodeattest_controller.controllers.auto_approval.permissions import RoleGrant
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.cluster_log import ClusterEvents
from nodeattest_controller.runtime.conditions import Condition, ConditionStatus, Severity, set_condition
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.objectref import cluster_path
from nodeattest_kube.errors import ApiError, Forbidden
from nodeattest_parsing.objects import condition, items

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


class StatusReporter:
    """Reports on one cluster."""

    def __init__(
        self, management: ManagementCache, *, events: ClusterEvents, metrics: Metrics, now: Callable[[], datetime]
    ) -> None:
        self._management = management
        self._events = events
        self._metrics = metrics
        self._now = now

    async def tell(self, finding: Finding) -> None:
        """Write the condition, and say so where it is another than before; raises ApiError."""
        cluster = self._management.cluster(self._events.key)
        if cluster is None:
            return
        self._metrics.auto_approval_closed(self._events.key, closed=finding.status is ConditionStatus.TRUE)
        before = condition(items(cluster, "status", "conditions"), CONDITION)
        severity = Severity.INFO if finding.reason is ApprovalReason.AUDIT else Severity.WARNING
        made = Condition(CONDITION, finding.status, finding.reason, finding.message, severity)
        written = await set_condition(self._management.client, cluster_path(cluster), cluster, made, self._now)
        if not written or (before is not None and before.get("reason") == finding.reason):
            return
        kind = "Normal" if finding.reason in _QUIET else "Warning"
        said = f"{CONDITION} is {finding.status}: {finding.message}"
        self._events.event(kind, f"SideDoors{finding.reason}", said)
        self._events.info("automatic approval", reason=finding.reason, message_=finding.message)

    def not_written(self, error: ApiError, finding: Finding) -> None:
        """Log that the condition could not be written."""
        remedy = MANAGEMENT_REMEDY if isinstance(error, Forbidden) else ""
        self._events.warn(
            None, "cannot write the Cluster's condition", error=str(error), finding=finding.reason, remedy=remedy
        )

    def not_audited(self, error: ApiError, delay: float, *, expected: bool) -> None:
        """Log a failed audit, as debug where that is no news."""
        if expected:
            self._events.debug("cannot audit automatic approval", error=str(error), delay=delay)
        else:
            self._events.warn(None, "cannot audit automatic approval", error=str(error), delay=delay)

    def block_not_removed(self, error: Exception) -> None:
        """Log that the block stays in a cluster that no policy selects any more."""
        self._events.warn(None, f"cannot remove the block of in-tree approvals; see {RUNBOOK}", error=str(error))

    def removed(self, grant: RoleGrant) -> None:
        """Tell of a binding that was deleted."""
        self._metrics.auto_approval_binding_removed(grant.name)
        self._events.info("deleted an auto-approving binding", binding=grant.name, role=grant.role)
        self._events.event("Normal", REMOVED, f"deleted ClusterRoleBinding {grant} in the workload cluster")

    def issued(self, issued: IssuedInTree) -> None:
        """Report a certificate that no attestation covers, with its serial and end."""
        if issued.serial:
            self._metrics.in_tree_certificate(self._events.key)
        self._events.warn(None, "a certificate was issued past attestation", certificate=str(issued))
        said = f"the in-tree signer's approval was given without attestation: {issued}; see {RUNBOOK}"
        self._events.event("Warning", ISSUED, said)
