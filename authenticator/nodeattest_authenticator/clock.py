"""Time and chance as arguments, so that back-off, renewal and deadlines can be tested in virtual time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Clock", "Deadline", "chance"]


@dataclass(frozen=True, slots=True)
class Clock:
    """The three questions asked of a clock."""

    now: Callable[[], float] = time.time
    """Seconds since the epoch."""
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of the monotonic clock."""

    clock: Clock
    at: float

    @classmethod
    def after(cls, clock: Clock, seconds: float) -> Deadline:
        """Set a deadline ``seconds`` from now."""
        return cls(clock, clock.monotonic() + seconds)

    @property
    def left(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at - self.clock.monotonic())

    @property
    def passed(self) -> bool:
        """Whether no time is left."""
        return self.left <= 0

    def sleep(self, seconds: float) -> None:
        """Sleep, but not past the deadline."""
        self.clock.sleep(min(seconds, self.left))


def chance() -> float:
    """Draw a number from [0, 1); the random module would seed a generator for one draw."""
    return int.from_bytes(os.urandom(6)) / 2**48
