"""Decides which bindings are deleted and what the condition ``SideDoorsClosed`` says. Pure: facts in, decision out.

Only the two bindings that kubeadm creates, as it creates them, are ever deleted: first that for bootstrap, then that
for rotation when no bootstrap token has a permission any more and every Node is attested. Under ``Audit`` none is.
"Closed" requires that RBAC grants nothing, that the API server allows nobody, and that everything was verified.
A certificate that was issued without attestation takes precedence over every other result.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from nodeattest_controller.controllers.auto_approval.permissions import (
    KUBEADM_BOOTSTRAP,
    KUBEADM_ROTATION,
    NODE_CLIENT_ROLE,
    NodeCoverage,
    Permission,
    RoleGrant,
    SubjectKind,
)
from nodeattest_controller.model.bootstrap_providers import BootstrapProvider
from nodeattest_controller.model.machine_record import CLUSTER_RECORD
from nodeattest_controller.runtime.conditions import ConditionStatus
from nodeattest_parsing.objects import condition, flag, items, mapping, rfc3339, text
from nodeattest_parsing.values import JsonObject

CONDITION: Final = "SideDoorsClosed"
REVIEWED: Final = "attestation.cluster.x-k8s.io/in-tree-certificates-reviewed"
"""Annotation of the Cluster: an operator confirms that certificates issued before this time were handled."""
RUNBOOK: Final = "docs/operate.md#certificates-without-attestation"
BESIDES: Final = "; besides: "
"""Separates the certificates from the rest of a message."""
_NAMED: Final = 10
"""Bindings that a message names."""

AllowedPairs = frozenset[tuple[SubjectKind, Permission]]
"""Who has which permission according to the API server."""


class ApprovalReason(StrEnum):
    """The condition's reason."""

    CLOSED = "Closed"
    OPEN = "Open"
    """kubeadm's binding for bootstrap tokens exists."""
    CLOSED_FOR_BOOTSTRAP = "ClosedForBootstrap"
    """No bootstrap token has a permission; nodes that joined before may still renew."""
    FOREIGN_BINDING = "ForeignBinding"
    FOREIGN_AUTHORIZER = "ForeignAuthorizer"
    """Somebody has a permission that no binding grants."""
    AUDIT = "Audit"
    CANNOT_VERIFY = "CannotVerify"
    NOT_INITIALIZED = "NotInitialized"
    WAITING_FOR_CLUSTER_INFO = "WaitingForClusterInfo"
    """kubeadm has not created all its bindings yet."""
    OTHER_BOOTSTRAP_PROVIDER = "OtherBootstrapProvider"
    """Certificates of kubelets are issued in a way that is not seen here."""
    BLOCK_NOT_VERIFIED = "BlockNotVerified"
    """The API server does not yet refuse what ``approval_block`` blocks."""
    RECORD_INCOMPLETE = "RecordIncomplete"
    """Certificates may have been issued that are not recorded."""
    CERTIFICATES_ISSUED = "CertificatesIssued"
    """The in-tree signer's approval was used, for what no attestation covers."""


CLOSED_REASONS: Final = frozenset({ApprovalReason.CLOSED, ApprovalReason.CLOSED_FOR_BOOTSTRAP})
"""Reasons that state that no bootstrap token has a permission."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Status, reason and message of the condition."""

    status: ConditionStatus
    reason: ApprovalReason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFacts:
    """What was found in the workload cluster."""

    grants: tuple[RoleGrant, ...]
    allowed: AllowedPairs
    coverage: NodeCoverage
    enforce: bool
    """False: the policy says ``Audit``."""
    born: datetime | None = None
    """When the cluster's API server first started."""
    doubt: Finding | None = None
    """Why the cluster cannot be called closed though nothing is open."""

    @property
    def opens_bootstrap(self) -> bool:
        """Whether a binding gives bootstrap tokens a permission."""
        return any(SubjectKind.BOOTSTRAPPERS in grant.to for grant in self.grants)


