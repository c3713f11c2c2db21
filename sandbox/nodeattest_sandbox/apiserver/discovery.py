"""The paths that are no resources: health, version, discovery, and the test hook; all else is a 404."""

from __future__ import annotations

from typing import Final

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, dump
from nodeattest_sandbox.apiserver.kinds import Kinds
from nodeattest_sandbox.apiserver.status_errors import unknown_path

__all__ = ["COMPACT", "REVIEWS", "answer"]

COMPACT: Final = "/sandbox/compact"  # POST makes the server forget its watch history; RBAC guards it like any path.
# Virtual resources: (group, plural) to kind. They answer and store nothing.
REVIEWS: Final = {
    ("authentication.k8s.io", "tokenreviews"): "TokenReview",
    ("authentication.k8s.io", "selfsubjectreviews"): "SelfSubjectReview",
    ("authorization.k8s.io", "subjectaccessreviews"): "SubjectAccessReview",
    ("authorization.k8s.io", "selfsubjectaccessreviews"): "SelfSubjectAccessReview",
}
_VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_HEALTH: Final = frozenset({"/healthz", "/livez", "/readyz", COMPACT})
_VERSION: Final[JsonMap] = {"major": "1", "minor": "37", "gitVersion": "v1.37.0+nodeattest.sandbox"}


def answer(kinds: Kinds, path: str) -> tuple[bytes, str]:
    """Return the answer and its content type; raises 404."""
    if path in _HEALTH:
        return b"ok", "text/plain"
    found = _document(kinds, path.strip("/").split("/"))
    if found is None:
        raise unknown_path()
    return dump(found), "application/json"


def _document(kinds: Kinds, parts: list[str]) -> JsonMap | None:  # noqa: PLR0911 - one a path
    match parts:
        case ["version"]:
            return _VERSION
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["apis"]:
            names = dict.fromkeys([*(kind.group for kind in kinds if kind.group), *(group for group, _ in REVIEWS)])
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(kinds, name) for name in names]}
        case ["apis", name] if _versions(kinds, name):
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(kinds, name)}
        case ["api", version]:
            return _resources(kinds, "", version)
        case ["apis", name, version] if version in _versions(kinds, name):
            return _resources(kinds, name, version)
        case _:
            return None


def _resources(kinds: Kinds, group: str, version: str) -> JsonMap:
    found: list[JsonValue] = []
    for kind in (kind for kind in kinds if (kind.group, kind.version) == (group, version)):
        for name in (kind.plural, *(f"{kind.plural}/{part}" for part in sorted(kind.subresources))):
            verbs: list[JsonValue] = ["get", "patch", "update"] if "/" in name else [*_VERBS]
            found.append({"name": name, "namespaced": kind.namespaced, "kind": kind.kind, "verbs": verbs})
    name = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": found}


def _versions(kinds: Kinds, name: str) -> list[str]:
    """Return a group's versions, the stored one first."""
    served = sorted((kind for kind in kinds if kind.group == name), key=lambda kind: not kind.storage)
    reviews = ["v1" for group, _ in REVIEWS if group == name]
    return list(dict.fromkeys([*(kind.version for kind in served), *reviews]))


def _group(kinds: Kinds, name: str) -> JsonMap:
    versions: list[JsonValue] = [
        {"groupVersion": f"{name}/{version}", "version": version} for version in _versions(kinds, name)
    ]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}
