"""Decides which ClusterRoleBinding goes next and what the condition ``InTreeApprovalBlocked`` reports. Pure.

The in-tree approver checks whether a requester may create ``nodeclient`` (any node) or ``selfnodeclient`` (itself) of
CSRs. Only the two bindings that kubeadm creates, as it creates them, are ever deleted, and none under ``Audit``.
Source: kubernetes approver/sarapprove.go, plugin/pkg/auth/authorizer/rbac/rbac.go, kubeadm's tlsbootstrap.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from nodeattest_controller.model.bootstrap_providers import BootstrapProvider
from nodeattest_controller.model.machine_view import CLUSTER_RECORD
from nodeattest_controller.runtime.conditions import ConditionStatus
from nodeattest_controller.runtime.indexes import ClusterKey, Inventory
from nodeattest_parsing.objects import condition, flag, items, mapping, strings, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.identifiers import NODE_USER_PREFIX, NODES_GROUP, NodeName

CONDITION: Final = "InTreeApprovalBlocked"
REVIEWED: Final = "attestation.cluster.x-k8s.io/in-tree-certificates-reviewed"
"""Annotation of the Cluster: an operator confirms that certificates issued before this time were handled."""
RUNBOOK: Final = "docs/operate.md#certificates-without-attestation"
RBAC_GROUP: Final = "rbac.authorization.k8s.io"
CSR_GROUP: Final = "certificates.k8s.io"
CSR_RESOURCE: Final = "certificatesigningrequests"
KUBEADM_BOOTSTRAP: Final = "kubeadm:node-autoapprove-bootstrap"
KUBEADM_ROTATION: Final = "kubeadm:node-autoapprove-certificate-rotation"
KUBEADM_TOKEN_GROUP: Final = "system:bootstrappers:kubeadm:default-node-token"
BOOTSTRAP_GROUP: Final = "system:bootstrappers"
BOOTSTRAP_GROUP_PREFIX: Final = f"{BOOTSTRAP_GROUP}:"
BOOTSTRAP_USER_PREFIX: Final = "system:bootstrap:"
MAX_LISTED: Final = 10
"""Bindings, Nodes or certificates that a message names."""


class Permission(StrEnum):
    """The permissions that the in-tree approver checks, by subresource."""

    NODE_CLIENT = "nodeclient"
    """A certificate for any node's name."""
    SELF_NODE_CLIENT = "selfnodeclient"
    """A further certificate for the requesting node."""


class SubjectKind(StrEnum):
    """Kinds of subjects that must not have a permission."""

    BOOTSTRAPPERS = "bootstrap tokens"
    NODES = "nodes"


_KUBEADM_ROLE: Final = "system:certificates.k8s.io:certificatesigningrequests:"
NODE_CLIENT_ROLE: Final = f"{_KUBEADM_ROLE}{Permission.NODE_CLIENT}"
_KUBEADM: Final = {
    (KUBEADM_BOOTSTRAP, NODE_CLIENT_ROLE, frozenset({SubjectKind.BOOTSTRAPPERS})),
    (KUBEADM_ROTATION, f"{_KUBEADM_ROLE}{Permission.SELF_NODE_CLIENT}", frozenset({SubjectKind.NODES})),
}
"""Bindings as kubeadm makes them: name, role, and the kind of every subject."""


# What RBAC grants


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleGrant:
    """One ClusterRoleBinding that grants a permission."""

    name: str
    uid: str
    resource_version: str
    created: str
    role: str
    permissions: frozenset[Permission]
    to: frozenset[SubjectKind]
    is_kubeadm_default: bool
    """Whether it is what kubeadm creates under this name: that role, for those subjects only."""

    def __str__(self) -> str:
        permissions, to = (" and ".join(sorted(words)) for words in (self.permissions, self.to))
        return f"{self.name} ({self.role}: {permissions} to {to})"


def permissions_of_role(role: JsonObject) -> frozenset[Permission]:
    """Return the permissions that a ClusterRole grants; a role may have tens of thousands of rules."""
    creating = [
        rule for rule in items(role, "rules") if _has(rule, "verbs", "create") and _has(rule, "apiGroups", CSR_GROUP)
    ]
    return frozenset(permission for permission in Permission if any(_covers(rule, permission) for rule in creating))


def nominal_permissions(role: JsonObject) -> frozenset[Permission]:
    """As ``permissions_of_role``; of a default role also what the API server restores when it starts."""
    name = text(role, "metadata", "name")
    defaults = {permission for permission in Permission if name == f"{_KUBEADM_ROLE}{permission}"}
    return permissions_of_role(role) | defaults


def grant_of(binding: JsonObject, permissions_of: dict[str, frozenset[Permission]]) -> RoleGrant | None:
    """Read a ClusterRoleBinding, given what each ClusterRole grants; None for one that grants nothing relevant."""
    reference, name = mapping(binding, "roleRef"), text(binding, "metadata", "name")
    role = text(reference, "name") if text(reference, "kind") == "ClusterRole" else ""
    permissions = permissions_of.get(role, frozenset[Permission]())
    subjects = [_subject_kinds(subject) for subject in items(binding, "subjects")]
    to = frozenset[SubjectKind]().union(*subjects)
    if not permissions or not to:
        return None
    return RoleGrant(
        name=name,
        uid=text(binding, "metadata", "uid"),
        resource_version=text(binding, "metadata", "resourceVersion"),
        created=text(binding, "metadata", "creationTimestamp"),
        role=role,
        permissions=permissions,
        to=to,
        is_kubeadm_default=(name, role, *set(subjects)) in _KUBEADM,
    )


