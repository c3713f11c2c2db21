"""A memory budget for the objects of one collection.

The kept objects never take more than the total. One object gets at most a small part of what is left, so that large
objects that come first leave room for small ones. Where namespaces are of different tenants, each has at most as much
as it leaves to the others, in bytes and in objects: one alone gets half of all. Leaves to others: what happens to
refused objects.
Source: dynamic thresholds for shared buffers (Choudhury and Hahne, 1998).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Container
from copy import copy
from typing import Final, Self

from nodeattest_kube.jsontypes import JsonObject, JsonValue

__all__ = ["MemoryBudget", "object_size"]

_PART: Final = 64
"""An object gets at most this part of what is left."""


class MemoryBudget:
    """Bytes by key, and what is left of the total."""

    def __init__(self, total: int, *, objects: int | None = None) -> None:
        """``objects``: how many there may be, where namespaces have shares; without it only bytes count."""
        self._left = total
        self._objects = objects
        self._shares: dict[str, int] = {}
        self._bytes_of: Counter[str] = Counter()
        self._objects_of: Counter[str] = Counter()
        """Both by namespace, where these have shares."""

    def copy(self) -> Self:
        """Return another that begins with the same reservations: a new list's, in which what is kept has its room."""
        made = copy(self)
        made.detach()
        return made

    def detach(self) -> None:
        """Share no table with the one that this was copied from."""
        self._shares = dict(self._shares)
        self._bytes_of, self._objects_of = Counter(self._bytes_of), Counter(self._objects_of)

    def keep_only(self, keys: Container[str]) -> None:
        """Free the bytes of all other keys."""
        for key in [key for key in self._shares if key not in keys]:
            self.release(key)

    @property
    def left(self) -> int:
        """Free bytes."""
        return self._left

    def of(self, key: str) -> int:
        """Bytes of a key."""
        return self._shares.get(key, 0)

    def take(self, key: str, size: int) -> bool:
        """Reserve bytes for a key in place of its former ones; False, and none reserved, above its limit.

        What is kept and does not grow stays, whatever others have taken since.
        """
        grows = size > self._shares.get(key, -1)
        self.release(key)
        if grows and (size * _PART > self._left or not self._has_share(_namespace_of(key), size)):
            return False
        self._left -= size
        self._shares[key] = size
        if self._objects is not None:
            self._bytes_of[_namespace_of(key)] += size
            self._objects_of[_namespace_of(key)] += 1
        return True

    def release(self, key: str) -> None:
        """Free a key's bytes."""
        size = self._shares.pop(key, None)
        if size is None:
            return
        self._left += size
        if self._objects is not None:
            namespace = _namespace_of(key)
            self._bytes_of[namespace] -= size
            self._objects_of[namespace] -= 1
            if not self._objects_of[namespace]:
                del self._bytes_of[namespace], self._objects_of[namespace]

    def _has_share(self, namespace: str, size: int) -> bool:
        """Return whether a namespace, with one more object, leaves as much to the others."""
        if self._objects is None:
            return True
        more = self._objects - len(self._shares) - 1
        return self._bytes_of[namespace] + size <= self._left - size and self._objects_of[namespace] + 1 <= more


def _namespace_of(key: str) -> str:
    return key.partition("/")[0]


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
