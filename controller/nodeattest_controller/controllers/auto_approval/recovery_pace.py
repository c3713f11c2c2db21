"""When a cluster whose watches recover is audited: many that recover together, as after a partition, are spread.

Promises: a cluster that recovers alone is audited at once; of many, ``PER_SECOND`` are, and none waits longer than
``MAX_DELAY``, however many they are. A cluster that hangs takes no turn of another: turns are times, not slots.
Leaves to others: whether an audit is needed (``reconciler``), and how it runs (``controller``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nodeattest_kube.rate_limiter import RateLimiter

__all__ = ["MAX_DELAY", "PER_SECOND", "RecoveryPace"]

PER_SECOND: Final = 10.0
"""Clusters; an audit sends some ten requests."""
MAX_DELAY: Final = 60.0
"""Seconds. Until its audit a cluster is reported as before or as Unknown, never as closed by mistake."""


class RecoveryPace:
    """The turns of all clusters."""

    def __init__(self, *, clock: Callable[[], float], random: Callable[[], float]) -> None:
        """``clock`` is monotonic seconds; ``random`` draws from [0, 1)."""
        self._limiter = RateLimiter(burst=1, per_second=PER_SECOND, clock=clock, remembered=1)
        self._random = random

    def delay(self) -> float:
        """Take the next turn; returns the seconds until it is there."""
        reserved = self._limiter.reserve("", MAX_DELAY)
        return MAX_DELAY * self._random() if reserved is None else reserved
