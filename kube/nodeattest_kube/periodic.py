"""When to do something again: back-off, rate limits, and a reconciler that runs periodically.

The reconciler runs soon after a change, else once a period, and with back-off after failures. The reconcilers of many
objects do not run in step, and each spends at most a share of the time reconciling. Back-off is exponential with
jitter, and never shorter than a server's Retry-After. Out of scope: what is reconciled, and how a failure is reported.
Source: client-go's reflector (0.8 s to 30 s, factor 2, jitter 1) and apimachinery wait.Jitter; the generic cell rate
algorithm (ITU-T I.371): a bucket is the time at which its next token is there.
"""

from __future__ import annotations

import asyncio
import logging
import random as random_module
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, ParamSpec, Protocol

from nodeattest_kube.errors import ApiError

_REMEMBERED: Final = 20_000
_LOG: Final = logging.getLogger(__name__)
P = ParamSpec("P")


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

    def delay(self, failures: int, random: Callable[[], float], error: BaseException | None) -> float:
        """Seconds to wait after the n-th failure in a row, counted from 1; ``random`` gives [0, 1).

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
    urgent: float = 1.0
    """The same, if ``hurry`` was called."""
    retry: float = 5.0
    """After a failure; doubled each time, up to ``max_retry``."""
    max_retry: float = 300.0
    share: int = 10
    """One part in so many of the time may be spent reconciling."""
    share_of_changes: int = 0
    """The same of what changes start; a run follows within the period all the same. 0: no less than ``share``."""


class PeriodicTask(Protocol):
    """What is done in each run."""

    async def reconcile(self) -> float | None:
        """Read and act; returns the seconds until the next run at the latest, None for the period. Raises ApiError."""
        ...

    async def failed(self, error: ApiError, failures: int, delay: float) -> None:
        """Report the last of so many failures in a row; the next run starts after ``delay`` seconds."""
        ...


class PeriodicReconciler:
    """Runs one task until it is canceled."""

    def __init__(
        self,
        task: PeriodicTask,
        config: ResyncConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        """``clock`` is monotonic seconds; ``random`` draws from [0, 1)."""
        self._task = task
        self._config = config
        self._backoff = BackoffPolicy(initial=0.8 * config.retry, cap=0.8 * config.max_retry, jitter=0.5)
        self._clock = clock
        self._random = random
        self._wake = asyncio.Event()
        self._urgent = asyncio.Event()
        self._failures = 0
        self._retry_after = 0.0
        """Seconds for which the server asked to be left alone, from the end of the last run."""

    @property
    def synced(self) -> bool:
        """True: nothing is watched."""
        return True

    @property
    def last_error(self) -> ApiError | None:
        """None: failures are reported by ``PeriodicTask.failed``; they say nothing of the connection."""
        return None

    def changed(self, _keys: frozenset[str] | None = None) -> None:
        """Run again soon; what changed does not matter."""
        self._wake.set()

    def hurry(self) -> None:
        """Run again after ``urgent`` seconds, whatever the last run cost, and though it failed."""
        self._urgent.set()
        self._wake.set()

    async def run(self) -> None:
        """Run until canceled."""
        await asyncio.sleep(self._config.spread * self._random())
        while True:
            self._wake.clear()
            self._urgent.clear()
            started = self._clock()
            delay = await self._attempt()
            if self._failures:
                await self._rest(delay)
                continue
            ended = self._clock()
            spent = ended - started
            for_changes = max(self._config.min_interval, self._config.share_of_changes * spent)
            await self._rest(max(min(for_changes, delay), self._config.share * spent))
            await _wait(self._wake, max(0.0, delay - (self._clock() - ended)))

    async def _rest(self, seconds: float) -> None:
        """Wait so long, or for ``urgent`` seconds if it is urgent."""
        first = max(min(self._config.urgent, seconds), self._retry_after)
        await asyncio.sleep(first)
        await _wait(self._urgent, max(0.0, seconds - first))

    async def _attempt(self) -> float:
        try:
            again_after = await self._task.reconcile()
        except ApiError as error:
            self._failures += 1
            self._retry_after = error.retry_after or 0.0
            delay = self._backoff.delay(self._failures, self._random, error)
            await self._task.failed(error, self._failures, delay)
            return delay
        self._failures, self._retry_after = 0, 0.0
        return (self._config.period if again_after is None else again_after) * (0.8 + 0.4 * self._random())


async def call_every(period: float, action: Callable[[], None]) -> None:
    """Call ``action``, which does no I/O, now and every so many seconds until canceled."""
    while True:
        action()
        await asyncio.sleep(period)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, at most so long.

    Not by ``asyncio.wait_for``, which in Python 3.11 loses a cancellation that comes with the event.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
