"""The gateway's API group, its one resource and sub-resource, and the discovery documents of all three. Pure.

The group is not that of our CRDs: an APIService hands a whole version of a group to one server. It does not end in
``.k8s.io``, which is reserved for Kubernetes (apiextensions-apiserver pkg/apihelpers, IsProtectedCommunityGroup).
``services`` is listed because kubectl and RBAC tools look for the resource of a sub-resource. It has no verbs: it can
be neither read nor written here.
Source: apimachinery metav1 APIGroupList, APIGroup, APIResourceList; kube-aggregator pkg/controllers/openapi/aggregator
(an empty OpenAPI document is accepted; a missing one is logged as an error on every attempt).
"""

from __future__ import annotations

import json
from typing import Final

from nodeattest_kube.jsontypes import JsonObject

__all__ = ["API_SERVICE", "DOCUMENTS", "GROUP", "GROUP_ROOT", "RESOURCE", "ROOT", "SUBRESOURCE", "VERSION"]

GROUP: Final = "addonauth.nodeattest.x-k8s.io"
VERSION: Final = "v1alpha1"
API_SERVICE: Final = f"{VERSION}.{GROUP}"
RESOURCE: Final = "services"
SUBRESOURCE: Final = "proxy"
GROUP_ROOT: Final = f"/apis/{GROUP}"
ROOT: Final = f"{GROUP_ROOT}/{VERSION}"

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
