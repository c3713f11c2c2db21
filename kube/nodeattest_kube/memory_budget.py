"""A memory budget for the objects of one collection, or of several together.

The kept objects never take more than the total. One object gets at most a small part of what is left, so that large
objects that come first leave room for small ones. Where namespaces are of different tenants, each has at most as much
as it leaves to the others, in bytes and in objects: one alone gets half of all. Collections that share a ``MemoryPool``
share its bytes, whatever is in which, and a namespace's share is that of all of them. While a collection is listed,
an object counts as the larger of what is kept and what the list holds of it.
Leaves to others: what happens to refused objects.
Source: dynamic thresholds for shared buffers (Choudhury and Hahne, 1998).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from nodeattest_parsing.values import JsonObject, JsonValue

_PART: Final = 64
"""An object gets at most this part of what is left."""


class MemoryPool:
    """The bytes that several collections share."""

    def __init__(self, total: int) -> None:
        self.total: Final = total
        self.used = 0
        self._namespaces: Counter[str] = Counter()

    def used_of(self, namespace: str) -> int:
        """Return the bytes that a namespace takes."""
        return self._namespaces[namespace]

    def add(self, namespace: str, size: int) -> None:
        """Count bytes, fewer where ``size`` is negative."""
        self.used += size
        self._namespaces[namespace] += size
        if not self._namespaces[namespace]:
            del self._namespaces[namespace]


class MemoryBudget:
    """The bytes of each object of a collection."""

    def __init__(self, memory: int | MemoryPool, *, objects: int | None = None, owner: str | None = None) -> None:
        """``objects``: how many there may be, where namespaces have shares; without it only bytes count.

        ``owner``: the namespace of which all objects are, those of its cluster; by default each key names its own.
        """
        self._pool = memory if isinstance(memory, MemoryPool) else MemoryPool(memory)
        self._objects, self._owner = objects, owner
        self._kept: dict[str, int] = {}
        self._listed: dict[str, int] | None = None
        """Of a list that is under way."""
        self._count = 0
        self._objects_of: Counter[str] = Counter()

    @contextmanager
    def listing(self) -> Generator[None]:
        """Take for a list from now on: what is kept has its room, wherever it is listed.

        What the list takes is given back at the end of the block, unless ``keep_listed`` was called.
        """
        self._listed = {}
        try:
            yield
        finally:
            for key in list(self._listed or ()):
                self._set(self._listed, key, None)
            self._listed = None

    def keep_listed(self) -> None:
        """Keep what was listed, and nothing else."""
        listed = self._listed or {}
        for key in [key for key, size in self._kept.items() if size > listed.get(key, -1)]:
            self._set(self._kept, key, listed.get(key))
        self._kept, self._listed = listed, None  # of each key the same counts

    def close(self) -> None:
        """Keep nothing."""
        for key in list(self._kept):
            self._set(self._kept, key, None)

    @property
    def left(self) -> int:
        """Free bytes."""
        return self._pool.total - self._pool.used

    def of(self, key: str) -> int:
        """Bytes that are kept of a key."""
        return self._kept.get(key, 0)

    def take(self, key: str, size: int) -> bool:
        """Reserve bytes for a key in place of its former ones; False, and none reserved, above its limit.

        What is kept and does not grow stays, whatever others have taken since.
        """
        table = self._kept if self._listed is None else self._listed
        most = max(self._kept.get(key, -1), table.get(key, -1))
        self._set(table, key, None)
        if size > most and not (size * _PART <= self.left and self._has_share(self._namespace_of(key), size)):
            return False
        self._set(table, key, size)
        return True

    def release(self, key: str) -> None:
        """Free a key's bytes."""
        self._set(self._kept, key, None)

    def _set(self, table: dict[str, int] | None, key: str, size: int | None) -> None:
        """Write a key's bytes into a table, and count what that changes."""
        if table is None:
            return
        before = self._counted(key)
        if size is None:
            table.pop(key, None)
        else:
            table[key] = size
        after, namespace = self._counted(key), self._namespace_of(key)
        self._pool.add(namespace, max(after, 0) - max(before, 0))
        more = (after >= 0) - (before >= 0)
        self._count += more
        self._objects_of[namespace] += more
        if not self._objects_of[namespace]:
            del self._objects_of[namespace]

    def _counted(self, key: str) -> int:
        """Return what counts of a key, -1 where there is none."""
        listed = -1 if self._listed is None else self._listed.get(key, -1)
        return max(self._kept.get(key, -1), listed)

    def _namespace_of(self, key: str) -> str:
        return key.partition("/")[0] if self._owner is None else self._owner

    def _has_share(self, namespace: str, size: int) -> bool:
        """Return whether a namespace, with one more object, leaves as much to the others."""
        if self._objects is None:
            return True
        more = self._objects - self._count - 1
        return self._pool.used_of(namespace) + size <= self.left - size and self._objects_of[namespace] + 1 <= more


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
