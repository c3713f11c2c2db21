"""Paths of an issuer's objects below the location that its URL leads to. Pure.

Promises: relative paths of plain segments, so that a document's text cannot name an object elsewhere.
Source: OpenID Connect Discovery 1.0 §4 (the configuration's path is fixed; it names the key set's URL).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from nodeattest_identity.issuer.urls import CONFIGURATION_PATH, JWKS_PATH, UrlError, issuer_url, jwks_url

__all__ = ["CONFIGURATION", "STATE", "ObjectPaths", "object_paths"]

CONFIGURATION: Final = CONFIGURATION_PATH.removeprefix("/")
STATE: Final = ".nodeattest/issuer-state.json"
"""The state object: public keys and times, no secret."""
_SEGMENT: Final = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class ObjectPaths:
    """Paths relative to the issuer."""

    jwks: str
    configuration: str = CONFIGURATION
    state: str = STATE


def object_paths(issuer: str, jwks_uri: str) -> ObjectPaths:
    """Return the paths of the objects; raises ``UrlError``.

    A key set below the issuer is stored where its URL leads to, such as ``keys.json``. A key set elsewhere is stored at
    kube-apiserver's path, from where the server of that URL takes it; the check of the public URL shows that.
    """
    root = issuer_url(issuer).removesuffix("/") + "/"
    jwks_url(jwks_uri)
    if not jwks_uri.startswith(root):
        return ObjectPaths(JWKS_PATH.removeprefix("/"))
    path = jwks_uri.removeprefix(root)
    if path == CONFIGURATION or not all(_SEGMENT.fullmatch(segment) for segment in path.split("/")):
        raise UrlError(
            "--service-account-jwks-uri: expected plain segments (letters, digits, . _ ~ -) below the issuer that are "
            f"not the configuration's own place, got {path[:80]!a}"
        )
    return ObjectPaths(path)
