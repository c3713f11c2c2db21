"""What is served under which path: whole answers, made when keys change and not when somebody asks.

Promises: both documents of an issuer change at once; two issuers never share a path; a place without documents yet is
told from one that does not exist.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from nodeattest_identity.issuer.documents import CONFIGURATION_TYPE, JWKS_TYPE, Documents
from nodeattest_identity.serve.paths import IssuerPaths
from nodeattest_serving.replies import Reply

__all__ = ["PreparedDocument", "RouteConflictError", "RouteTable"]

_ETAG_BYTES: Final = 16
"""Of the SHA-256 of a document: enough to tell any two."""


class RouteConflictError(ValueError):
    """Another issuer's document stands under this path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDocument:
    """One document, ready to be sent."""

    full: Reply
    unchanged: Reply
    """304, for one who has it already."""
    etag: str


class RouteTable:
    """All pages, by their paths without a slash at the end."""

    def __init__(self, *, max_age: int, secure: bool) -> None:
        """``max_age``: seconds that others may keep a document. ``secure``: browsers must come by HTTPS from now on."""
        self._headers: Mapping[str, str] = {
            "Cache-Control": f"public, max-age={max_age}",
            **({"Strict-Transport-Security": "max-age=31536000"} if secure else {}),
        }
        self._pages: dict[str, PreparedDocument | None] = {}
        """None: nothing to serve there at the moment."""

    def open(self, paths: IssuerPaths) -> None:
        """Reserve the paths of an issuer; raises ``RouteConflictError``."""
        wanted = paths.configuration_path, paths.jwks_path
        for path in wanted:
            if path in self._pages:
                raise RouteConflictError(f"expected issuers with paths of their own, got two under {path}")
        if wanted[0] == wanted[1]:
            raise RouteConflictError(f"expected a key set beside the configuration, got both under {wanted[0]}")
        for path in wanted:
            self._pages[path] = None

    def close(self, paths: IssuerPaths) -> None:
        """Forget an issuer."""
        for path in (paths.configuration_path, paths.jwks_path):
            self._pages.pop(path, None)

    def publish(self, paths: IssuerPaths, documents: Documents) -> None:
        """Serve these documents from now on."""
        self._pages[paths.configuration_path] = self._page(documents.configuration, CONFIGURATION_TYPE)
        self._pages[paths.jwks_path] = self._page(documents.jwks, JWKS_TYPE)

    def withdraw(self, paths: IssuerPaths) -> None:
        """Serve an issuer's documents no longer, but keep its place."""
        self._pages[paths.configuration_path] = self._pages[paths.jwks_path] = None

    def find(self, path: str) -> PreparedDocument | None:
        """Return the page of a path, None while it has nothing to serve; raises ``KeyError`` for no place at all."""
        return self._pages[path.removesuffix("/")]

    def _page(self, body: bytes, content_type: str) -> PreparedDocument:
        digest = hashlib.sha256(body).digest()[:_ETAG_BYTES]
        etag = f'"{base64.urlsafe_b64encode(digest).rstrip(b"=").decode()}"'
        headers = {"Content-Type": content_type, "ETag": etag, **self._headers}
        return PreparedDocument(
            full=Reply(status=HTTPStatus.OK, body=body, headers=headers),
            unchanged=Reply(status=HTTPStatus.NOT_MODIFIED, body=b"", headers=headers),
            etag=etag,
        )
