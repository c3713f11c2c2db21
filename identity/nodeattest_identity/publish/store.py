"""What a place must be able to do to hold an issuer's documents.

Promises: nothing; it is the seam. A write replaces one object as a whole or not at all, and only if the object still is
the version that was read: of two writers who read the same, one gets ``LostRace``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

__all__ = ["MAX_OBJECT", "Store", "StoredObject"]

MAX_OBJECT: Final = 1 << 20
"""Bytes of an object that is read; the largest key set that is taken has as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object as it stands in a store."""

    body: bytes = field(repr=False)
    version: str
    """Whatever the store compares by: an ETag, a hash."""
    content_type: str | None = None
    cache_control: str | None = None
    """Both None where the store has no such thing, and who serves it decides."""


class Store(Protocol):
    """One prefix of one place."""

    @property
    def name(self) -> str:
        """The place, for messages: ``s3://bucket/prefix``."""
        ...

    async def read(self, path: str) -> StoredObject | None:
        """Read an object, None where there is none; raises ``PublishError``."""
        ...

    async def write(
        self, path: str, body: bytes, *, content_type: str, cache_control: str, version: str | None
    ) -> None:
        """Replace that version, or create where ``version`` is None; raises ``LostRace`` and other ``PublishError``."""
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...
