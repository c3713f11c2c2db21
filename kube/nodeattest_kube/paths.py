"""API paths, built so that no name can leave its segment: each is quoted, and none is empty, ``.`` or ``..``.

Source: Kubernetes API concepts, "Resource URIs"; apimachinery pkg/api/validation/path (names may hold a backslash).
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

_QUOTED: Final = 80
"""Characters of a refused name that a message repeats."""


def collection_path(group: str, version: str, resource: str, *, namespace: str | None = None) -> str:
    """Path of a collection; ``group`` is empty for the core group, ``namespace`` None for all or none."""
    root = _join("apis", group, version) if group else _join("api", version)
    scope = _join("namespaces", namespace) if namespace is not None else ""
    return root + scope + _join(resource)


def api_group(group: str, version: str | None = None) -> str:
    """Path at which a server says which versions of a group it serves, or which resources of one version."""
    return _join("apis", group) if version is None else _join("apis", group, version)


def object_path(
    group: str, version: str, resource: str, name: str, *, namespace: str | None = None, subresource: str | None = None
) -> str:
    """Path of one object or of its subresource."""
    path = collection_path(group, version, resource, namespace=namespace) + _join(name)
    return path if subresource is None else path + _join(subresource)


def core_path(
    resource: str, name: str | None = None, *, namespace: str | None = None, subresource: str | None = None
) -> str:
    """Path in the core group's v1: a collection, or one object when named."""
    if name is None:
        if subresource is not None:
            raise ValueError("a subresource needs the name of its object")
        return collection_path("", "v1", resource, namespace=namespace)
    return object_path("", "v1", resource, name, namespace=namespace, subresource=subresource)


def is_segment(name: str) -> bool:
    """Whether a name can be one segment of a path: it holds no slash and is no dot segment (RFC 3986 §5.2.4)."""
    return name not in {"", ".", ".."} and "/" not in name


def _join(*segments: str) -> str:
    """Quote each segment, a backslash too, which some proxies read as a slash."""
    for segment in segments:
        if not is_segment(segment):
            raise ValueError(f"expected a name, got {segment[:_QUOTED]!r}; a path segment has no slash and is no dots")
    return "".join("/" + quote(segment, safe="") for segment in segments)
