"""Discovery: what the server serves, told to clients that do not know yet.

Promises: /version, /api, /apis and below in the form that kubectl and client-go read; the OpenAPI document is an empty
one, at which kubectl skips its own validation. Source: k8s.io/apiserver/pkg/endpoints/discovery.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, dump
from nodeattest_sandbox.apiserver.kinds import VERBS, Kind, Kinds

__all__ = ["OPENAPI_PROTOBUF", "REVIEWS", "VERSION", "api_versions", "group", "group_list", "openapi", "resource_list"]

VERSION: Final[JsonMap] = {
    "major": "1", "minor": "37", "gitVersion": "v1.37.0+nodeattest.sandbox", "gitCommit": "", "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none", "compiler": "none", "platform": "linux/amd64",
}  # fmt: skip

# Virtual resources: (group, plural) to kind. They answer and store nothing.
REVIEWS: Final = {
    ("authentication.k8s.io", "tokenreviews"): "TokenReview",
    ("authentication.k8s.io", "selfsubjectreviews"): "SelfSubjectReview",
    ("authorization.k8s.io", "subjectaccessreviews"): "SubjectAccessReview",
    ("authorization.k8s.io", "selfsubjectaccessreviews"): "SelfSubjectAccessReview",
}

# A gnostic openapi_v2.Document: field 1 swagger, field 2 info (title, version), field 8 paths (none).
_INFO: Final = b"\x0a\x07sandbox\x12\x02v1"
OPENAPI_PROTOBUF: Final = b"\x0a\x032.0" + b"\x12" + bytes([len(_INFO)]) + _INFO + b"\x42\x00"


def openapi() -> JsonMap:
    """Return an OpenAPI v2 document without definitions."""
    return {"swagger": "2.0", "info": {"title": "sandbox", "version": "v1"}, "paths": {}}


def api_versions() -> JsonMap:
    """Return what /api says."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def group_list(kinds: Kinds) -> JsonMap:
    """Return what /apis says."""
    names = list(dict.fromkeys([*(kind.group for kind in kinds if kind.group), *(name for name, _ in REVIEWS)]))
    groups: list[JsonValue] = [_group(kinds, name) for name in names]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group(kinds: Kinds, name: str) -> JsonMap | None:
    """Return what /apis/<group> says, or None when there is no such group."""
    if not _versions(kinds, name):
        return None
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(kinds, name)}


def resource_list(kinds: Kinds, group_name: str, version: str) -> JsonMap | None:
    """Return the resources of one group and version, or None when there are none."""
    if version not in _versions(kinds, group_name):
        return None
    resources: list[JsonValue] = []
    for kind in kinds:
        if (kind.group, kind.version) == (group_name, version):
            resources.extend(_resource(kind))
    resources.extend(
        {"name": plural, "singularName": "", "namespaced": False, "kind": kind, "verbs": ["create"]}
        for (review_group, plural), kind in REVIEWS.items()
        if (review_group, "v1") == (group_name, version)
    )
    name = f"{group_name}/{version}" if group_name else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": resources}


def _versions(kinds: Kinds, name: str) -> Sequence[str]:
    served = sorted((kind for kind in kinds if kind.group == name), key=lambda kind: not kind.storage)
    found = [kind.version for kind in served]
    return list(dict.fromkeys([*found, *(["v1"] if any(name == review for review, _ in REVIEWS) else [])]))


def _group(kinds: Kinds, name: str) -> JsonMap:
    versions: list[JsonValue] = [
        {"groupVersion": f"{name}/{version}", "version": version} for version in _versions(kinds, name)
    ]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _resource(kind: Kind) -> Sequence[JsonMap]:
    base: JsonMap = {"name": kind.plural, "singularName": kind.kind.lower() if kind.custom else "",
                     "namespaced": kind.namespaced, "kind": kind.kind}  # fmt: skip
    main: JsonMap = {**base, "verbs": list(VERBS)}
    if kind.short_names:
        main["shortNames"] = list(kind.short_names)
    if kind.categories:
        main["categories"] = list(kind.categories)
    subresources: list[JsonMap] = [
        {**base, "name": f"{kind.plural}/{name}", "singularName": "", "verbs": ["get", "patch", "update"]}
        for name in sorted(kind.subresources)
    ]  # fmt: skip
    return [main, *subresources]


def rendered_version() -> bytes:
    """Return what /version says."""
    return dump(VERSION)
