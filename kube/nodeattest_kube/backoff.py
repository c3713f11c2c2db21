"""Exponential back-off with jitter, never shorter than a server's Retry-After. The caller waits, on its own clock.

Source: client-go's reflector (0.8 s to 30 s, factor 2, jitter 1) and apimachinery wait.Jitter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nodeattest_kube.errors import ApiError

__all__ = ["RECONNECT", "REQUEUE", "BackoffPolicy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffPolicy:
    """How long to wait before attempt after attempt."""

    initial: float
    """Seconds before the second attempt."""
    cap: float
    """Seconds; the exponential part grows no further."""
    factor: float = 2.0
    jitter: float = 1.0
    """At most this share of the delay is added at random, so that a fleet's clients spread out."""

    def delay(self, failures: int, random: Callable[[], float], error: BaseException | None) -> float:
        """Seconds to wait after the n-th failure in a row, counted from 1; ``random`` gives [0, 1).

        ``error``: the last failure. Its Retry-After, which ``errors`` caps, is waited out.
        """
        # The exponent is bounded before the power is taken: a float overflows at 2**1024.
        grown = self.initial * self.factor ** min(max(failures - 1, 0), 64)
        retry_after = (error.retry_after or 0.0) if isinstance(error, ApiError) else 0.0
        return max(min(grown, self.cap) * (1.0 + self.jitter * random()), retry_after)


RECONNECT: Final = BackoffPolicy(initial=0.8, cap=30.0)
"""Watches: client-go's reflector."""
REQUEUE: Final = BackoffPolicy(initial=0.25, cap=300.0, jitter=0.25)
"""Keys of a work queue: quick while a cause may be passing, then at most about every five minutes."""
