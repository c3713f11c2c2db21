"""Dependencies of the bootstrap token controllers: clocks, timers and the observer."""

from __future__ import annotations

import random as random_module
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, Protocol

from nodeattest_kube.errors import ApiError
from nodeattest_kube.periodic import BackoffPolicy
from nodeattest_kube.workqueue import Timer, WorkQueue, loop_timer

RECHECK: Final = 60.0
"""Maximum seconds until an expiry is checked again, as the clock may jump."""
_RETRY: Final = BackoffPolicy(initial=0.25, cap=30.0, jitter=0.25)
"""Short, because a join may wait for the signature."""


class TokenController(StrEnum):
    """The controllers of a cluster's tokens, named as in ``--controllers``."""

    SIGNER = "bootstrap-signer"
    CLEANER = "token-cleaner"


class Observer(Protocol):
    """Receives what the controllers did; methods do not block."""

    def signed(self, tokens: int, seconds: float) -> None:
        """Cluster-info has the signatures of so many tokens, so many seconds after the change that asked for it."""

    def cleaned(self, name: str) -> None:
        """Note that the Secret of an expired token was deleted."""

    def failed(self, controller: TokenController, error: ApiError, delay: float) -> None:
        """Note that a write failed; it is tried again after so many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerDeps:
    """Clocks, timers and randomness."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    """Wall clock: decides what has expired, and may jump."""
    clock: Callable[[], float] = time.monotonic
    """Monotonic seconds."""
    timer: Timer = loop_timer
    random: Callable[[], float] = random_module.random

    def queue(self) -> WorkQueue[str]:
        """Make a queue with retries."""
        return WorkQueue(backoff=_RETRY, clock=self.clock, random=self.random, timer=self.timer)


def seconds_until(moment: datetime, now: datetime) -> float:
    """Return the seconds until a time, at most ``RECHECK``: clocks jump."""
    return min(max((moment - now).total_seconds(), 0.0), RECHECK)
