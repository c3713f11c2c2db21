"""What a request asks for, and whether the roles that are bound to its user allow it.

Promises: the attributes on which kube-apiserver authorizes, and the answer of its RBAC authorizer for the same objects;
aggregation is a controller's work.
Source: k8s.io/apiserver/pkg/endpoints/request/requestinfo.go; plugin/pkg/auth/authorizer/rbac/rbac.go,
pkg/apis/rbac/v1/evaluation_helpers.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at, texts_at
from nodeattest_sandbox.apiserver.store import Key, Store
from nodeattest_sandbox.apiserver.users import User

_VERBS: Final = {"POST": "create", "GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_COLLECTION_VERBS: Final = {"get": "list", "delete": "deletecollection"}
_NAMESPACE_SUBRESOURCES: Final = frozenset({"status", "finalize"})
_TRUE: Final = frozenset({"1", "true", "True", "t", "T", "TRUE"})  # Go's strconv.ParseBool


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """One request, or a question about one; ``resource`` is empty for a path that is no resource."""

    verb: str
    path: str = ""
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def full_resource(self) -> str:
        """Return ``resource/subresource``, as RBAC rules spell it."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


def read_request(method: str, path: str, query: Mapping[str, str]) -> RequestInfo:
    """Read the attributes of a request."""
    verb = _VERBS.get(method, method.lower())
    parts = [part for part in path.split("/") if part]
    match parts:
        case ["api", version, *rest] if rest:
            group = ""
        case ["apis", group, version, *rest] if rest:
            pass
        case _:
            return RequestInfo(method.lower(), path)
    namespace, rest = _split_namespace(rest)
    resource, name, subresource = [*rest[:3], "", "", ""][:3]
    if not name:
        verb = _COLLECTION_VERBS.get(verb, verb)
        name = _name_of(query.get("fieldSelector", "")) if verb in {"list", "deletecollection"} else ""
    if verb in {"list", "get"} and query.get("watch") in _TRUE:
        verb = "watch"
    if resource == "namespaces" and not group:
        namespace = name
    return RequestInfo(verb, path, group, version, resource, subresource, namespace, name)


def _split_namespace(rest: list[str]) -> tuple[str, list[str]]:
    if rest[0] != "namespaces" or len(rest) <= 2 or rest[2] in _NAMESPACE_SUBRESOURCES:  # noqa: PLR2004 - namespaces/<ns>
        return "", rest
    return rest[1], rest[2:]


def _name_of(field_selector: str) -> str:
    for term in field_selector.split(","):
        key, _, value = term.partition("=")
        if key == "metadata.name":
            return value.removeprefix("=")
    return ""


_GROUP: Final = "rbac.authorization.k8s.io"
_ROLES, _CLUSTER_ROLES = f"{_GROUP}/roles", f"{_GROUP}/clusterroles"
_BINDINGS, _CLUSTER_BINDINGS = f"{_GROUP}/rolebindings", f"{_GROUP}/clusterrolebindings"


@dataclass(frozen=True, slots=True)
class Rule:
    """One PolicyRule."""

    verbs: frozenset[str]
    groups: frozenset[str]
    resources: frozenset[str]
    names: frozenset[str]
    paths: tuple[str, ...]

    def allows(self, asked: RequestInfo) -> bool:
        """Return whether the rule covers what is asked."""
        if "*" not in self.verbs and asked.verb not in self.verbs:
            return False
        return self._covers_path(asked.path) if not asked.resource else self._covers_resource(asked)

    def _covers_resource(self, asked: RequestInfo) -> bool:
        if "*" not in self.groups and asked.group not in self.groups:
            return False
        wanted = {"*", asked.full_resource}
        if asked.subresource:
            wanted.add(f"*/{asked.subresource}")
        if self.resources.isdisjoint(wanted):
            return False
        return not self.names or asked.name in self.names

    def _covers_path(self, path: str) -> bool:
        return any(rule == path or (rule.endswith("*") and path.startswith(rule.rstrip("*"))) for rule in self.paths)


def read_rules(role: JsonMap) -> tuple[Rule, ...]:
    """Read the rules of a Role or ClusterRole."""
    return tuple(
        Rule(
            frozenset(texts_at(rule, "verbs")),
            frozenset(texts_at(rule, "apiGroups")),
            frozenset(texts_at(rule, "resources")),
            frozenset(texts_at(rule, "resourceNames")),
            tuple(texts_at(rule, "nonResourceURLs")),
        )
        for rule in maps_at(role, "rules")
    )


def rules_allow(rules: Iterable[Rule], asked: RequestInfo) -> bool:
    """Return whether one of the rules covers what is asked."""
    return any(rule.allows(asked) for rule in rules)


class Rbac:
    """The RBAC authorizer; reads the objects anew only after one of them changed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen = -1
        self._cluster_wide: dict[str, list[Rule]] = {}
        self._namespaced: dict[tuple[str, str], list[Rule]] = {}

    def allows(self, user: User, asked: RequestInfo) -> bool:
        """Return whether a role bound to the user or one of its groups covers what is asked."""
        if "system:masters" in user.groups:
            return True
        return rules_allow(self.rules_for(user, asked.namespace), asked)

    def rules_for(self, user: User, namespace: str) -> Iterator[Rule]:
        """Yield the rules that are bound to the user, in the namespace and cluster-wide."""
        self._refresh()
        for subject in _subjects_of(user):
            yield from self._cluster_wide.get(subject, ())
            if namespace:
                yield from self._namespaced.get((namespace, subject), ())

    def _refresh(self) -> None:
        seen = self._store.generation(_ROLES, _CLUSTER_ROLES, _BINDINGS, _CLUSTER_BINDINGS)
        if seen == self._seen:
            return
        self._seen = seen
        self._cluster_wide, self._namespaced = {}, {}
        for stored in self._store.list(_CLUSTER_BINDINGS):
            for subject in _subjects(stored.value, ""):
                self._cluster_wide.setdefault(subject, []).extend(self.role(stored.value, "") or ())
        for stored in self._store.list(_BINDINGS):
            namespace = text_at(stored.value, "metadata", "namespace")
            for subject in _subjects(stored.value, namespace):
                self._namespaced.setdefault((namespace, subject), []).extend(self.role(stored.value, namespace) or ())

    def role(self, binding: JsonMap, namespace: str) -> tuple[Rule, ...] | None:
        """Return the rules of the role that a binding refers to, or None when it is not there."""
        reference = map_at(binding, "roleRef")
        name = text_at(reference, "name")
        if text_at(reference, "kind") == "ClusterRole":
            found = self._store.get(_CLUSTER_ROLES, Key("", name))
        else:
            found = self._store.get(_ROLES, Key(namespace, name)) if namespace else None
        return read_rules(found.value) if found else None


def _subjects_of(user: User) -> Iterator[str]:
    yield f"User/{user.name}"
    for group in user.groups:
        yield f"Group/{group}"


def _subjects(binding: JsonMap, namespace: str) -> Iterator[str]:
    for subject in maps_at(binding, "subjects"):
        name = text_at(subject, "name")
        match text_at(subject, "kind"):
            case "ServiceAccount":
                yield f"User/system:serviceaccount:{text_at(subject, 'namespace') or namespace}:{name}"
            case kind:
                yield f"{kind}/{name}"
