"""Redirects of an add-on, written so that a browser that came through kube-apiserver can follow them. Pure.

Promises: what an add-on says of itself (``/login``, or its own host) becomes a relative reference that ends at the same
place below its own path; everything else stays. Nothing leaves the service's path that did not before.

kube-apiserver puts the gateway's own address, which no browser reaches, in front of every ``Location`` that begins with
a slash, and lets relative ones pass.
Source: apimachinery pkg/util/proxy/transport.go (rewriteURL, with no PathPrepend for aggregated servers);
RFC 3986 §4.2 and §5.2, RFC 9110 §10.2.2.
"""

from __future__ import annotations

from typing import Final

__all__ = ["relative", "to_slash"]

_SCHEMES: Final = ("http://", "https://")


def relative(location: str, *, path: str, host: str) -> str:
    """Rewrite the ``Location`` of an answer to a request for ``path`` that was sent to ``host``."""
    for scheme in _SCHEMES:
        if location.lower().startswith(f"{scheme}{host.lower()}/"):
            location = location[len(scheme) + len(host) :]
            break
    if not location.startswith("/") or location.startswith(("//", "/\\")):
        return location
    up = "../" * (path.count("/") - 1)
    return f"{up or './'}{location[1:]}"


def to_slash(query: str) -> str:
    """Lead from ``…/proxy`` to ``…/proxy/``."""
    return f"proxy/?{query}" if query else "proxy/"
