"""The gateway's API group, and the service that a request is for, read from its raw path. Pure.

The group is not that of our CRDs, because an APIService hands a whole version of a group to one server. Namespace and
name are the segments on which kube-apiserver's RequestInfo decided: none may be encoded, empty or a dot segment.
Source: apimachinery metav1 APIGroupList, APIGroup, APIResourceList; apiserver pkg/endpoints/request/requestinfo.go;
apimachinery pkg/util/net/port_split.go; RFC 1035 labels and RFC 6335 §5.1 port names.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Literal
from urllib.parse import unquote_plus

from nodeattest_identity.proxy.refusals import RefusalError
from nodeattest_parsing.values import JsonObject

GROUP: Final = "addonauth.nodeattest.x-k8s.io"
VERSION: Final = "v1alpha1"
API_SERVICE: Final = f"{VERSION}.{GROUP}"
RESOURCE: Final = "services"
SUBRESOURCE: Final = "proxy"
GROUP_ROOT: Final = f"/apis/{GROUP}"
ROOT: Final = f"{GROUP_ROOT}/{VERSION}"

_VERSION: Final[JsonObject] = {"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION}
_GROUP: Final[JsonObject] = {"name": GROUP, "versions": [_VERSION], "preferredVersion": _VERSION}
# kubectl and RBAC tools look for the resource of a sub-resource; without verbs it can be neither read nor written.
_SERVICES: Final[JsonObject] = {"name": RESOURCE, "singularName": "service", "namespaced": True, "kind": "Service"}
_PROXY: Final[JsonObject] = {
    "name": f"{RESOURCE}/{SUBRESOURCE}",
    "singularName": "",
    "namespaced": True,
    "kind": "ServiceProxyOptions",
    "verbs": ["create", "delete", "get", "patch", "update"],
}
"""The verbs are what kube-apiserver makes of POST, DELETE, GET and HEAD, PATCH and PUT (requestinfo.go)."""
_DOCUMENTS: Final[dict[str, JsonObject]] = {
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_GROUP]},
    GROUP_ROOT: {"kind": "APIGroup", "apiVersion": "v1", **_GROUP},
    ROOT: {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{GROUP}/{VERSION}",
        "resources": [{**_SERVICES, "verbs": []}, _PROXY],
    },
    "/openapi/v2": {"swagger": "2.0", "info": {"title": "addon-auth gateway", "version": VERSION}, "paths": {}},
    "/version": {"major": "1", "minor": "0", "gitVersion": "v1.0.0"},
}
DOCUMENTS: Final = {path: json.dumps(value, separators=(",", ":")).encode() for path, value in _DOCUMENTS.items()}
"""By path, without a slash at the end."""

ADD_AUTH: Final = "add-auth"

Scheme = Literal["http", "https"]

_LABEL: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_PORT_NAME: Final = re.compile(r"(?=[-0-9]*[a-z])[a-z0-9](?:-?[a-z0-9]){0,14}")
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,4}")
_MAX_PORT: Final = 65_535
_SHAPE: Final = f"{ROOT}/namespaces/NAMESPACE/{RESOURCE}/[SCHEME:]NAME[:PORT]/{SUBRESOURCE}/"
_SEGMENTS: Final = 5
"""``namespaces``, its name, ``services``, its name, ``proxy``."""


def unavailable(message: str, *, retry_after: int | None = None) -> RefusalError:
    """Make the error of a request that may succeed after some seconds."""
    headers = None if retry_after is None else {"Retry-After": str(retry_after)}
    return RefusalError(HTTPStatus.SERVICE_UNAVAILABLE, message, headers=headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTarget:
    """A service in a namespace, and the request to it."""

    namespace: str
    name: str
    """As in the path, with scheme and port: the resource name in RBAC."""
    scheme: Scheme
    service: str
    port: str
    """A number or a name; empty: the only port of the service."""
    path: str | None
    """Raw, from its slash on; None if there is not even a slash."""
    query: str
    """Raw, without ``add-auth`` and without ``?``."""

    @property
    def root(self) -> str:
        """Path of the service, from ``/apis`` to ``proxy``."""
        return f"{ROOT}/namespaces/{self.namespace}/{RESOURCE}/{self.name}/{SUBRESOURCE}"

    @property
    def audience(self) -> str:
        return f"{self.namespace}/{self.service}"


def parse(raw_path: str) -> ServiceTarget:
    """Read a request's target (RFC 9112 §3.2.1, origin-form); raises ``RefusalError``."""
    path, _, query = raw_path.partition("?")
    segments = path.removeprefix(f"{ROOT}/").split("/", _SEGMENTS)
    if not path.startswith(f"{ROOT}/") or segments[0::2][:3] != ["namespaces", RESOURCE, SUBRESOURCE]:
        raise RefusalError(HTTPStatus.NOT_FOUND, f"expected {_SHAPE}, got another path")
    namespace, name = segments[1], segments[3]
    scheme, service, port = _split(name)
    if _LABEL.fullmatch(namespace) is None or _LABEL.fullmatch(service) is None or not _is_port(port):
        raise RefusalError(
            HTTPStatus.BAD_REQUEST, f"expected the names of a namespace, a service and a port in {_SHAPE}"
        )
    return ServiceTarget(
        namespace=namespace,
        name=name,
        scheme=scheme,
        service=service,
        port=port,
        path="/" + segments[5] if len(segments) > _SEGMENTS else None,
        query=_without_add_auth(query),
    )


def _split(name: str) -> tuple[Scheme, str, str]:
    """Read ``service``, ``service:port`` or ``scheme:service:port``, whose port may be empty."""
    match name.split(":"):
        case [service]:
            return "http", service, ""
        case [service, port] if port:
            return "http", service, port
        case ["http" | "", service, port]:
            return "http", service, port
        case ["https", service, port]:
            return "https", service, port
        case _:
            raise RefusalError(
                HTTPStatus.BAD_REQUEST, "expected NAME, NAME:PORT or SCHEME:NAME:PORT with http or https"
            )


def _is_port(port: str) -> bool:
    if _NUMBER.fullmatch(port):
        return int(port) <= _MAX_PORT
    return not port or _PORT_NAME.fullmatch(port) is not None


def _without_add_auth(query: str) -> str:
    """Remove ``add-auth=true`` from a query, which changes nothing here; refuse any other value of this name."""
    kept: list[str] = []
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if unquote_plus(name).strip().lower() != ADD_AUTH:
            kept.append(part)
        elif value != "true":
            raise RefusalError(
                HTTPStatus.BAD_REQUEST,
                f"expected {ADD_AUTH}=true or nothing, got something else: this path never forwards a request without "
                "its caller's identity",
            )
    return "&".join(kept)
