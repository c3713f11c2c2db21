"""Where an issuer's two documents stand on a server, as its own URLs say. Pure.

Promises: the path alone decides, never the Host that a client names: whatever caches our answers may go by the path.
Source: OpenID Connect Discovery 1.0 §4; ADR 29.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from nodeattest_identity.issuer.urls import JWKS_PATH, configuration_url, issuer_url, jwks_url

__all__ = ["IssuerPaths", "issuer_paths", "own_jwks_uri"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerPaths:
    """One issuer and where its documents are."""

    issuer: str
    jwks_uri: str
    """What the configuration tells of."""
    configuration_path: str
    jwks_path: str
    """Where we serve the key set; ``jwks_uri`` may name another server's besides."""


def issuer_paths(issuer: str, jwks_uri: str | None = None) -> IssuerPaths:
    """Find an issuer's place; raises ``UrlError``. Paths are without the slash that may end them."""
    own = own_jwks_uri(issuer_url(issuer))
    told = own if jwks_uri is None else jwks_url(jwks_uri)
    here = told if _origin(told) == _origin(issuer) and "?" not in told else own
    return IssuerPaths(
        issuer=issuer,
        jwks_uri=told,
        configuration_path=urlsplit(configuration_url(issuer)).path,
        jwks_path=urlsplit(here).path.removesuffix("/"),
    )


def own_jwks_uri(issuer: str) -> str:
    """Tell where an issuer's key set is where nobody said otherwise: below it, as kube-apiserver has it."""
    return issuer.removesuffix("/") + JWKS_PATH


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.lower()}"