@dataclass(frozen=True, slots=True)
class Decision:
    """Bindings to delete, and the condition."""

    remove: tuple[RoleGrant, ...]
    finding: Finding


def _unknown(reason: ApprovalReason, message: str) -> Finding:
    return Finding(ConditionStatus.UNKNOWN, reason, message)


NOT_INITIALIZED: Final = _unknown(ApprovalReason.NOT_INITIALIZED, "the control plane is not initialized yet")
WAITING_FOR_CLUSTER_INFO: Final = _unknown(
    ApprovalReason.WAITING_FOR_CLUSTER_INFO,
    "ConfigMap kube-public/cluster-info does not exist yet: kubeadm creates it after the bindings that grant the "
    "in-tree signer's automatic approval, so they may still appear",
)
"""Source: kubernetes cmd/kubeadm/app/cmd/phases/init/bootstraptoken.go (runBootstrapToken)."""
BLOCK_NOT_VERIFIED: Final = _unknown(
    ApprovalReason.BLOCK_NOT_VERIFIED,
    "the API server does not refuse requests of bootstrap tokens for the in-tree signer yet: if this lasts, see "
    "whether the admission plugin ValidatingAdmissionPolicy is enabled there, and whether somebody fills the "
    f"ClusterRole {NODE_CLIENT_ROLE} again",
)


def cannot_verify(message: str) -> Finding:
    """Return the result for a cluster that could not be audited."""
    return _unknown(ApprovalReason.CANNOT_VERIFY, message)


def other_bootstrap_provider(provider: BootstrapProvider) -> Finding:
    """Return the reason that nothing can be said of a cluster that kubeadm did not make."""
    return _unknown(
        ApprovalReason.OTHER_BOOTSTRAP_PROVIDER,
        f"a {provider.name} cluster: {provider.issuance}; leave it out of the policy "
        "(docs/bootstrap-config.md#other-bootstrap-providers)",
    )


def record_incomplete(since: datetime) -> Finding:
    """Return the reason that certificates may have been issued unrecorded, with the remedy."""
    return _unknown(
        ApprovalReason.RECORD_INCOMPLETE,
        f"certificates that the in-tree signer issued after {rfc3339(since)} are not all on record, because the "
        "requests were not watched for more than the hour that they are kept: compare the Nodes with the Machines "
        f"({RUNBOOK}), then annotate the Cluster with {REVIEWED}=<time>",
    )


def with_certificates(finding: Finding, certificates: str) -> Finding:
    """Give certificates without attestation precedence over every other result."""
    if not certificates:
        return finding
    message = f"{certificates}{BESIDES}{finding.message}"
    return Finding(ConditionStatus.FALSE, ApprovalReason.CERTIFICATES_ISSUED, message)


def is_initialized(cluster: JsonObject) -> bool:
    """Return whether the control plane has come up once.

    Source: cluster-api api/core/v1beta2/cluster_types.go (status.initialization.controlPlaneInitialized, condition
    ControlPlaneInitialized) and api/core/v1beta1/cluster_types.go (status.controlPlaneReady, the same condition).
    A ClusterRecord is written for a cluster that exists; where it does not answer yet, the audit fails.
    """
    status = mapping(cluster, "status")
    if text(cluster, "kind") == CLUSTER_RECORD or flag(status, "controlPlaneReady"):
        return True
    conditions = items(status, "conditions") + items(status, "v1beta2", "conditions")
    found = condition(conditions, "ControlPlaneInitialized") or {}
    return flag(status, "initialization", "controlPlaneInitialized") or found.get("status") == "True"


