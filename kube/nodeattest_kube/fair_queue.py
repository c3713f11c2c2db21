"""A nested fair queue with a concurrency limit per group: keys in groups, groups in groups.

On every level groups are served round robin, and in the innermost group keys are served first in, first out. A group
never has more keys in flight than its level's limit, so a group whose work hangs delays no other. Every operation takes
constant time; memory grows with the keys and with the groups that have any.
Source: deficit round robin with equal quanta, nested (Shreedhar and Varghese, 1995).
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


GroupPath = tuple[Hashable, ...]
"""A key's groups, outermost first."""


class _Group(Generic[K]):
    """A group: a queue of keys, or inner groups served round robin."""

    __slots__ = ("in_flight", "inner", "limit", "queue", "rotation")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_flight = 0
        self.queue: OrderedDict[K, float] = OrderedDict()
        """Keys with the time since which each waits; of an innermost group only."""
        self.inner: dict[Hashable, _Group[K]] = {}
        self.rotation: OrderedDict[Hashable, None] = OrderedDict()
        """Inner groups with a ready key and below their limit, the next first."""

    @property
    def ready(self) -> bool:
        """Whether a key can be taken."""
        return self.in_flight < self.limit and bool(self.queue or self.rotation)

    @property
    def empty(self) -> bool:
        """Whether nothing waits or is in flight."""
        return not (self.queue or self.inner or self.in_flight)

    def update_rotation(self, name: Hashable) -> None:
        """Add an inner group to the rotation, or remove it."""
        group = self.inner[name]
        if group.ready:
            self.rotation.setdefault(name, None)
        else:
            self.rotation.pop(name, None)
        if group.empty:
            del self.inner[name]

    def queues(self) -> Iterator[OrderedDict[K, float]]:
        """Iterate over all non-empty queues of keys."""
        if self.queue:
            yield self.queue
        for group in self.inner.values():
            yield from group.queues()


class FairQueue(Generic[K]):
    """Ready keys, by group."""

    def __init__(self, groups: Callable[[K], GroupPath], limits: tuple[int, ...]) -> None:
        """Take ``groups``, which returns one group for each of ``limits``; it is called only when a key is added."""
        self._groups = groups
        self._limits = limits
        self._all: _Group[K] = _Group(sys.maxsize)
        self._waiting: dict[K, GroupPath] = {}
        self._held: dict[K, tuple[GroupPath, float]] = {}
        """Keys in flight, and since when each had waited."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, key: K) -> bool:
        return key in self._waiting

    def add(self, key: K, since: float) -> None:
        """Append a key to its group's queue."""
        if key in self._waiting:
            return
        path = self._groups(key)
        self._waiting[key] = path
        way = [self._all]
        for name, limit in zip(path, self._limits, strict=True):
            group = way[-1].inner.get(name)
            if group is None:
                group = way[-1].inner[name] = _Group(limit)
            way.append(group)
        way[-1].queue[key] = since
        _update_rotations(way, path)

    def take(self) -> K | None:
        """Return the next key; None if every group that has one is at its limit."""
        if not self._all.ready:
            return None
        way = [self._all]
        while way[-1].rotation:
            name, _ = way[-1].rotation.popitem(last=False)
            way.append(way[-1].inner[name])
        key, since = way[-1].queue.popitem(last=False)
        path = self._waiting.pop(key)
        self._held[key] = path, since
        for group in way:
            group.in_flight += 1
        _update_rotations(way, path)
        return key

    def done(self, key: K) -> None:
        """Mark a key as done, which frees its place in its groups' limits."""
        path, _since = self._held.pop(key)
        way = [self._all]
        for name in path:
            way.append(way[-1].inner[name])
        for group in way:
            group.in_flight -= 1
        _update_rotations(way, path)

    def oldest(self) -> float | None:
        """Return since when the oldest key waits; None if none does."""
        return min((next(iter(queue.values())) for queue in self._all.queues()), default=None)

    def had_waited_since(self, key: K) -> float:
        """Return since when a key that is in flight had waited."""
        return self._held[key][1]


def _update_rotations(way: list[_Group[K]], path: GroupPath) -> None:
    """Update every level's rotation, innermost first."""
    for group, name in zip(reversed(way[:-1]), reversed(path), strict=True):
        group.update_rotation(name)
