"""What a store of issuers' documents must do, how it is named and opened, and the errors of publication.

Promises: a write replaces one object as a whole or not at all, and only if the object still is the version that was
read: of two writers that read the same version, one gets ``WriteConflictError``. An error says what was expected, what
was found and what to do, without any key or credential. ``StoreUnavailableError`` and ``WriteConflictError`` are
temporary; the others need an operator.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from nodeattest_kube.paths import is_segment

__all__ = [
    "FORMS", "MAX_OBJECT", "ForeignIssuerError", "ObjectStore", "PublishError", "StoreAccess", "StoreLocation",
    "StoreRefusedError", "StoreUnavailableError", "StoredObject", "WriteConflictError", "parse_location",
]  # fmt: skip

MAX_OBJECT: Final = 1 << 20
"""Bytes of an object; the limit of a key set."""


class PublishError(Exception):
    """The documents could not be published."""


class ForeignIssuerError(PublishError):
    """The stored documents are of another issuer or owner, or it is unknown whose they are. Nothing was overwritten."""


class StoreRefusedError(PublishError):
    """The store does not exist or denies access; an operator must act."""


class StoreUnavailableError(PublishError):
    """The store is unreachable or throttles."""


class WriteConflictError(PublishError):
    """An object changed since it was read: read again, and plan again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object in a store, as it was read."""

    body: bytes = field(repr=False)
    e_tag: str | None
    generation: str | None = None
    """What the store compares: an ETag, or in Google Cloud Storage a generation."""
    content_type: str | None = None
    cache_control: str | None = None
    """Both None if the store has no headers; its web server sets them."""


class ObjectStore(Protocol):
    """One prefix of one bucket, container or directory."""

    @property
    def name(self) -> str:
        """The location for messages, such as ``s3://bucket/prefix``."""
        ...

    async def read(self, path: str) -> StoredObject | None:
        """Read an object; None if it does not exist. Raises ``PublishError``."""
        ...

    async def write(
        self, path: str, body: bytes, *, content_type: str, cache_control: str, replaces: StoredObject | None
    ) -> None:
        """Replace this version; None: create. Raises ``WriteConflictError`` and other ``PublishError``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLocation:
    """A location by kind and parts."""

    kind: str
    """``dir``, ``s3``, ``azblob`` or ``gs``."""
    root: str
    """The directory, bucket or account."""
    container: str = ""
    """Of an Azure account."""
    prefix: str = ""

    def __str__(self) -> str:
        """Return the location as the operator gives it."""
        parts = [part for part in (self.root, self.container, self.prefix) if part]
        return f"{self.kind}:{'' if self.kind == 'dir' else '//'}{'/'.join(parts)}"

    def below(self, folder: str) -> StoreLocation:
        """Return the location of a folder in it."""
        return replace(self, prefix=f"{self.prefix}/{folder}" if self.prefix else folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAccess:
    """Access to a store of a cloud."""

    region: str | None = None
    endpoint_url: str | None = None
    azure_key: str | None = field(default=None, repr=False)


FORMS: Final = "dir:PATH, s3://BUCKET/PREFIX, azblob://ACCOUNT/CONTAINER/PREFIX or gs://BUCKET/PREFIX"
_SEGMENT: Final = re.compile(r"[A-Za-z0-9._~$-]+", re.ASCII)
_MAX_LENGTH: Final = 1024


def parse_location(text: str) -> StoreLocation:
    """Parse a location; raises ``StoreRefusedError``."""
    kind, _, rest = text.partition(":")
    if kind == "dir" and rest:
        return StoreLocation(kind=kind, root=rest)
    if kind in {"s3", "azblob", "gs"} and rest.startswith("//") and len(text) <= _MAX_LENGTH:
        root, *parts = rest[2:].removesuffix("/").split("/")
        container = [parts.pop(0)] if kind == "azblob" and parts else []
        if all(_SEGMENT.fullmatch(part) and is_segment(part) for part in (root, *container, *parts)) and (
            kind != "azblob" or container
        ):
            return StoreLocation(kind=kind, root=root, container="".join(container), prefix="/".join(parts))
    raise StoreRefusedError(f"--to: expected {FORMS}, got {text[:80]!a}")
