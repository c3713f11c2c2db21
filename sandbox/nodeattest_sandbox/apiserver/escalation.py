"""Nobody gives away by RBAC what he does not hold: the check on writes of roles and bindings.

Promises: a role may be written by who holds all of its rules or may ``escalate`` it, a binding by who holds all rules
of its role or may ``bind`` it. Source: pkg/registry/rbac/escalation_check.go and the policybased storages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Final

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at
from nodeattest_sandbox.apiserver.rbac import Attributes, Rbac, Rule, read_rules
from nodeattest_sandbox.apiserver.requestinfo import RequestInfo
from nodeattest_sandbox.apiserver.status_errors import forbidden, not_found
from nodeattest_sandbox.apiserver.users import User

__all__ = ["refuse_escalation"]

_GROUP: Final = "rbac.authorization.k8s.io"
_ROLES: Final = frozenset({"roles", "clusterroles"})
_BINDINGS: Final = frozenset({"rolebindings", "clusterrolebindings"})


def refuse_escalation(rbac: Rbac, user: User, info: RequestInfo, value: JsonMap, before: JsonMap | None) -> None:
    """Refuse a role or binding that gives more than the user holds; raises 403."""
    if info.group != _GROUP or "system:masters" in user.groups:
        return
    if info.resource in _ROLES:
        # A creation bears no name, so "escalate" limited to a name does not help there: so it is in the real server.
        same = before is not None and before.get("rules") == value.get("rules")
        allowed = same or rbac.allows(_question(user, info, "escalate", info.resource, info.name))
        rules = read_rules(value)
    elif info.resource in _BINDINGS:
        resource, name = f"{text_at(value, 'roleRef', 'kind').lower()}s", text_at(value, "roleRef", "name")
        allowed = rbac.allows(_question(user, info, "bind", resource, name))
        found = rbac.role(value, info.namespace)
        if found is None and not allowed:
            raise not_found(_GROUP, resource, name)
        rules = found or ()
    else:
        return
    if not allowed and not _holds(list(rbac.rules_for(user, info.namespace)), rules):
        who = f'user "{user.name}" (groups={list(user.groups)})'
        why = f"{who} is attempting to grant RBAC permissions not currently held"
        raise forbidden(_GROUP, info.resource, text_at(value, "metadata", "name"), why)


def _question(user: User, info: RequestInfo, verb: str, resource: str, name: str) -> Attributes:
    return Attributes(user, verb, _GROUP, resource, "", info.namespace, name)


def _holds(held: list[Rule], rules: Iterable[Rule]) -> bool:
    return all(any(_covers(owner, part) for owner in held) for rule in rules for part in _parts(rule))


def _parts(rule: Rule) -> Iterator[Rule]:
    """Yield the rule as rules of one verb on one thing each."""
    names = [frozenset({name}) for name in rule.names] or [frozenset[str]()]
    for verb, group, resource, name in product(rule.verbs, rule.groups, rule.resources, names):
        yield Rule(frozenset({verb}), frozenset({group}), frozenset({resource}), name, ())
    for verb, path in product(rule.verbs, rule.paths):
        yield Rule(frozenset({verb}), frozenset(), frozenset(), frozenset(), (path,))


def _covers(owner: Rule, part: Rule) -> bool:
    if "*" not in owner.verbs and not part.verbs <= owner.verbs:
        return False
    if part.paths:
        return all(any(_path_covers(held, path) for held in owner.paths) for path in part.paths)
    if "*" not in owner.groups and not part.groups <= owner.groups:
        return False
    (resource,) = part.resources
    wider = {"*", resource} | ({f"*/{resource.partition('/')[2]}"} if "/" in resource else set[str]())
    if owner.resources.isdisjoint(wider):
        return False
    return not owner.names or (bool(part.names) and part.names <= owner.names)


def _path_covers(held: str, path: str) -> bool:
    return held == path or (held.endswith("*") and path.startswith(held.rstrip("*")))