def decide(facts: AuditFacts) -> Decision:
    """Decide; after a deletion the caller audits again before it reports anything as closed."""
    removable = _removable(facts)
    explained = {(subject, each) for grant in facts.grants for subject in grant.to for each in grant.permissions}
    unexplained = sorted(facts.allowed - explained)
    foreign = [grant for grant in facts.grants if not grant.is_kubeadm_default]
    if not facts.enforce and (facts.grants or facts.allowed):
        message = _audit(facts, removable, unexplained)
        return Decision((), Finding(ConditionStatus.FALSE, ApprovalReason.AUDIT, message))
    if foreign:
        reason, message = ApprovalReason.FOREIGN_BINDING, _foreign(foreign, facts.coverage)
    elif facts.opens_bootstrap:
        reason = ApprovalReason.OPEN
        message = f"bootstrap tokens get the in-tree signer's approval by {_listed(removable)}"
    elif unexplained:
        reason, message = ApprovalReason.FOREIGN_AUTHORIZER, _authorizer(unexplained)
    elif facts.grants:
        reason = ApprovalReason.CLOSED_FOR_BOOTSTRAP
        message = (
            "no bootstrap token gets the in-tree signer's approval; nodes may still renew by "
            f"{KUBEADM_ROTATION}, which goes when every Node is in the ledger: {facts.coverage}; see nodeattest "
            "machines adopt"
        )
    else:
        reason, message = ApprovalReason.CLOSED, _closed(facts.coverage)
    if facts.doubt is not None and reason in CLOSED_REASONS:
        return Decision(removable, facts.doubt)
    status = ConditionStatus.TRUE if reason is ApprovalReason.CLOSED else ConditionStatus.FALSE
    return Decision(removable, Finding(status, reason, message))


def _removable(facts: AuditFacts) -> tuple[RoleGrant, ...]:
    """Return kubeadm's binding that goes next: that for rotation once no bootstrap token and no Node needs it."""
    defaults = {grant.name: grant for grant in facts.grants if grant.is_kubeadm_default}
    if KUBEADM_BOOTSTRAP in defaults:
        return (defaults[KUBEADM_BOOTSTRAP],)
    lets_in = facts.opens_bootstrap or any(subject is SubjectKind.BOOTSTRAPPERS for subject, _ in facts.allowed)
    if KUBEADM_ROTATION in defaults and facts.coverage.is_complete and not lets_in:
        return (defaults[KUBEADM_ROTATION],)
    return ()


def _audit(
    facts: AuditFacts, removable: tuple[RoleGrant, ...], unexplained: list[tuple[SubjectKind, Permission]]
) -> str:
    """Describe what Enforce would do."""
    would = f"ClusterRoleBinding {removable[0].name}" if removable else "nothing now"
    open_by = _listed(facts.grants) if facts.grants else _authorizer(unexplained)
    counted = "" if facts.coverage.is_complete else f"; {facts.coverage}"
    return f"the policy says Audit; Enforce would delete {would}; open by {open_by}{counted}"


def _foreign(foreign: list[RoleGrant], coverage: NodeCoverage) -> str:
    names = " ".join(grant.name for grant in foreign[:_NAMED])
    remedy = (
        f"not made by kubeadm, so never deleted here: see who needs it, then kubectl delete clusterrolebinding {names}"
    )
    if any(SubjectKind.NODES in grant.to for grant in foreign) and not coverage.is_complete:
        remedy += f"; before that, adopt what renews by it (nodeattest machines adopt): {coverage}"
    return f"the in-tree signer approves automatically by {_listed(tuple(foreign))}; {remedy}"


def _authorizer(allowed: list[tuple[SubjectKind, Permission]]) -> str:
    pairs = ", ".join(f"{subject}: create {permission}" for subject, permission in allowed)
    return (
        f"the API server lets the in-tree signer approve automatically ({pairs}), and no ClusterRoleBinding grants it: "
        "check its --authorization-mode, its authorization webhook and its ABAC policy"
    )


def _closed(coverage: NodeCoverage) -> str:
    message = "neither bootstrap tokens nor nodes get the in-tree signer's approval"
    if coverage.unattested:
        message += f"; {coverage}: they end with their certificates unless adopted (nodeattest machines adopt)"
    return message


def _listed(grants: tuple[RoleGrant, ...]) -> str:
    more = f" and {len(grants) - _NAMED} more" if len(grants) > _NAMED else ""
    return ", ".join(str(grant) for grant in grants[:_NAMED]) + more
