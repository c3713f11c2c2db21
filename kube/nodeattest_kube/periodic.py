"""When to do something again: back-off, rate limits, and a reconciler that runs periodically.

The reconcilers of many objects do not run in step, and each spends at most a share of the time reconciling.
Source: client-go's reflector (0.8 s to 30 s, factor 2, jitter 1) and apimachinery wait.Jitter; the generic cell rate
algorithm (ITU-T I.371): a bucket is the time at which its next token is there.
"""

from __future__ import annotations

import asyncio
import logging
import random as random_module
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, ParamSpec

from nodeattest_kube.errors import ApiError

_REMEMBERED: Final = 20_000
_LOG: Final = logging.getLogger(__name__)
P = ParamSpec("P")
Random = Callable[[], float]
"""Draws from [0, 1)."""


class RateLimiter:
    """Token buckets of one size, by key; ``clock`` is monotonic seconds.

    A bucket is dropped once it is full again. At most ``remembered`` are kept: beyond that the least recently used one
    is dropped, which refills it.
    """

    def __init__(
        self, *, burst: int, per_second: float, clock: Callable[[], float], remembered: int = _REMEMBERED
    ) -> None:
        self._pause = 1 / per_second
        self._depth = (burst - 1) * self._pause
        self._clock = clock
        self._remembered = remembered
        self._next: OrderedDict[Hashable, float] = OrderedDict()
        """When a bucket's next token is there, if none was ever saved up."""

    def take(self, key: Hashable) -> bool:
        """Take a token; False if the bucket is empty."""
        return self.reserve(key, 0.0) is not None

    def has_token(self, key: Hashable) -> bool:
        """Return whether ``take`` would get a token; takes none."""
        now = self._clock()
        return self._ready(key, now) <= now

    def reserve(self, key: Hashable, max_wait: float) -> float | None:
        """Take a token, now or of those to come; returns the seconds until it is there.

        None, and nothing is taken, if that would be longer than ``max_wait``.
        """
        now = self._clock()
        ready = self._ready(key, now)
        if ready - now > max_wait:
            return None
        self._next[key] = ready + self._pause
        while self._next and next(iter(self._next.values())) <= now - self._depth:  # full, as one that is not known is
            self._next.popitem(last=False)
        if len(self._next) > self._remembered:
            self._next.popitem(last=False)
        return max(0.0, ready - now)

    def _ready(self, key: Hashable, now: float) -> float:
        """Return when the next token is there; the bucket counts as used."""
        if key in self._next:
            self._next.move_to_end(key)
        return max(self._next.get(key, now - self._depth), now - self._depth)

    def __len__(self) -> int:
        return len(self._next)


def notify(subscriber: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call a subscriber; a bug in it is logged and stays its own."""
    try:
        subscriber(*args, **kwargs)
    except Exception:  # noqa: BLE001 - the edge between controllers: one's bug must not stop the informer or another
        _LOG.exception("a bug in a controller's handler: please report it")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffPolicy:
    """How long to wait before attempt after attempt: twice as long each time."""

    initial: float
    """Seconds before the second attempt."""
    cap: float
    """Seconds; the exponential part grows no further."""
    jitter: float = 1.0
    """At most this share of the delay is added at random, so that a fleet's clients spread out."""

    def delay(self, failures: int, random: Random, error: BaseException | None) -> float:
        """Seconds to wait after the n-th failure in a row, counted from 1.

        ``error``: the last failure. Its Retry-After, which ``errors`` caps, is waited out.
        """
        # The exponent is bounded before the power is taken: a float overflows at 2**1024.
        grown = self.initial * 2.0 ** min(max(failures - 1, 0), 64)
        retry_after = (error.retry_after or 0.0) if isinstance(error, ApiError) else 0.0
        return max(min(grown, self.cap) * (1.0 + self.jitter * random()), retry_after)


RECONNECT: Final = BackoffPolicy(initial=0.8, cap=30.0)
"""Watches: client-go's reflector."""
REQUEUE: Final = BackoffPolicy(initial=0.25, cap=300.0, jitter=0.25)
"""Keys of a work queue: quick while a cause may be passing, then at most about every five minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResyncConfig:
    """Intervals in seconds. Every wait is drawn between 0.8 and 1.2 of its value, but never ends before Retry-After."""

    spread: float = 2.0
    """The first run starts within this time."""
    period: float = 60.0
    min_interval: float = 10.0
    """Between two runs at least, however much changes."""
    retry: float = 5.0
    """After a failure; doubled each time, up to ``max_retry``."""
    max_retry: float = 300.0
    share: int = 10
    """Changes start runs for at most one part in so many of the time. With the periodic ones it is at most a tenth."""


class PeriodicReconciler(ABC):
    """Reconciles periodically and soon after changes, and after failures with back-off, until it is canceled."""

    def __init__(
        self,
        config: ResyncConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        random: Random = random_module.random,
    ) -> None:
        """``clock`` is monotonic seconds; ``random`` draws from [0, 1)."""
        self._config = config
        self._backoff = BackoffPolicy(initial=0.8 * config.retry, cap=0.8 * config.max_retry, jitter=0.5)
        self._clock, self._draw = clock, random
        self._wake = asyncio.Event()
        self._failures = 0

    @abstractmethod
    async def reconcile(self) -> float | None:
        """Read and act; returns the seconds until the next run at the latest, None for the period. Raises ApiError."""

    @abstractmethod
    async def failed(self, error: ApiError, failures: int, delay: float) -> None:
        """Report the last of so many failures in a row; the next run starts after ``delay`` seconds."""

    @property
    def synced(self) -> bool:
        """True: nothing is watched."""
        return True

    @property
    def last_error(self) -> ApiError | None:
        """None: failures are reported by ``failed``; they say nothing of the connection."""
        return None

    def changed(self, _keys: frozenset[str] | None = None) -> None:
        """Run again soon; what changed does not matter."""
        self._wake.set()

    async def run(self) -> None:
        """Run until canceled."""
        await asyncio.sleep(self._config.spread * self._draw())
        while True:
            self._wake.clear()
            started = self._clock()
            delay = await self._attempt()
            ended = self._clock()
            spent = ended - started
            for_changes = max(self._config.min_interval, self._config.share * spent)
            rest = max(min(for_changes, delay), 10 * spent)
            await asyncio.sleep(delay if self._failures else rest)
            # Not asyncio.wait_for, which in Python 3.11 loses a cancellation that comes with the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, delay - (self._clock() - ended))):
                    await self._wake.wait()

    async def _attempt(self) -> float:
        """Reconcile once; return the seconds until the next run at the latest."""
        try:
            again_after = await self.reconcile()
        except ApiError as error:
            self._failures += 1
            delay = self._backoff.delay(self._failures, self._draw, error)
            await self.failed(error, self._failures, delay)
            return delay
        self._failures = 0
        return (self._config.period if again_after is None else again_after) * (0.8 + 0.4 * self._draw())


async def call_every(period: float, action: Callable[[], None]) -> None:
    """Call ``action``, which does no I/O, now and every so many seconds until canceled."""
    while True:
        action()
        await asyncio.sleep(period)
