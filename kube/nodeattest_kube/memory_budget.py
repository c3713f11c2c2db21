"""A memory budget for the objects of one collection.

The kept objects never take more than the total. One object gets at most a small part of what is left, so that large
objects that come first leave room for small ones. Leaves to others: what happens to refused objects.
Source: dynamic thresholds for shared buffers (Choudhury and Hahne, 1998).
"""

from __future__ import annotations

import sys
from typing import Final

from nodeattest_kube.jsontypes import JsonObject, JsonValue

__all__ = ["MemoryBudget", "object_size"]

_PART: Final = 64
"""An object gets at most this part of what is left."""


class MemoryBudget:
    """Bytes by key, and what is left of the total."""

    def __init__(self, total: int) -> None:
        self._left = total
        self._shares: dict[str, int] = {}

    @property
    def left(self) -> int:
        """Free bytes."""
        return self._left

    def of(self, key: str) -> int:
        """Bytes of a key."""
        return self._shares.get(key, 0)

    def take(self, key: str, size: int) -> bool:
        """Reserve bytes for a key in place of its former ones; False, and none reserved, above its limit."""
        self.release(key)
        if size * _PART > self._left:
            return False
        self._left -= size
        self._shares[key] = size
        return True

    def release(self, key: str) -> None:
        """Free a key's bytes."""
        self._left += self._shares.pop(key, 0)


def object_size(key: str, version: tuple[str, str], item: JsonObject) -> int:
    """Return an object's bytes in memory with its key and version; values shared with others count fully."""
    size = sum(map(sys.getsizeof, (key, *version)))
    waiting: list[JsonValue] = [item]
    while waiting:
        value = waiting.pop()
        size += sys.getsizeof(value)
        if isinstance(value, dict):
            size += sum(map(sys.getsizeof, value))
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return size
