"""Who gets the in-tree signer's approval without being asked: RBAC's answer, binding by binding. Pure.

The in-tree approver asks, for whoever filed a request, whether he may ``create`` the subresource ``nodeclient`` (a
certificate for any node) or ``selfnodeclient`` (for himself) of certificatesigningrequests, in no namespace: hence
RoleBindings never grant it, and rules that name objects neither, but for the empty name. What aggregates other roles
holds their rules itself.
Leaves to others: whether another authorizer grants it (a SubjectAccessReview tells).
Sources: kubernetes pkg/controller/certificates/approver/sarapprove.go; plugin/pkg/auth/authorizer/rbac/rbac.go
(VisitRulesFor, RuleAllows) and pkg/apis/rbac/v1/evaluation_helpers.go; cmd/kubeadm/app/phases/bootstraptoken/node/
tlsbootstrap.go; staging k8s.io/cluster-bootstrap/token/api (BootstrapGroupPattern).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from nodeattest_controller.model.objects import items, mapping, moment, strings, text
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.names import NODE_USER_PREFIX, NODES_GROUP

__all__ = [
    "BOOTSTRAP_GROUP",
    "BOOTSTRAP_GROUP_PREFIX",
    "BOOTSTRAP_USER_PREFIX",
    "CSR_GROUP",
    "CSR_RESOURCE",
    "KUBEADM_BOOTSTRAP",
    "KUBEADM_ROTATION",
    "KUBEADM_TOKEN_GROUP",
    "NODE_CLIENT_ROLE",
    "RBAC_GROUP",
    "Door",
    "Grant",
    "Who",
    "bootstrap_groups_of",
    "concerns_us",
    "doors_of_role",
    "grant_of",
    "nominal_doors",
]

RBAC_GROUP: Final = "rbac.authorization.k8s.io"
CSR_GROUP: Final = "certificates.k8s.io"
CSR_RESOURCE: Final = "certificatesigningrequests"
KUBEADM_BOOTSTRAP: Final = "kubeadm:node-autoapprove-bootstrap"
KUBEADM_ROTATION: Final = "kubeadm:node-autoapprove-certificate-rotation"
KUBEADM_TOKEN_GROUP: Final = "system:bootstrappers:kubeadm:default-node-token"
BOOTSTRAP_GROUP: Final = "system:bootstrappers"
BOOTSTRAP_GROUP_PREFIX: Final = f"{BOOTSTRAP_GROUP}:"
BOOTSTRAP_USER_PREFIX: Final = "system:bootstrap:"
_EVERYBODY: Final = frozenset({"system:authenticated", "system:unauthenticated"})
_ANONYMOUS: Final = "system:anonymous"


class Door(StrEnum):
    """What the in-tree approver asks for."""

    NODE_CLIENT = "nodeclient"
    """A certificate for any node's name."""
    SELF_NODE_CLIENT = "selfnodeclient"
    """A further certificate for the node that asks."""


class Who(StrEnum):
    """Who must not pass."""

    BOOTSTRAPPERS = "bootstrap tokens"
    NODES = "nodes"


_KUBEADM: Final = {
    KUBEADM_BOOTSTRAP: (Door.NODE_CLIENT, Who.BOOTSTRAPPERS),
    KUBEADM_ROTATION: (Door.SELF_NODE_CLIENT, Who.NODES),
}
_KUBEADM_ROLE: Final = "system:certificates.k8s.io:certificatesigningrequests:"
NODE_CLIENT_ROLE: Final = f"{_KUBEADM_ROLE}{Door.NODE_CLIENT}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One ClusterRoleBinding by which somebody passes."""

    name: str
    uid: str
    resource_version: str
    role: str
    doors: frozenset[Door]
    to: frozenset[Who]
    is_kubeadms: bool
    """Whether it is what kubeadm makes under this name: that role, for those alone."""
    created: datetime | None = None

    def __str__(self) -> str:
        """Say what it grants to whom."""
        doors, to = (" and ".join(sorted(words)) for words in (self.doors, self.to))
        return f"{self.name} ({self.role}: {doors} to {to})"


