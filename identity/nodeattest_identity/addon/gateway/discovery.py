"""What an API server says about itself, as far as kube-apiserver and kubectl ask the gateway. Pure.

Promises: every document is constant. ``services`` is listed because kubectl and RBAC tools look for the resource of a
sub-resource; it can neither be read nor written here, so it has no verbs.
Source: apimachinery metav1 APIGroupList, APIGroup, APIResourceList; kube-aggregator
pkg/controllers/openapi/aggregator (an empty OpenAPI document is taken; an error is logged again and again).
"""

from __future__ import annotations

import json
from typing import Final

from nodeattest_identity.addon.gateway.api_group import GROUP, GROUP_ROOT, RESOURCE, ROOT, SUBRESOURCE, VERSION
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["DOCUMENTS"]

_VERSION: Final[JsonObject] = {"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION}
_GROUP: Final[JsonObject] = {"name": GROUP, "versions": [_VERSION], "preferredVersion": _VERSION}
_VERBS: Final = ("create", "delete", "get", "patch", "update")
"""What kube-apiserver makes of POST, DELETE, GET and HEAD, PATCH and PUT (requestinfo.go)."""


def _document(value: JsonObject) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


DOCUMENTS: Final[dict[str, bytes]] = {
    "/apis": _document({"kind": "APIGroupList", "apiVersion": "v1", "groups": [_GROUP]}),
    GROUP_ROOT: _document({"kind": "APIGroup", "apiVersion": "v1", **_GROUP}),
    ROOT: _document(
        {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": f"{GROUP}/{VERSION}",
            "resources": [
                {
                    "name": RESOURCE,
                    "singularName": "service",
                    "namespaced": True,
                    "kind": "Service",
                    "verbs": [],
                },
                {
                    "name": f"{RESOURCE}/{SUBRESOURCE}",
                    "singularName": "",
                    "namespaced": True,
                    "kind": "ServiceProxyOptions",
                    "verbs": list(_VERBS),
                },
            ],
        }
    ),
    "/openapi/v2": _document(
        {"swagger": "2.0", "info": {"title": "nodeattest addon-auth gateway", "version": VERSION}, "paths": {}}
    ),
    "/version": _document({"major": "1", "minor": "0", "gitVersion": "v1.0.0"}),
}
"""By path; a slash at the end makes no difference."""