def bootstrap_groups_of(binding: JsonObject) -> frozenset[str]:
    groups = (text(subject, "name") for subject in items(binding, "subjects") if text(subject, "kind") == "Group")
    return frozenset(group for group in groups if group.startswith(BOOTSTRAP_GROUP_PREFIX))


def _has(rule: JsonObject, name: str, wanted: str) -> bool:
    listed = rule.get(name)
    return isinstance(listed, list) and (wanted in listed or "*" in listed)


def _covers(rule: JsonObject, permission: Permission) -> bool:
    """Evaluate resources and names; ``certificatesigningrequests/*`` means nothing to RBAC, ``*/nodeclient`` does."""
    resources = {"*", f"{CSR_RESOURCE}/{permission}", f"*/{permission}"}
    names = strings(rule, "resourceNames")
    # The approver names no object, which is the name "" (ResourceNameMatches).
    return not resources.isdisjoint(strings(rule, "resources")) and (not names or "" in names)


def _subject_kinds(subject: JsonObject) -> frozenset[SubjectKind]:
    """Return who of ours a subject is; a name in no such group cannot be a token's or a node's."""
    match text(subject, "kind"), text(subject, "name"):
        case ("Group", "system:authenticated" | "system:unauthenticated") | ("User", "system:anonymous"):
            return frozenset(SubjectKind)
        case "Group", name if name == BOOTSTRAP_GROUP or name.startswith(BOOTSTRAP_GROUP_PREFIX):
            return frozenset({SubjectKind.BOOTSTRAPPERS})
        case "User", name if name.startswith(BOOTSTRAP_USER_PREFIX):
            return frozenset({SubjectKind.BOOTSTRAPPERS})
        case "Group", name if name == NODES_GROUP:
            return frozenset({SubjectKind.NODES})
        case "User", name if name.startswith(NODE_USER_PREFIX):
            return frozenset({SubjectKind.NODES})
        case _:
            return frozenset()


# Which Nodes are attested


@dataclass(frozen=True, slots=True)
class NodeCoverage:
    """How many Nodes of a cluster there are, and which of them have no attestation record."""

    nodes: int = 0
    unattested: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether there are Nodes, and each is attested; no Node at all is no proof of anything."""
        return self.nodes > 0 and not self.unattested

    def __str__(self) -> str:
        if not self.nodes:
            return "the cluster has no Node yet"
        return f"{len(self.unattested)} of {self.nodes} Nodes are not in the ledger: {join_first(self.unattested)}"


def is_attested(node: JsonObject, cluster: ClusterKey, inventory: Inventory, now: datetime) -> bool:
    """Return whether a Node's machine joined attested and has a valid client certificate.

    1. One attestation record is bound to the Node's name, and its certificate is valid. 2. Its machine is one Machine
    or pool instance of this cluster, which owns the record. 3. The Node has that machine's provider ID, or has none and
    is the Machine's nodeRef. Nothing that the node itself may write (labels, annotations, status) counts.
    """
    name, provider_id = text(node, "metadata", "name"), text(node, "spec", "providerID")
    holders = inventory.attestations_by_node_name(cluster, NodeName(name))
    if len(holders) != 1 or holders[0].live(now) is None:  # 1
        return False
    [attestation] = holders
    members = inventory.members(cluster, attestation.provider_id)
    if len(members) != 1 or not members[0].uid or members[0].uid != attestation.owner_uid:  # 2
        return False
    if provider_id:  # 3
        return provider_id == attestation.provider_id
    return members[0].node_ref_uid is not None and members[0].node_ref_uid == text(node, "metadata", "uid")


# What is reported


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
    CERTIFICATES_ISSUED = "CertificatesIssued"
    """The in-tree signer's approval was used, for what no attestation covers."""


CLOSED_REASONS: Final = frozenset({ApprovalReason.CLOSED, ApprovalReason.CLOSED_FOR_BOOTSTRAP})


@dataclass(frozen=True, slots=True)
class Finding:
    """Status, reason and message of the condition."""

    status: ConditionStatus
    reason: ApprovalReason
    message: str


def unknown(reason: ApprovalReason, message: str) -> Finding:
    return Finding(ConditionStatus.UNKNOWN, reason, message)


def cannot_verify(message: str) -> Finding:
    return unknown(ApprovalReason.CANNOT_VERIFY, message)


def other_bootstrap_provider(provider: BootstrapProvider) -> Finding:
    message = f"a {provider.name} cluster: {provider.issuance}; leave it out of the policy"
    more = f"{message} (docs/bootstrap-config.md#other-bootstrap-providers)"
    return unknown(ApprovalReason.OTHER_BOOTSTRAP_PROVIDER, more)


