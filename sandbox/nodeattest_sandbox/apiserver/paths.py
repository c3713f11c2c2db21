"""The paths that are no resources: health, version, discovery, OpenAPI, and the test hook.

Promises: what kube-apiserver answers there, as far as kubectl and client libraries ask; all else is a 404.
"""

from __future__ import annotations

from typing import Final

from nodeattest_sandbox.apiserver import discovery
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, dump
from nodeattest_sandbox.apiserver.kinds import Kinds
from nodeattest_sandbox.apiserver.status_errors import unknown_path

__all__ = ["COMPACT", "body"]

COMPACT: Final = "/sandbox/compact"  # POST makes the server forget its watch history; RBAC guards it like any path.
_HEALTH: Final = frozenset({"/healthz", "/livez", "/readyz", COMPACT})
_JSON: Final = "application/json"


def body(kinds: Kinds, path: str, accept: str) -> tuple[bytes, str]:
    """Return the answer and its content type; raises 404."""
    if path in _HEALTH:
        return b"ok", "text/plain"
    if path == "/openapi/v2" and "proto-openapi" in accept:
        return discovery.OPENAPI_PROTOBUF, "application/octet-stream"
    found = _document(kinds, [part for part in path.split("/") if part])
    if found is None:
        raise unknown_path()
    return dump(found), _JSON


def _document(kinds: Kinds, parts: list[str]) -> JsonMap | None:  # noqa: PLR0911 - one a path
    match parts:
        case ["version"]:
            return discovery.VERSION
        case ["openapi", "v2"]:
            return discovery.openapi()
        case ["api"]:
            return discovery.api_versions()
        case ["api", version]:
            return discovery.resource_list(kinds, "", version)
        case ["apis"]:
            return discovery.group_list(kinds)
        case ["apis", group]:
            return discovery.group(kinds, group)
        case ["apis", group, version]:
            return discovery.resource_list(kinds, group, version)
        case []:
            served: list[JsonValue] = [
                "/api",
                "/api/v1",
                "/apis",
                "/healthz",
                "/livez",
                "/openapi/v2",
                "/readyz",
                "/version",
            ]
            return {"paths": served}
        case _:
            return None
