"""Whose turn it is: ready keys in groups, groups in groups, each with a bounded share of the workers.

Promises: on every level the next is the group that waited longest for its turn, and in the innermost group the key
that came first; no group ever has more keys in hand than its level's limit, so one whose work hangs delays no other.
However many keys one group has waiting, another's next key is taken after at most one of each group beside it. Every
step costs the same however many keys and groups wait; memory is that of the keys and of the groups that have any.
Source: deficit round robin with equal quanta, nested (Shreedhar and Varghese, 1995).
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

__all__ = ["Path", "Turns"]

K = TypeVar("K", bound=Hashable)

Path = tuple[Hashable, ...]
"""A key's groups, outermost first."""


class _Group(Generic[K]):
    """A group: keys in a line, or groups that take turns."""

    __slots__ = ("in_hand", "inner", "limit", "line", "rotation")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_hand = 0
        self.line: OrderedDict[K, float] = OrderedDict()
        """Keys, and since when each waits; of an innermost group only."""
        self.inner: dict[Hashable, _Group[K]] = {}
        self.rotation: OrderedDict[Hashable, None] = OrderedDict()
        """Inner groups that have a key ready and a share left, the next first."""

    @property
    def ready(self) -> bool:
        """Whether a key can be taken."""
        return self.in_hand < self.limit and bool(self.line or self.rotation)

    @property
    def empty(self) -> bool:
        """Whether nothing waits or is in hand."""
        return not (self.line or self.inner or self.in_hand)

    def invite(self, name: Hashable) -> None:
        """Give an inner group its place among the others, or take it away."""
        group = self.inner[name]
        if group.ready:
            self.rotation.setdefault(name, None)
        else:
            self.rotation.pop(name, None)
        if group.empty:
            del self.inner[name]

    def lines(self) -> Iterator[OrderedDict[K, float]]:
        """Go through all lines that are not empty."""
        if self.line:
            yield self.line
        for group in self.inner.values():
            yield from group.lines()


class Turns(Generic[K]):
    """Keys that are ready, by group."""

    def __init__(self, groups: Callable[[K], Path], limits: tuple[int, ...]) -> None:
        """Begin empty; ``groups`` names as many groups as there are ``limits``, and is asked only when a key comes."""
        self._groups = groups
        self._limits = limits
        self._all: _Group[K] = _Group(sys.maxsize)
        self._waiting: dict[K, Path] = {}
        self._held: dict[K, Path] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, key: K) -> bool:
        return key in self._waiting

    def add(self, key: K, since: float) -> None:
        """Put a key at the end of its group's line."""
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
        way[-1].line[key] = since
        _invite(way, path)

    def take(self) -> K | None:
        """Hand out the next key; None when every group that has one has its share in hand."""
        if not self._all.ready:
            return None
        way = [self._all]
        while way[-1].rotation:
            name, _ = way[-1].rotation.popitem(last=False)
            way.append(way[-1].inner[name])
        key, _since = way[-1].line.popitem(last=False)
        path = self._waiting.pop(key)
        self._held[key] = path
        for group in way:
            group.in_hand += 1
        _invite(way, path)
        return key

    def done(self, key: K) -> None:
        """Give a key's share back."""
        path = self._held.pop(key)
        way = [self._all]
        for name in path:
            way.append(way[-1].inner[name])
        for group in way:
            group.in_hand -= 1
        _invite(way, path)

    def clear(self) -> None:
        """Drop what waits; what is in hand still has its share to give back."""
        self._waiting.clear()
        held, self._held = self._held, {}
        self._all = _Group(sys.maxsize)
        for key, path in held.items():
            self._hold(key, path)

    def oldest(self) -> float | None:
        """Tell since when the first key waits; None when none does."""
        return min((next(iter(line.values())) for line in self._all.lines()), default=None)

    def _hold(self, key: K, path: Path) -> None:
        self._held[key] = path
        group = self._all
        group.in_hand += 1
        for name, limit in zip(path, self._limits, strict=True):
            group = group.inner.setdefault(name, _Group(limit))
            group.in_hand += 1


def _invite(way: list[_Group[K]], path: Path) -> None:
    """Bring every level's rotation up to date, innermost first."""
    for group, name in zip(reversed(way[:-1]), reversed(path), strict=True):
        group.invite(name)