NOT_INITIALIZED: Final = unknown(ApprovalReason.NOT_INITIALIZED, "the control plane is not initialized yet")
WAITING_FOR_CLUSTER_INFO: Final = unknown(
    ApprovalReason.WAITING_FOR_CLUSTER_INFO,
    "ConfigMap kube-public/cluster-info does not exist yet: kubeadm creates it after the bindings that grant the "
    "in-tree signer's automatic approval, so they may still appear",
)
"""Source: kubernetes cmd/kubeadm/app/cmd/phases/init/bootstraptoken.go (runBootstrapToken)."""
BLOCK_NOT_VERIFIED: Final = unknown(
    ApprovalReason.BLOCK_NOT_VERIFIED,
    "the API server does not refuse requests of bootstrap tokens for the in-tree signer yet: if this lasts, see "
    "whether the admission plugin ValidatingAdmissionPolicy is enabled there, and whether somebody fills the "
    f"ClusterRole {NODE_CLIENT_ROLE} again",
)


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


# The decision

AllowedPairs = frozenset[tuple[SubjectKind, Permission]]
"""Who has which permission according to the API server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFacts:
    """What was found in the workload cluster."""

    grants: tuple[RoleGrant, ...]
    allowed: AllowedPairs
    coverage: NodeCoverage
    """Counted where a binding lets nodes renew."""
    enforce: bool
    """False: the policy says ``Audit``."""
    doubt: Finding | None = None
    """Why the cluster cannot be called closed though nothing is open."""

    @property
    def opens_bootstrap(self) -> bool:
        return any(SubjectKind.BOOTSTRAPPERS in grant.to for grant in self.grants)


def decide(facts: AuditFacts) -> tuple[RoleGrant | None, Finding]:
    """Return the binding to delete, and the finding before it is deleted."""
    removable = _removable(facts)
    explained = {(subject, each) for grant in facts.grants for subject in grant.to for each in grant.permissions}
    unexplained = sorted(facts.allowed - explained)
    foreign = [grant for grant in facts.grants if not grant.is_kubeadm_default]
    if not facts.enforce and (facts.grants or facts.allowed):
        would = f"ClusterRoleBinding {removable.name}" if removable else "nothing now"
        open_by = join_first(facts.grants) if facts.grants else _authorizer(unexplained)
        counted = f"; {facts.coverage}" if facts.coverage.unattested else ""
        message = f"the policy says Audit; Enforce would delete {would}; open by {open_by}{counted}"
        return None, Finding(ConditionStatus.FALSE, ApprovalReason.AUDIT, message)
    if foreign:
        reason, message = ApprovalReason.FOREIGN_BINDING, _foreign(foreign, facts.coverage)
    elif facts.opens_bootstrap:
        reason = ApprovalReason.OPEN
        message = f"bootstrap tokens get the in-tree signer's approval by {removable}"
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
        reason, message = ApprovalReason.CLOSED, "neither bootstrap tokens nor nodes get the in-tree signer's approval"
    if facts.doubt is not None and reason in CLOSED_REASONS:
        return removable, facts.doubt
    status = ConditionStatus.TRUE if reason is ApprovalReason.CLOSED else ConditionStatus.FALSE
    return removable, Finding(status, reason, message)


def _removable(facts: AuditFacts) -> RoleGrant | None:
    """Return kubeadm's binding that goes next: that for rotation once no bootstrap token and no Node needs it."""
    defaults = {grant.name: grant for grant in facts.grants if grant.is_kubeadm_default}
    if KUBEADM_BOOTSTRAP in defaults:
        return defaults[KUBEADM_BOOTSTRAP]
    lets_in = facts.opens_bootstrap or any(subject is SubjectKind.BOOTSTRAPPERS for subject, _ in facts.allowed)
    return defaults.get(KUBEADM_ROTATION) if facts.coverage.is_complete and not lets_in else None


def _foreign(foreign: Sequence[RoleGrant], coverage: NodeCoverage) -> str:
    names = " ".join(grant.name for grant in foreign[:MAX_LISTED])
    remedy = (
        f"not made by kubeadm, so never deleted here: see who needs it, then kubectl delete clusterrolebinding {names}"
    )
    if any(SubjectKind.NODES in grant.to for grant in foreign) and not coverage.is_complete:
        remedy += f"; before that, adopt what renews by it (nodeattest machines adopt): {coverage}"
    return f"the in-tree signer approves automatically by {join_first(foreign)}; {remedy}"


def _authorizer(allowed: Iterable[tuple[SubjectKind, Permission]]) -> str:
    pairs = ", ".join(f"{subject}: create {permission}" for subject, permission in allowed)
    return (
        f"the API server lets the in-tree signer approve automatically ({pairs}), and no ClusterRoleBinding grants it: "
        "check its --authorization-mode, its authorization webhook and its ABAC policy"
    )


def join_first(values: Sequence[object]) -> str:
    """List the first values, and how many more there are."""
    more = f" and {len(values) - MAX_LISTED} more" if len(values) > MAX_LISTED else ""
    return ", ".join(map(str, values[:MAX_LISTED])) + more
