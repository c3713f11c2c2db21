"""Clock, deadlines, backoff and randomness as arguments, for tests in virtual time.

Standard library only, because every call of the agent imports it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_MAX_EXPONENT: Final = 20


def _tell_nobody(kind: str, what: str, until: float) -> None:
    del kind, what, until


@dataclass(frozen=True, slots=True)
class Clock:
    """The functions of a clock."""

    now: Callable[[], float] = time.time
    """Seconds since the epoch."""
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    on_wait: Callable[[str, str, float], None] = _tell_nobody
    """Called repeatedly during a wait with its kind, what it waits for, and its end (epoch seconds)."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A time of the monotonic clock."""

    clock: Clock
    at: float

    @classmethod
    def after(cls, clock: Clock, seconds: float) -> Deadline:
        """Return a deadline ``seconds`` from now."""
        return cls(clock, clock.monotonic() + seconds)

    def within(self, seconds: float) -> Deadline:
        """Return a deadline ``seconds`` from now, but not after this one."""
        return Deadline(self.clock, min(self.at, self.clock.monotonic() + seconds))

    @property
    def left(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at - self.clock.monotonic())

    @property
    def passed(self) -> bool:
        """Whether no time is left."""
        return self.left <= 0

    def waits_for(self, kind: str, what: str) -> None:
        """Report what is waited for until this deadline, without secrets. ``kind``: a constant, for rate limits."""
        self.clock.on_wait(kind, what, self.clock.now() + self.left)

    def sleep(self, seconds: float) -> None:
        """Sleep, but not past the deadline."""
        self.clock.sleep(min(seconds, self.left))

    def pause(self, seconds: float) -> bool:
        """Sleep before another attempt. Return False without sleeping if no time would be left for it."""
        if self.left <= seconds:
            return False
        self.clock.sleep(seconds)
        return True


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between attempts in seconds, doubling from the first to the longest, with a jitter of one half."""

    first: float
    longest: float

    def pause(self, failures: int, random: Callable[[], float]) -> float:
        """Return the pause with jitter after ``failures`` earlier failures."""
        return self.bound(failures) * (0.5 + random())

    def bound(self, failures: int) -> float:
        """Return the pause without jitter."""
        return min(self.first * 2 ** min(failures, _MAX_EXPONENT), self.longest)


def random_unit() -> float:
    """Return a random number from [0, 1) without the cost of seeding a generator."""
    return int.from_bytes(os.urandom(6)) / 2**48
