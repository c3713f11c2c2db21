"""What a request asks for, read from method, path and query.

Promises: the verb and the attributes on which kube-apiserver authorizes.
Source: k8s.io/apiserver/pkg/endpoints/request/requestinfo.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["RequestInfo", "read_request"]

_VERBS: Final = {"POST": "create", "GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_COLLECTION_VERBS: Final = {"get": "list", "delete": "deletecollection"}
_NAMESPACE_SUBRESOURCES: Final = frozenset({"status", "finalize"})
_TRUE: Final = frozenset({"1", "true", "True", "t", "T", "TRUE"})  # Go's strconv.ParseBool


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """One request; ``resource`` is empty for a path that is no resource."""

    verb: str
    path: str
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
