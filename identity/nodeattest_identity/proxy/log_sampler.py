"""Limits log lines that unauthenticated clients can cause: some of each kind in a period, then a count of the others.

Promises: at most ``limit`` lines of a kind in ``seconds``; the next line after that has the number of skipped lines.
Metrics count all of them, and level debug logs all of them.
Leaves to others: kinds, which must be few and not of a client's making.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["LogSampler"]


@dataclass(slots=True)
class _Period:
    """The lines of one kind in one period."""

    since: float
    logged: int = 0
    skipped: int = 0


class LogSampler:
    """Decides which lines are logged."""

    def __init__(self, now: Callable[[], float], *, limit: int = 20, seconds: float = 10.0) -> None:
        self._now = now
        self._limit = limit
        self._seconds = seconds
        self._kinds: dict[str, _Period] = {}

    def sample(self, kind: str) -> int | None:
        """Return the number of lines of this kind that were skipped before this one; None: skip this one, too."""
        now = self._now()
        current = self._kinds.get(kind)
        if current is None or not current.since <= now < current.since + self._seconds:
            current = self._kinds[kind] = _Period(now, skipped=0 if current is None else current.skipped)
        if current.logged >= self._limit:
            current.skipped += 1
            return None
        current.logged += 1
        skipped, current.skipped = current.skipped, 0
        return skipped
