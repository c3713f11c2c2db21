"""What discovery takes from its surroundings: time, somebody to tell, and how long it may take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

__all__ = ["LIMIT", "PAUSE", "Patience", "Surroundings"]

LIMIT: Final = 300.0
"""Seconds for a whole discovery (kubeadm constants.DiscoveryTimeout, its timeouts.discovery)."""
PAUSE: Final = 5.0
"""Seconds between two rounds of questions (kubeadm constants.DiscoveryRetryInterval)."""


def _tell_nobody(line: str) -> None:
    del line


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Time and chance as arguments, so that five minutes can be tested in none."""

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.time
    """Seconds since the epoch."""
    tell: Callable[[str], None] = _tell_nobody
    """Takes one line for the person who waits; never a secret."""
    limit: float = LIMIT
    """Seconds for the whole of one discovery."""
    public_roots: bytes | None = None
    """CAs in PEM for servers of public names (a discovery file by URL); None: those of this machine."""

    def patience(self) -> Patience:
        """Start the clock of one discovery."""
        return Patience(self, self.monotonic() + self.limit)


@dataclass(frozen=True, slots=True)
class Patience:
    """What is left of a discovery's time."""

    around: Surroundings
    end: float
    """On the monotonic clock."""

    @property
    def left(self) -> float:
        """Seconds, never negative."""
        return max(0.0, self.end - self.around.monotonic())

    def pause(self, seconds: float = PAUSE) -> bool:
        """Wait before the next round; False if no time is left for one."""
        if self.left <= seconds:
            return False
        self.around.sleep(seconds)
        return True
