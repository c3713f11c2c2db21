"""A memory budget for the objects of one collection, or of several together.

The kept objects never take more than the total. One object gets at most a small part of what is left, so that large
objects that come first leave room for small ones. Where namespaces are of different tenants, each has at most as much
as it leaves to the others, in bytes and in objects: one alone gets half of all. Collections that share a ``MemoryPool``
share its bytes, whatever is in which, and a namespace's share is that of all of them: also while they are listed, for
what a list holds beyond what is kept counts. Leaves to others: what happens to refused objects.
Source: dynamic thresholds for shared buffers (Choudhury and Hahne, 1998).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Container, Generator
from contextlib import contextmanager
from copy import copy
from typing import Final, Self

from nodeattest_kube.jsontypes import JsonObject, JsonValue

__all__ = ["MemoryBudget", "MemoryPool", "object_size"]

_PART: Final = 64
"""An object gets at most this part of what is left."""
_MOST_REFUSED: Final = 1000
"""Namespaces of which it is known what was refused."""


class MemoryPool:
    """The bytes that several collections share."""

    def __init__(self, total: int) -> None:
        self.total: Final = total
        self._in_use: dict[object, MemoryBudget] = {}
        self._lists: dict[object, MemoryBudget] = {}
        """Both by origin."""

    @property
    def used(self) -> int:
        """Bytes that are taken."""
        return self.used_beside(None)

    def used_beside(self, origin: object, namespace: str | None = None) -> int:
        """Return what collections other than that of a budget take, all of it or that of a namespace.

        A collection that is listed takes the greater of what is kept and what the list has reserved.
        """
        total = 0
        for each, budget in self._in_use.items():
            if each is not origin:
                listed = self._lists.get(each, budget)
                total += max(_used(budget, namespace), _used(listed, namespace))
        return total

    def use(self, budget: MemoryBudget) -> None:
        """Count a collection by this budget from now on."""
        self._in_use[budget.origin] = budget

    def begin_list(self, budget: MemoryBudget) -> None:
        """Count also what a list of a collection reserves; there is one at a time."""
        self._lists[budget.origin] = budget

    def end_list(self, budget: MemoryBudget) -> None:
        """Count no list of a collection any more."""
        self._lists.pop(budget.origin, None)


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
        self._refused: dict[str, int] = {}
        """Bytes of the smallest object that was refused, by namespace, where these have shares."""
        self.use()

    def use(self) -> None:
        """Be what is kept; a copy is not before this."""
        if self._pool is not None:
            self._pool.use(self)

    @contextmanager
    def list_anew(self) -> Generator[Self]:
        """Give a list another that begins with the same reservations: what is kept has its room, wherever it is listed.

        What the list takes beyond them counts for others until the block ends.
        """
        made = copy(self)
        made.detach()
        if self._pool is not None:
            self._pool.begin_list(made)
        try:
            yield made
        finally:
            if self._pool is not None:
                self._pool.end_list(made)

    def detach(self) -> None:
        """Share no table with the one that this was copied from; a new list has refused nothing."""
        self._shares, self._refused = dict(self._shares), {}
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
        if grows and not self._fits(_namespace_of(key), size):
            self._note_refused(_namespace_of(key), size)
            return False
        self.used += size
        self._shares[key] = size
        if self._objects is not None:
            self._bytes_of[_namespace_of(key)] += size
            self._objects_of[_namespace_of(key)] += 1
        return True

    @property
    def has_room_again(self) -> bool:
        """Whether something that was refused since the last list, or by it, would be taken now."""
        return any(self._fits(namespace, size) for namespace, size in self._refused.items())

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

    def _note_refused(self, namespace: str, size: int) -> None:
        """Remember what was refused; of too many namespaces, and without shares, only the smallest of all."""
        if self._objects is None or (namespace not in self._refused and len(self._refused) >= _MOST_REFUSED):
            namespace = ""
        self._refused[namespace] = min(size, self._refused.get(namespace, size))

    def _fits(self, namespace: str, size: int) -> bool:
        """Whether one more object of a namespace would be taken."""
        return size * _PART <= self.left and self._has_share(namespace, size)

    def _has_share(self, namespace: str, size: int) -> bool:
        """Return whether a namespace, with one more object, leaves as much to the others."""
        if self._objects is None:
            return True
        more = self._objects - len(self._shares) - 1
        taken = self._bytes_of[namespace]
        if self._pool is not None:
            taken += self._pool.used_beside(self.origin, namespace)
        return taken + size <= self.left - size and self._objects_of[namespace] + 1 <= more


def _used(budget: MemoryBudget, namespace: str | None) -> int:
    return budget.used if namespace is None else budget.used_of(namespace)


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