def doors_of_role(role: JsonObject) -> frozenset[Door]:
    """Tell what a ClusterRole lets pass."""
    rules = items(role, "rules")
    return frozenset(door for door in Door if any(_covers(rule, door) for rule in rules))


def nominal_doors(role: JsonObject) -> frozenset[Door]:
    """Tell what a ClusterRole lets pass, or will again: the API server restores its own roles when it starts."""
    name = text(role, "metadata", "name")
    return doors_of_role(role) | {door for door in Door if name == f"{_KUBEADM_ROLE}{door}"}


def concerns_us(binding: JsonObject) -> bool:
    """Tell whether a binding names bootstrap tokens, nodes or everybody."""
    return any(_who(subject) for subject in items(binding, "subjects"))


def grant_of(binding: JsonObject, doors_of: dict[str, frozenset[Door]]) -> Grant | None:
    """Read a ClusterRoleBinding, given what each ClusterRole lets pass; None for one that lets none of them pass."""
    reference, name = mapping(binding, "roleRef"), text(binding, "metadata", "name")
    role = text(reference, "name") if text(reference, "kind") == "ClusterRole" else ""
    doors = doors_of.get(role, frozenset[Door]())
    found = [_who(subject) for subject in items(binding, "subjects")]
    to = frozenset[Who]().union(*found)
    if not doors or not to:
        return None
    kubeadms = _KUBEADM.get(name)
    is_kubeadms = kubeadms is not None and role == f"{_KUBEADM_ROLE}{kubeadms[0]}"
    return Grant(
        name=name,
        uid=text(binding, "metadata", "uid"),
        resource_version=text(binding, "metadata", "resourceVersion"),
        role=role,
        doors=doors,
        to=to,
        created=moment(text(binding, "metadata", "creationTimestamp")),
        is_kubeadms=is_kubeadms and kubeadms is not None and all(who == frozenset({kubeadms[1]}) for who in found),
    )


def bootstrap_groups_of(binding: JsonObject) -> frozenset[str]:
    """Return the groups of bootstrap tokens that a binding names."""
    groups = (text(subject, "name") for subject in items(binding, "subjects") if text(subject, "kind") == "Group")
    return frozenset(group for group in groups if group.startswith(BOOTSTRAP_GROUP_PREFIX))


def _covers(rule: JsonObject, door: Door) -> bool:
    """Evaluate one PolicyRule; ``certificatesigningrequests/*`` means nothing to RBAC, ``*/nodeclient`` does."""
    resources = {"*", f"{CSR_RESOURCE}/{door}", f"*/{door}"}
    names = strings(rule, "resourceNames")
    return (
        not {"*", "create"}.isdisjoint(strings(rule, "verbs"))
        and not {"*", CSR_GROUP}.isdisjoint(strings(rule, "apiGroups"))
        and not resources.isdisjoint(strings(rule, "resources"))
        and (not names or "" in names)  # the question names no object, which is the name "" (ResourceNameMatches)
    )


def _who(subject: JsonObject) -> frozenset[Who]:
    """Tell who of ours a subject is; a name in no such group cannot be a token's or a node's."""
    kind, name = text(subject, "kind"), text(subject, "name")
    if (kind == "Group" and name in _EVERYBODY) or (kind == "User" and name == _ANONYMOUS):
        return frozenset(Who)
    if kind == "Group":
        is_bootstrap = name == BOOTSTRAP_GROUP or name.startswith(BOOTSTRAP_GROUP_PREFIX)
        is_node = name == NODES_GROUP
    else:
        is_bootstrap = kind == "User" and name.startswith(BOOTSTRAP_USER_PREFIX)
        is_node = kind == "User" and name.startswith(NODE_USER_PREFIX)
    return frozenset({Who.BOOTSTRAPPERS} if is_bootstrap else {Who.NODES} if is_node else ())
