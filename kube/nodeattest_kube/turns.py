"""Whose turn it is: ready keys in groups that take turns, each group with a bounded share of the workers.

Promises: the next key is that of the group that waited longest for its turn, first come first served within a group; a
group never has more than ``limit`` keys in hand, so one whose work hangs delays no other. Every step costs the same
however many keys and groups wait.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["Turns"]

K = TypeVar("K", bound=Hashable)


class Turns(Generic[K]):
    """Keys that are ready, by group."""

    def __init__(self, group: Callable[[K], Hashable], limit: int) -> None:
        self._group = group
        self._limit = limit
        self._waiting: dict[Hashable, OrderedDict[K, float]] = {}
        self._rotation: OrderedDict[Hashable, None] = OrderedDict()
        """Groups that have a key ready and a share left, the next first."""
        self._in_hand: Counter[Hashable] = Counter()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: K) -> bool:
        return key in self._waiting.get(self._group(key), ())

    def add(self, key: K, since: float) -> None:
        """Put a key at the end of its group's line."""
        group = self._group(key)
        line = self._waiting.setdefault(group, OrderedDict())
        if key not in line:
            line[key] = since
            self._count += 1
        self._invite(group)

    def take(self) -> K | None:
        """Hand out the next key; None when every group that has one has its share in hand."""
        if not self._rotation:
            return None
        group, _ = self._rotation.popitem(last=False)
        line = self._waiting[group]
        key, _since = line.popitem(last=False)
        self._count -= 1
        self._in_hand[group] += 1
        if not line:
            del self._waiting[group]
        self._invite(group)
        return key

    def done(self, key: K) -> None:
        """Give a key's share back."""
        group = self._group(key)
        self._in_hand[group] -= 1
        if self._in_hand[group] <= 0:
            del self._in_hand[group]
        self._invite(group)

    def clear(self) -> None:
        """Drop what waits."""
        self._waiting.clear()
        self._rotation.clear()
        self._count = 0

    def oldest(self) -> float | None:
        """Tell since when the first key waits; None when none does."""
        return min((next(iter(line.values())) for line in self._waiting.values()), default=None)

    def _invite(self, group: Hashable) -> None:
        if group in self._waiting and self._in_hand[group] < self._limit:
            self._rotation.setdefault(group, None)
        else:
            self._rotation.pop(group, None)
        if not self._in_hand[group]:
            del self._in_hand[group]
