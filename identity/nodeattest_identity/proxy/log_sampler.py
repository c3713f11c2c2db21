"""How often strangers may have a line of the log: some of each kind in a while, and then how many more there were.

Promises: a kind's lines are never more than ``most`` in ``seconds``; the first one after that says how many were left
out. Metrics count all of them, and the level debug tells all of them.
Leaves to others: kinds, which must be few and none of a stranger's making.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["LogSampler"]


@dataclass(slots=True)
class _While:
    """What was told of one kind."""

    since: float
    told: int = 0
    left_out: int = 0


class LogSampler:
    """Who decides whether a line is told."""

    def __init__(self, now: Callable[[], float], *, most: int = 20, seconds: float = 10.0) -> None:
        self._now = now
        self._most = most
        self._seconds = seconds
        self._kinds: dict[str, _While] = {}

    def more(self, kind: str) -> int | None:
        """Tell how many lines of this kind were left out before this one; None: leave this out, too."""
        now = self._now()
        current = self._kinds.get(kind)
        if current is None or not current.since <= now < current.since + self._seconds:
            current = self._kinds[kind] = _While(now, left_out=0 if current is None else current.left_out)
        if current.told >= self._most:
            current.left_out += 1
            return None
        current.told += 1
        left_out, current.left_out = current.left_out, 0
        return left_out
