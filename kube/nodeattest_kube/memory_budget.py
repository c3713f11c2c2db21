"""A memory budget for the objects of one collection, or of several together.

The kept objects never take more than the total. One object gets at most a small part of what is left, so that large
objects that come first leave room for small ones. Where namespaces are of different tenants, each has at most as much
as it leaves to the others, in bytes and in objects: one alone gets half of all. Collections that share a ``MemoryPool``
share its bytes, and a namespace's share is that of all of them.
Leaves to others: what happens to refused objects.
Source: dynamic thresholds for shared buffers (Choudhury and Hahne, 1998).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from typing import Final

from nodeattest_parsing.values import JsonObject, JsonValue

_PART: Final = 64
"""An object gets at most this part of what is left."""


class MemoryPool:
    """The bytes that several collections share."""

    def __init__(self, total: int) -> None:
        self.total: Final = total
        self.used = 0
        self.used_by: Counter[str] = Counter()
        """Bytes by namespace."""

    def add(self, namespace: str, size: int) -> None:
        """Count bytes, fewer where ``size`` is negative."""
        self.used += size
        self.used_by[namespace] += size
        if not self.used_by[namespace]:
            del self.used_by[namespace]


class MemoryBudget:
    """The bytes of each object of a collection."""

    def __init__(self, memory: int | MemoryPool, *, objects: int | None = None, owner: str | None = None) -> None:
        """``objects``: how many there may be, where namespaces have shares; without it only bytes count.

        ``owner``: the namespace of which all objects are, those of its cluster; by default each key names its own.
        """
        self._pool = memory if isinstance(memory, MemoryPool) else MemoryPool(memory)
        self._objects, self._owner = objects, owner
        self._sizes: dict[str, int] = {}
        self._objects_of: Counter[str] = Counter()

    @property
    def left(self) -> int:
        """Free bytes."""
        return self._pool.total - self._pool.used

    def of(self, key: str) -> int:
        """Bytes that are kept of a key."""
        return self._sizes.get(key, 0)

    def take(self, key: str, size: int) -> bool:
        """Reserve bytes for a key in place of its former ones; False, and nothing changes, above its limit.

        What does not grow stays, whatever others have taken since.
        """
        before = self._sizes.get(key, -1)
        if size > before and not (size * _PART <= self.left + max(before, 0) and self._has_share(key, size)):
            return False
        self._set(key, size)
        return True

    def release(self, key: str) -> None:
        """Free a key's bytes."""
        self._set(key, None)

    def keep(self, sizes: Mapping[str, int]) -> None:
        """Keep these keys, whose bytes were taken, and release all others."""
        for key in [*self._sizes]:
            self._set(key, sizes.get(key))

    def close(self) -> None:
        """Keep nothing."""
        self.keep({})

    def _set(self, key: str, size: int | None) -> None:
        before = self._sizes.pop(key, None)
        if size is not None:
            self._sizes[key] = size
        namespace = self._namespace_of(key)
        self._pool.add(namespace, (size or 0) - (before or 0))
        self._objects_of[namespace] += (size is not None) - (before is not None)
        if not self._objects_of[namespace]:
            del self._objects_of[namespace]

    def _namespace_of(self, key: str) -> str:
        return key.partition("/")[0] if self._owner is None else self._owner

    def _has_share(self, key: str, size: int) -> bool:
        """Return whether a key's namespace, with this, leaves as much to the others."""
        if self._objects is None:
            return True
        namespace, more, new = self._namespace_of(key), size - self.of(key), key not in self._sizes
        bytes_fit = self._pool.used_by[namespace] + more <= self.left - more
        return bytes_fit and self._objects_of[namespace] + new <= self._objects - len(self._sizes) - new


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
