"""What nodes and approvers may do besides RBAC, and admission policies.

* A node writes its own Node and Lease only (Node authorizer and NodeRestriction).
* ``approve`` and ``sign`` are asked on the signer of the *old* object, by its name and then by ``<domain>/*``.
* A binding needs the right to bind its role. A real server lets those who hold the role's rules bind it, too.
* Of CEL one form of expression is known, nodeattest-refuse-in-tree-bootstrap's; a policy with another one is refused.

Source: plugin/pkg/auth/authorizer/node, plugin/pkg/admission/{noderestriction,certificates}.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, items_at, maps_at, text_at, texts_at
from nodeattest_sandbox.apiserver.rbac import Rbac, RequestInfo, Rule, rules_allow
from nodeattest_sandbox.apiserver.status_errors import Cause, forbidden, invalid_field
from nodeattest_sandbox.apiserver.store import Store
from nodeattest_sandbox.apiserver.users import User

_GROUP: Final = "admissionregistration.k8s.io"
POLICIES: Final = f"{_GROUP}/validatingadmissionpolicies"
_BINDINGS: Final = f"{_GROUP}/validatingadmissionpolicybindings"
_REQUESTS: Final = ("certificates.k8s.io", "certificatesigningrequests")
_LEASE_NAMESPACE: Final = "kube-node-lease"
_EXPRESSION: Final = re.compile(
    r"object\.spec\.signerName != '(?P<signer>[^']+)' \|\| !\("
    r"\(has\(request\.userInfo\.groups\) && '(?P<group>[^']+)' in request\.userInfo\.groups\)"
    r" \|\| \(has\(request\.dryRun\) && request\.dryRun"
    r" && has\(object\.metadata\.name\) && object\.metadata\.name == '(?P<name>[^']+)'\)\)"
)


def _rule(verbs: str, group: str, resources: str) -> Rule:
    return Rule(frozenset(verbs.split(",")), frozenset({group}), frozenset(resources.split(",")), frozenset(), ())


NODE_RULES: Final = (
    _rule("create", "authentication.k8s.io", "tokenreviews"),
    _rule("create", "authorization.k8s.io", "localsubjectaccessreviews,subjectaccessreviews"),
    _rule("get,list,watch", "", "services"),
    _rule("create,get,list,watch,patch,update", "", "nodes"),
    _rule("patch,update", "", "nodes/status"),
    _rule("create,patch,update", "", "events"),
    _rule("create,get,list,watch", *_REQUESTS),
    _rule("create,delete,get,patch,update", "coordination.k8s.io", "leases"),
)


def _node_of(user: User) -> str | None:
    """Return the name of the node that the user is, or None."""
    is_node = "system:nodes" in user.groups and user.name.startswith("system:node:")
    return user.name.removeprefix("system:node:") if is_node else None


@dataclass(frozen=True, slots=True)
class NodeAuthorizer:
    """The authorizer chain Node,RBAC: the first that allows decides."""

    rbac: Rbac

    def allows(self, user: User, asked: RequestInfo) -> bool:
        """Return whether the node rules or RBAC allow it."""
        node = _node_of(user)
        may_lease = asked.namespace == _LEASE_NAMESPACE and (asked.verb == "create" or asked.name == node)
        of_node = bool(node) and (asked.resource != "leases" or may_lease) and rules_allow(NODE_RULES, asked)
        return of_node or self.rbac.allows(user, asked)


def admit(
    authorizer: NodeAuthorizer, user: User, info: RequestInfo, value: JsonMap | None, before: JsonMap | None
) -> None:
    """Refuse a write that the user may not make; ``value`` is None for a removal, ``before`` for a creation."""
    node, name = _node_of(user), info.name or text_at(value, "metadata", "name")
    if node is not None and info.resource in {"nodes", "leases"} and name != node:
        raise forbidden(info.group, info.resource, name, f'node "{node}" is not allowed to modify node "{name}"')
    if value is not None and info.resource.endswith("rolebindings") and "system:masters" not in user.groups:
        resource, role = f"{text_at(value, 'roleRef', 'kind').lower()}s", text_at(value, "roleRef", "name")
        bind = RequestInfo("bind", group=info.group, resource=resource, namespace=info.namespace, name=role)
        if not authorizer.allows(user, bind):
            why = f'user "{user.name}" is attempting to grant RBAC permissions without the right to bind'
            raise forbidden(info.group, info.resource, name, why)
    if (info.group, info.resource) != _REQUESTS or value is None or before is None:
        return
    verb, signer = _verb(info.subresource, value, before), text_at(before, "spec", "signerName")
    names = (signer, f"{signer.partition('/')[0]}/*")
    asked = (RequestInfo(verb, group=info.group, resource="signers", name=one) for one in names)
    if verb and not any(authorizer.allows(user, one) for one in asked):
        why = f'user not permitted to {verb} requests with signerName "{signer}"'
        raise forbidden(info.group, info.resource, info.name, why)


def _verb(subresource: str, value: JsonMap, before: JsonMap) -> str:
    if subresource == "approval":
        return "approve"
    changed = text_at(value, "status", "certificate") != text_at(before, "status", "certificate") or items_at(
        value, "status", "conditions"
    ) != items_at(before, "status", "conditions")
    return "sign" if subresource == "status" and changed else ""


def validate_policy(value: JsonMap) -> list[Cause]:
    """Refuse what this server could not evaluate."""
    expressions = [text_at(one, "expression") for one in maps_at(value, "spec", "validations")]
    if len(expressions) == 1 and _EXPRESSION.fullmatch(expressions[0]):
        return []
    why = "the sandbox evaluates one form of expression only"
    return [invalid_field("spec.validations[0].expression", f'"{"".join(expressions)}"', why)]


def refuse_by_policy(store: Store, user: User, info: RequestInfo, value: JsonMap, *, dry_run: bool) -> None:
    """Refuse a creation that a policy in force refuses; raises 403."""
    for name, validation in _in_force(store, info):
        found = _EXPRESSION.fullmatch(text_at(validation, "expression"))
        if found is None or text_at(value, "spec", "signerName") != found["signer"]:
            continue
        if found["group"] in user.groups or (dry_run and text_at(value, "metadata", "name") == found["name"]):
            message = text_at(validation, "message")
            why = f"ValidatingAdmissionPolicy '{name}' with binding '{name}' denied request: {message}"
            raise forbidden(info.group, info.resource, text_at(value, "metadata", "name"), why)


def _in_force(store: Store, info: RequestInfo) -> Iterator[tuple[str, JsonMap]]:
    """Yield the validations of policies that match the creation and have a binding that denies."""
    denying = {
        text_at(binding.value, "spec", "policyName")
        for binding in store.list(_BINDINGS)
        if "Deny" in texts_at(binding.value, "spec", "validationActions")
    }
    for policy in store.list(POLICIES):
        name = text_at(policy.value, "metadata", "name")
        rules = maps_at(policy.value, "spec", "matchConstraints", "resourceRules")
        if name in denying and any(
            info.group in texts_at(rule, "apiGroups")
            and info.resource in texts_at(rule, "resources")
            and "CREATE" in texts_at(rule, "operations")
            for rule in rules
        ):
            yield from ((name, validation) for validation in maps_at(policy.value, "spec", "validations"))
