"""ValidatingAdmissionPolicies: of CEL one form of expression is known, nodeattest-refuse-in-tree-bootstrap's.

Promises: a policy with another expression is refused when it is written, never passed over when it should refuse; a
policy without a binding that denies refuses nothing. Not here: parameters, match conditions, variables, Warn and Audit.
Source: staging/src/k8s.io/apiserver/pkg/admission/plugin/policy/validating (dispatcher.go, the words of a refusal).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at, texts_at
from nodeattest_sandbox.apiserver.requestinfo import RequestInfo
from nodeattest_sandbox.apiserver.status_errors import Cause, forbidden, invalid_field
from nodeattest_sandbox.apiserver.store import Store
from nodeattest_sandbox.apiserver.users import User

__all__ = ["BINDINGS", "GROUP", "POLICIES", "refuse_by_policy", "validate_policy"]

GROUP: Final = "admissionregistration.k8s.io"
POLICIES: Final = f"{GROUP}/validatingadmissionpolicies"
BINDINGS: Final = f"{GROUP}/validatingadmissionpolicybindings"
_EXPRESSION: Final = re.compile(
    r"object\.spec\.signerName != '(?P<signer>[^']+)' \|\| !\("
    r"\(has\(request\.userInfo\.groups\) && '(?P<group>[^']+)' in request\.userInfo\.groups\)"
    r" \|\| \(has\(request\.dryRun\) && request\.dryRun"
    r" && has\(object\.metadata\.name\) && object\.metadata\.name == '(?P<name>[^']+)'\)\)"
)


def validate_policy(value: JsonMap) -> list[Cause]:
    """Refuse what this server could not evaluate."""
    field, known = "spec.validations[0].expression", [*maps_at(value, "spec", "validations")]
    expression = text_at(known[0], "expression") if len(known) == 1 else ""
    if _EXPRESSION.fullmatch(expression) and set(map_at(value, "spec")) <= {
        "failurePolicy",
        "matchConstraints",
        "validations",
    }:
        return []
    return [invalid_field(field, f'"{expression}"', "the sandbox evaluates one form of expression only")]


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
    denying = {
        text_at(binding.value, "spec", "policyName")
        for binding in store.list(BINDINGS)
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
