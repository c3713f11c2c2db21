"""What nodes may do: the Node authorizer, and the NodeRestriction admission.

Promises: the answers of kube-apiserver for a node without pods, which is every node here: so no Secret or ConfigMap is
related to one. CSRs for the two in-tree kubelet signers must carry the node's own name.
Source: plugin/pkg/auth/authorizer/node, plugin/pkg/admission/noderestriction.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, text_at, value_at
from nodeattest_sandbox.apiserver.rbac import Attributes, Authorizer, Rule, rules_allow
from nodeattest_sandbox.apiserver.requestinfo import RequestInfo
from nodeattest_sandbox.apiserver.status_errors import ApiError, forbidden
from nodeattest_sandbox.apiserver.users import User

__all__ = ["NODE_RULES", "NodeAuthorizer", "node_name_of", "restrict_node"]

_LEASE_NAMESPACE: Final = "kube-node-lease"
_PREFIX: Final = "system:node:"
_KUBELET_SIGNERS: Final = frozenset({"kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"})
_NOT_SUBDIVIDED: Final = frozenset({"secrets", "configmaps", "serviceaccounts"})


def _rule(verbs: str, groups: str, resources: str) -> Rule:
    split = [frozenset(word for word in text.split(",")) for text in (verbs, groups, resources)]
    return Rule(split[0], split[1], split[2], frozenset(), ())


NODE_RULES: Final = (
    _rule("create", "authentication.k8s.io", "tokenreviews"),
    _rule("create", "authorization.k8s.io", "localsubjectaccessreviews,subjectaccessreviews"),
    _rule("get,list,watch", "", "services"),
    _rule("create,get,list,watch,patch,update", "", "nodes"),
    _rule("patch,update", "", "nodes/status"),
    _rule("create,patch,update", "", "events"),
    _rule("create,get,list,watch", "certificates.k8s.io", "certificatesigningrequests"),
    _rule("create,delete,get,patch,update", "coordination.k8s.io", "leases"),
)


def node_name_of(user: User) -> str | None:
    """Return the name of the node that the user is, or None; an empty name identifies no node."""
    if "system:nodes" not in user.groups or not user.name.startswith(_PREFIX):
        return None
    return user.name.removeprefix(_PREFIX)


@dataclass(frozen=True, slots=True)
class NodeAuthorizer:
    """The authorizer chain Node,RBAC: the first that allows decides."""

    rbac: Authorizer

    def allows(self, attributes: Attributes) -> bool:
        """Return whether the node rules or RBAC allow it."""
        node = node_name_of(attributes.user)
        return bool(node and _node_may(node, attributes)) or self.rbac.allows(attributes)


def _node_may(node: str, asked: Attributes) -> bool:
    if asked.resource in _NOT_SUBDIVIDED and not asked.group:
        return False
    if asked.resource == "leases" and not _own_lease(node, asked):
        return False
    return rules_allow(NODE_RULES, asked)


def _own_lease(node: str, asked: Attributes) -> bool:
    return asked.namespace == _LEASE_NAMESPACE and (asked.verb == "create" or asked.name == node)


def restrict_node(user: User, info: RequestInfo, value: JsonMap | None, before: JsonMap | None) -> None:
    """Refuse a node's write to what is not its own; raises 403."""
    node = node_name_of(user)
    if node is None:
        return
    if not node:
        raise forbidden(info.group, info.resource, info.name, f'could not determine node from user "{user.name}"')
    name = info.name or text_at(value, "metadata", "name")
    match info.resource, info.group:
        case "nodes", "":
            _restrict_own_node(node, name, info, value, before)
        case "leases", "coordination.k8s.io" if info.namespace != _LEASE_NAMESPACE:
            why = f'can only access leases in the "{_LEASE_NAMESPACE}" system namespace'
            raise forbidden(info.group, info.resource, name, why)
        case "leases", "coordination.k8s.io" if name != node:
            why = "can only access node lease with the same name as the requesting node"
            raise forbidden(info.group, info.resource, name, why)
        case "certificatesigningrequests", "certificates.k8s.io" if info.verb == "create" and value is not None:
            _restrict_csr(user, info, name, value)
        case _:
            pass


def _restrict_own_node(node: str, name: str, info: RequestInfo, value: JsonMap | None, before: JsonMap | None) -> None:
    def refuse(why: str) -> ApiError:
        return forbidden("", "nodes", name, why)

    if name != node:
        raise refuse(f'node "{node}" is not allowed to modify node "{name}"')
    if value is None or info.subresource:
        return
    if before is not None and value_at(value, "spec", "taints") != value_at(before, "spec", "taints"):
        raise refuse(f'node "{node}" is not allowed to modify taints')
    labels, old = map_at(value, "metadata", "labels"), map_at(before, "metadata", "labels")
    changed = sorted(key for key in {*labels, *old} if labels.get(key) != old.get(key) and _forbidden_label(key))
    if changed:
        raise refuse(f'node "{node}" is not allowed to set the following labels: {", ".join(changed)}')


def _forbidden_label(key: str) -> bool:
    # Only the prefix that is reserved for node isolation; the list of labels a kubelet may set itself is longer.
    domain = key.partition("/")[0]
    return domain == "node-restriction.kubernetes.io" or domain.endswith(".node-restriction.kubernetes.io")


def _restrict_csr(user: User, info: RequestInfo, name: str, value: JsonMap) -> None:
    if text_at(value, "spec", "signerName") not in _KUBELET_SIGNERS:
        return
    if _common_name(text_at(value, "spec", "request")) != user.name:
        why = "can only create a node CSR with CN=" + user.name
        raise forbidden(info.group, info.resource, name, why)


def _common_name(request: str) -> str | None:
    try:
        csr = x509.load_pem_x509_csr(base64.b64decode(request, validate=True))
        names = csr.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except (ValueError, x509.InvalidVersion):  # binascii.Error is a ValueError
        return None
    return str(names[-1].value) if names else None
