"""A memory budget for the objects of one collection, or of several together.

The kept objects never take more than the total. One object gets at most a small part of what is left, so that large
objects that come first leave room for small ones. Where namespaces are of different tenants, each has at most as much
as it leaves to the others, in bytes and in objects: one alone gets half of all. Collections that share a ``MemoryPool``
share its bytes, whatever is in which, and a namespace's share is that of all of them. Leaves to others: what happens to
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

__all__ = ["MemoryBudget", "MemoryPool", "object_size"]

_PART: Final = 64
"""An object gets at most this part of what is left."""


class MemoryPool:
    """The bytes that several collections share."""

    def __init__(self, total: int) -> None:
        self.total: Final = total
        self.passed_over = 0
        """How often an object of any of them was not taken."""
        self._budgets: list[MemoryBudget] = []

    @property
    def used(self) -> int:
        """Bytes that are taken."""
        return sum(budget.used for budget in self._budgets)

    def used_beside(self, origin: object, namespace: str | None = None) -> int:
        """Return what collections other than that of a budget take, all of it or that of a namespace."""
        others = (budget for budget in self._budgets if budget.origin is not origin)
        return sum(each.used if namespace is None else each.used_of(namespace) for each in others)

    def replace(self, budget: MemoryBudget) -> None:
        """Count a collection by this budget from now on."""
        self._budgets = [each for each in self._budgets if each.origin is not budget.origin] + [budget]


class MemoryBudget:
    """Bytes by key, and what is left of the total."""

    def __init__(self, total: int | MemoryPool, *, objects: int | None = None) -> None:
        """``objects``: how many there may be, where namespaces have shares; without it only bytes count."""
        self._total = total.total if isinstance(total, MemoryPool) else total
        self._pool = total if isinstance(total, MemoryPool) else None
        self.origin = object()
        """The same in all copies."""
        self.used = 0
        """Bytes that are taken here."""
        self._objects = objects
        self._shares: dict[str, int] = {}
        self._bytes_of: Counter[str] = Counter()
        self._objects_of: Counter[str] = Counter()
        """Both by namespace, where these have shares."""
        self.use()

    def use(self) -> None:
        """Be what the pool counts, where there is one; a copy is not before this."""
        if self._pool is not None:
            self._pool.replace(self)

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
        return self._total - self.used - (self._pool.used_beside(self.origin) if self._pool is not None else 0)

    def used_of(self, namespace: str) -> int:
        """Bytes that a namespace takes here, where namespaces have shares."""
        return self._bytes_of[namespace]

    def of(self, key: str) -> int:
        """Bytes of a key."""
        return self._shares.get(key, 0)

    def take(self, key: str, size: int) -> bool:
        """Reserve bytes for a key in place of its former ones; False, and none reserved, above its limit.

        What is kept and does not grow stays, whatever others have taken since.
        """
        grows = size > self._shares.get(key, -1)
        self.release(key)
        if grows and (size * _PART > self.left or not self._has_share(_namespace_of(key), size)):
            return False
        self.used += size
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
        self.used -= size
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
        taken = self._bytes_of[namespace]
        if self._pool is not None:
            taken += self._pool.used_beside(self.origin, namespace)
        return taken + size <= self.left - size and self._objects_of[namespace] + 1 <= more


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
