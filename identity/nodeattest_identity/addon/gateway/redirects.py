"""Rewrites the redirects of an add-on so that a browser behind kube-apiserver can follow them. Pure.

Promises: a ``Location`` on the add-on's own host (``/login``, or an absolute URL) becomes a relative reference to the
same place below the add-on's path. Every other ``Location`` stays. No redirect leaves the service's path that did not
before.

kube-apiserver prepends the gateway's own address, which no browser reaches, to every ``Location`` that begins with a
slash, and passes relative ones.
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
    """Return the ``Location`` that leads from ``…/proxy`` to ``…/proxy/``."""
    return f"proxy/?{query}" if query else "proxy/"
