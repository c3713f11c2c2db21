"""The paths of issuers' documents, and the prepared response of each path.

Promises: the path alone decides, never the ``Host`` header: a cache in front may use the path as its key. Responses are
made when keys change, not per request. Both documents of an issuer change at once; two issuers never share a path; a
path without a document yet is distinct from an unknown path.
Source: OpenID Connect Discovery 1.0 §4; docs/decisions.md.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from nodeattest_identity.issuer.documents import CONFIGURATION_TYPE, JWKS_TYPE, Documents
from nodeattest_identity.issuer.urls import configuration_url, default_jwks_uri, issuer_url, jwks_url
from nodeattest_serving.replies import Reply

__all__ = ["IssuerPaths", "PreparedDocument", "RouteConflictError", "RouteTable", "issuer_paths"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerPaths:
    """An issuer and the paths of its documents."""

    issuer: str
    jwks_uri: str
    """The key set's URL in the configuration."""
    configuration_path: str
    jwks_path: str
    """Where the key set is served here; ``jwks_uri`` may lead to another server."""


def issuer_paths(issuer: str, jwks_uri: str | None = None) -> IssuerPaths:
    """Return the paths of an issuer, without a final slash; raises ``UrlError``."""
    own = default_jwks_uri(issuer_url(issuer))
    url = own if jwks_uri is None else jwks_url(jwks_uri)
    here = url if _origin(url) == _origin(issuer) and "?" not in url else own
    return IssuerPaths(
        issuer=issuer,
        jwks_uri=url,
        configuration_path=urlsplit(configuration_url(issuer)).path,
        jwks_path=urlsplit(here).path.removesuffix("/"),
    )


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.lower()}"


_ETAG_BYTES: Final = 16
"""Of the SHA-256 of a document."""


class RouteConflictError(ValueError):
    """A path is already used by another document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDocument:
    """The prepared responses of one document."""

    full: Reply
    unchanged: Reply
    """304, for a client that has it already."""
    etag: str


class RouteTable:
    """Prepared documents by path, without a final slash."""

    def __init__(self, *, max_age: int, secure: bool) -> None:
        """``max_age``: seconds that caches may hold a document. ``secure``: send Strict-Transport-Security."""
        self._headers: Mapping[str, str] = {
            "Cache-Control": f"public, max-age={max_age}",
            **({"Strict-Transport-Security": "max-age=31536000"} if secure else {}),
        }
        self._documents: dict[str, PreparedDocument | None] = {}
        """None: nothing to serve there at the moment."""

    def open(self, paths: IssuerPaths) -> None:
        """Reserve the paths of an issuer; raises ``RouteConflictError``."""
        both = paths.configuration_path, paths.jwks_path
        for path in both:
            if path in self._documents:
                raise RouteConflictError(f"expected issuers with paths of their own, got two under {path}")
        if both[0] == both[1]:
            raise RouteConflictError(f"expected a key set beside the configuration, got both under {both[0]}")
        for path in both:
            self._documents[path] = None

    def close(self, paths: IssuerPaths) -> None:
        """Remove an issuer."""
        for path in (paths.configuration_path, paths.jwks_path):
            self._documents.pop(path, None)

    def publish(self, paths: IssuerPaths, documents: Documents) -> None:
        """Serve these documents from now on."""
        self._documents[paths.configuration_path] = self._prepare(documents.configuration, CONFIGURATION_TYPE)
        self._documents[paths.jwks_path] = self._prepare(documents.jwks, JWKS_TYPE)

    def withdraw(self, paths: IssuerPaths) -> None:
        """Stop serving an issuer's documents, but keep its paths."""
        self._documents[paths.configuration_path] = self._documents[paths.jwks_path] = None

    def find(self, path: str) -> PreparedDocument | None:
        """Return the document of a path; None while it has none. Raises ``KeyError`` for an unknown path."""
        return self._documents[path.removesuffix("/")]

    def _prepare(self, body: bytes, content_type: str) -> PreparedDocument:
        digest = hashlib.sha256(body).digest()[:_ETAG_BYTES]
        etag = f'"{base64.urlsafe_b64encode(digest).rstrip(b"=").decode()}"'
        headers = {"Content-Type": content_type, "ETag": etag, **self._headers}
        return PreparedDocument(
            full=Reply(status=HTTPStatus.OK, body=body, headers=headers),
            unchanged=Reply(status=HTTPStatus.NOT_MODIFIED, body=b"", headers=headers),
            etag=etag,
        )
