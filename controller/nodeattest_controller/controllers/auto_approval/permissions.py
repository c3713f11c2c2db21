"""Which ClusterRoleBindings grant the in-tree signer's automatic approval, to whom, and which Nodes need it. Pure.

The in-tree approver checks whether the requester of a CSR may ``create`` the subresource ``nodeclient`` (a
certificate for any node) or ``selfnodeclient`` (for itself) of certificatesigningrequests, in no namespace. Hence
RoleBindings never grant it, nor do rules that name objects, except the empty name. What aggregates other roles holds
their rules itself. Out of scope: other authorizers (a SubjectAccessReview shows them).

A Node needs no in-tree signer when its machine joined attested and has a client certificate that is still valid.
Nothing that the node itself may write (labels, annotations, its status) takes it out of the count.
Sources: kubernetes pkg/controller/certificates/approver/sarapprove.go; plugin/pkg/auth/authorizer/rbac/rbac.go
(VisitRulesFor, RuleAllows) and pkg/apis/rbac/v1/evaluation_helpers.go; cmd/kubeadm/app/phases/bootstraptoken/node/
tlsbootstrap.go; staging k8s.io/cluster-bootstrap/token/api (BootstrapGroupPattern).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from nodeattest_controller.runtime.indexes import ClusterKey, Inventory
from nodeattest_parsing.objects import items, mapping, moment, strings, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.identifiers import NODE_USER_PREFIX, NODES_GROUP, NodeName

RBAC_GROUP: Final = "rbac.authorization.k8s.io"
CSR_GROUP: Final = "certificates.k8s.io"
CSR_RESOURCE: Final = "certificatesigningrequests"
KUBEADM_BOOTSTRAP: Final = "kubeadm:node-autoapprove-bootstrap"
KUBEADM_ROTATION: Final = "kubeadm:node-autoapprove-certificate-rotation"
KUBEADM_TOKEN_GROUP: Final = "system:bootstrappers:kubeadm:default-node-token"
BOOTSTRAP_GROUP: Final = "system:bootstrappers"
BOOTSTRAP_GROUP_PREFIX: Final = f"{BOOTSTRAP_GROUP}:"
BOOTSTRAP_USER_PREFIX: Final = "system:bootstrap:"


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
_KUBEADM: Final = {
    (KUBEADM_BOOTSTRAP, f"{_KUBEADM_ROLE}{Permission.NODE_CLIENT}", frozenset({SubjectKind.BOOTSTRAPPERS})),
    (KUBEADM_ROTATION, f"{_KUBEADM_ROLE}{Permission.SELF_NODE_CLIENT}", frozenset({SubjectKind.NODES})),
}
"""Bindings as kubeadm makes them: name, role, and the kind of every subject."""
NODE_CLIENT_ROLE: Final = f"{_KUBEADM_ROLE}{Permission.NODE_CLIENT}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleGrant:
    """One ClusterRoleBinding that grants a permission."""

    name: str
    uid: str
    resource_version: str
    role: str
    permissions: frozenset[Permission]
    to: frozenset[SubjectKind]
    is_kubeadm_default: bool
    """Whether it is what kubeadm creates under this name: that role, for those subjects only."""
    created: datetime | None = None

    def __str__(self) -> str:
        """Describe what it grants to whom."""
        permissions, to = (" and ".join(sorted(words)) for words in (self.permissions, self.to))
        return f"{self.name} ({self.role}: {permissions} to {to})"


def permissions_of_role(role: JsonObject) -> frozenset[Permission]:
    """Return the permissions that a ClusterRole grants."""
    creating = [rule for rule in items(role, "rules") if _creates_requests(rule)]
    return frozenset(permission for permission in Permission if any(_covers(rule, permission) for rule in creating))


def nominal_permissions(role: JsonObject) -> frozenset[Permission]:
    """As ``permissions_of_role``; of a default role also what the API server restores when it starts."""
    name = text(role, "metadata", "name")
    return permissions_of_role(role) | {
        permission for permission in Permission if name == f"{_KUBEADM_ROLE}{permission}"
    }


def grant_of(binding: JsonObject, permissions_of: dict[str, frozenset[Permission]]) -> RoleGrant | None:
    """Read a ClusterRoleBinding, given what each ClusterRole grants; None for one that grants nothing relevant."""
    reference, name = mapping(binding, "roleRef"), text(binding, "metadata", "name")
    role = text(reference, "name") if text(reference, "kind") == "ClusterRole" else ""
    permissions = permissions_of.get(role, frozenset[Permission]())
    found = [_subject_kinds(subject) for subject in items(binding, "subjects")]
    to = frozenset[SubjectKind]().union(*found)
    if not permissions or not to:
        return None
    return RoleGrant(
        name=name,
        uid=text(binding, "metadata", "uid"),
        resource_version=text(binding, "metadata", "resourceVersion"),
        role=role,
        permissions=permissions,
        to=to,
        created=moment(text(binding, "metadata", "creationTimestamp")),
        is_kubeadm_default=(name, role, *set(found)) in _KUBEADM,
    )


def bootstrap_groups_of(binding: JsonObject) -> frozenset[str]:
    """Return the groups of bootstrap tokens that a binding names."""
    groups = (text(subject, "name") for subject in items(binding, "subjects") if text(subject, "kind") == "Group")
    return frozenset(group for group in groups if group.startswith(BOOTSTRAP_GROUP_PREFIX))


def _creates_requests(rule: JsonObject) -> bool:
    """Evaluate verbs and groups of one PolicyRule: a role may have tens of thousands, few of which do."""
    return _has(rule, "verbs", "create") and _has(rule, "apiGroups", CSR_GROUP)


def _has(rule: JsonObject, name: str, wanted: str) -> bool:
    listed = rule.get(name)
    return isinstance(listed, list) and (wanted in listed or "*" in listed)


def _covers(rule: JsonObject, permission: Permission) -> bool:
    """Evaluate the rest; ``certificatesigningrequests/*`` means nothing to RBAC, ``*/nodeclient`` does."""
    resources = {"*", f"{CSR_RESOURCE}/{permission}", f"*/{permission}"}
    names = strings(rule, "resourceNames")
    # The question names no object, which is the name "" (ResourceNameMatches).
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


NAMED: Final = 10
"""Nodes that a message names."""


@dataclass(slots=True)
class NodeCoverage:
    """The Nodes of one cluster, counted."""

    nodes: int = 0
    unattested: int = 0
    names: tuple[str, ...] = ()
    """The first of those that are not in the ledger."""
    created: dict[str, datetime | None] = field(default_factory=dict[str, "datetime | None"])
    """When each was."""

    def count(self, name: str, *, attested: bool, created: datetime | None = None) -> None:
        """Count one Node."""
        self.nodes += 1
        self.created[name] = created
        if not attested:
            self.unattested += 1
            if len(self.names) < NAMED:
                self.names = (*self.names, name)

    @property
    def is_complete(self) -> bool:
        """Whether there are Nodes, and each is attested; no Node at all is no proof of anything."""
        return self.nodes > 0 and not self.unattested

    def __str__(self) -> str:
        """Say how many are not in the ledger, and the first of them by name."""
        if not self.nodes:
            return "the cluster has no Node yet"
        more = f" and {self.unattested - len(self.names)} more" if self.unattested > len(self.names) else ""
        return f"{self.unattested} of {self.nodes} Nodes are not in the ledger: {', '.join(self.names)}{more}"


def is_attested(node: JsonObject, cluster: ClusterKey, inventory: Inventory, now: datetime) -> bool:
    """Return whether a Node's machine joined attested and has a valid client certificate.

    1. One attestation record is bound to the Node's name, and its certificate lives. 2. Its machine is one Machine or
    pool instance of this cluster, which owns the record. 3. The Node has that machine's provider ID, or has none and is
    the Machine's nodeRef.
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
