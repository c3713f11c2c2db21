"""What a store of issuers' documents must do, and the errors of publication.

Promises: a write replaces one object as a whole or not at all, and only if the object still is the version that was
read: of two writers that read the same version, one gets ``WriteConflictError``. An error says what was expected, what
was found and what to do, without any key or credential. ``StoreUnavailableError`` and ``WriteConflictError`` are
temporary; the others need an operator.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

__all__ = [
    "MAX_OBJECT",
    "ForeignIssuerError",
    "ObjectStore",
    "PublishError",
    "StoreRefusedError",
    "StoreUnavailableError",
    "StoredObject",
    "WriteConflictError",
]


class PublishError(Exception):
    """The documents could not be published."""


class ForeignIssuerError(PublishError):
    """The stored documents are of another issuer or owner, or it is unknown whose they are. Nothing was overwritten."""


class StoreRefusedError(PublishError):
    """The store does not exist or denies access; an operator must act."""


class StoreUnavailableError(PublishError):
    """The store is unreachable or throttles."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        """``retry_after``: seconds, if the store says so."""
        super().__init__(message)
        self.retry_after = retry_after


class WriteConflictError(PublishError):
    """An object changed since it was read: read again, and plan again."""


MAX_OBJECT: Final = 1 << 20
"""Bytes of an object; the limit of a key set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object in a store."""

    body: bytes = field(repr=False)
    version: str
    """What the store compares: an ETag or a hash."""
    content_type: str | None = None
    cache_control: str | None = None
    """Both None if the store has no headers; its web server sets them."""


class ObjectStore(Protocol):
    """One prefix of one bucket, container, directory or ConfigMap."""

    @property
    def name(self) -> str:
        """The location for messages, such as ``s3://bucket/prefix``."""
        ...

    async def read(self, path: str) -> StoredObject | None:
        """Read an object; None if it does not exist. Raises ``PublishError``."""
        ...

    async def write(
        self, path: str, body: bytes, *, content_type: str, cache_control: str, version: str | None
    ) -> None:
        """Replace that version; None: create. Raises ``WriteConflictError`` and other ``PublishError``."""
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...
