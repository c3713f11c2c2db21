"""A queue of keys that are to be reconciled, and the fair queue below it: keys in nested groups.

One worker has a key at a time. A key that is added meanwhile is handed out once more afterwards. On every level groups
are served round robin. A group never has more keys in flight than its level's limit, so a group whose work hangs delays
no other. Every operation takes constant time, and memory grows with distinct keys only.
Source: client-go util/workqueue (queue.go, delaying_queue.go, default_rate_limiters.go); deficit round robin with equal
quanta, nested (Shreedhar and Varghese, 1995).
"""

from __future__ import annotations

import asyncio
import logging
import random as random_module
import sys
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterator
from typing import Final, Generic, TypeVar

from nodeattest_kube.periodic import REQUEUE, BackoffPolicy

K = TypeVar("K", bound=Hashable)

GroupPath = tuple[Hashable, ...]
"""A key's groups, outermost first."""
Timer = Callable[[float, Callable[[], None]], Callable[[], None]]
"""Calls back once after so many seconds; returns what cancels it."""
_COUNTED_KEYS: Final = 100_000
"""Keys whose failures are counted; beyond it the oldest count is forgotten, so that lost keys take no memory."""

_log = logging.getLogger(__name__)


class _Group(Generic[K]):
    """A queue of keys, or inner groups served round robin."""

    __slots__ = ("in_flight", "inner", "limit", "queue", "rotation")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_flight = 0
        self.queue: OrderedDict[K, float] = OrderedDict()
        """Keys with the time since which each waits; of an innermost group only."""
        self.inner: dict[Hashable, _Group[K]] = {}
        self.rotation: OrderedDict[Hashable, None] = OrderedDict()
        """Inner groups with a ready key and below their limit, the next first."""

    @property
    def ready(self) -> bool:
        """Whether a key can be taken."""
        return self.in_flight < self.limit and bool(self.queue or self.rotation)

    def update_rotation(self, name: Hashable) -> None:
        """Add an inner group to the rotation, or remove it."""
        group = self.inner[name]
        if group.ready:
            self.rotation.setdefault(name, None)
        else:
            self.rotation.pop(name, None)
        if not (group.queue or group.inner or group.in_flight):
            del self.inner[name]

    def queues(self) -> Iterator[OrderedDict[K, float]]:
        """Iterate over all non-empty queues of keys."""
        if self.queue:
            yield self.queue
        for group in self.inner.values():
            yield from group.queues()


class FairQueue(Generic[K]):
    """Keys that wait or are in flight, by group."""

    def __init__(self, groups: Callable[[K], GroupPath], limits: tuple[int, ...]) -> None:
        """Take ``groups``, which returns one group for each of ``limits``; it is called only when a key is added."""
        self._groups = groups
        self._limits = limits
        self._all: _Group[K] = _Group(sys.maxsize)
        self._waiting: dict[K, GroupPath] = {}
        self.in_flight: dict[K, tuple[GroupPath, float]] = {}
        """Keys that were taken and are not done, and since when each had waited."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, key: K) -> bool:
        return key in self._waiting

    def add(self, key: K, since: float) -> None:
        if key in self._waiting:
            return
        path = self._groups(key)
        self._waiting[key] = path
        way = [self._all]
        for name, limit in zip(path, self._limits, strict=True):
            group = way[-1].inner.get(name)
            if group is None:
                group = way[-1].inner[name] = _Group(limit)
            way.append(group)
        way[-1].queue[key] = since
        _update_rotations(way, path)

    def take(self) -> K | None:
        """Return the next key; None if every group that has one is at its limit."""
        if not self._all.ready:
            return None
        way = [self._all]
        while way[-1].rotation:
            name, _ = way[-1].rotation.popitem(last=False)
            way.append(way[-1].inner[name])
        key, since = way[-1].queue.popitem(last=False)
        path = self._waiting.pop(key)
        self.in_flight[key] = path, since
        for group in way:
            group.in_flight += 1
        _update_rotations(way, path)
        return key

    def done(self, key: K) -> None:
        """Mark a key as done, which frees its place in its groups' limits."""
        path, _since = self.in_flight.pop(key)
        way = [self._all]
        for name in path:
            way.append(way[-1].inner[name])
        for group in way:
            group.in_flight -= 1
        _update_rotations(way, path)

    def oldest(self) -> float | None:
        return min((next(iter(queue.values())) for queue in self._all.queues()), default=None)


def _update_rotations(way: list[_Group[K]], path: GroupPath) -> None:
    """Update every level's rotation, innermost first."""
    for group, name in zip(reversed(way[:-1]), reversed(path), strict=True):
        group.update_rotation(name)


class QueueMetrics:
    """Counts what happens to a queue's keys (client-go's ``MetricsProvider``); several queues may share one."""

    def added(self) -> None:
        """Count a key that begins to wait for a worker."""

    def retried(self) -> None:
        """Count a key that was added with back-off."""

    def taken(self, waited: float) -> None:
        """Count a key that a worker has now, after so many seconds."""

    def done(self, worked: float) -> None:
        """Count a key that a worker had for so many seconds."""

    def dropped(self, count: int) -> None:
        """Count keys that wait no more, since the queue is shut down."""


def loop_timer(delay: float, callback: Callable[[], None]) -> Callable[[], None]:
    return asyncio.get_running_loop().call_later(delay, callback).cancel


class WorkQueue(Generic[K]):
    """Keys to be worked on, in the order in which they came; for one event loop."""

    def __init__(
        self,
        *,
        backoff: BackoffPolicy = REQUEUE,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random_module.random,
        timer: Timer = loop_timer,
        groups: Callable[[K], GroupPath] = lambda _key: (),
        limits: tuple[int, ...] = (),
        metrics: QueueMetrics | None = None,
    ) -> None:
        """Take ``groups``, which names a key's groups, outermost first; by default there are none.

        ``limits``: for each level, how many keys of one group are worked on at the same time. As many groups may hang
        without delay to others as leave a worker free.
        """
        self._backoff, self._clock, self._random, self._timer = backoff, clock, random, timer
        self._metrics = metrics or QueueMetrics()
        self._ready: FairQueue[K] = FairQueue(groups, limits)
        self._again: set[K] = set()
        """Keys added while a worker has them."""
        self._later: dict[K, tuple[float, Callable[[], None]]] = {}
        """When each key is due, and what cancels its timer."""
        self._failures: OrderedDict[K, int] = OrderedDict()
        self._awake = asyncio.Event()
        self._stopped = False

    def add(self, key: K) -> None:
        """Have a key worked on, once, as soon as a worker is free."""
        if self._stopped or key in self._ready:
            return
        if key in self._ready.in_flight:
            self._again.add(key)
            return
        self._ready.add(key, self._clock())
        self._metrics.added()
        self._awake.set()

    def add_after(self, key: K, delay: float) -> None:
        """Have a key added after ``delay`` seconds; of several wishes the earliest counts."""
        if self._stopped:
            return
        if delay <= 0:
            self.add(key)
            return
        due = self._clock() + delay
        planned = self._later.get(key)
        if planned is not None:
            if planned[0] <= due:
                return
            planned[1]()
        self._later[key] = due, self._timer(delay, lambda: self._due(key))

    def retry(self, key: K, error: Exception | None) -> float:
        """Add a key with its own back-off, and no earlier than ``error`` asks for; return the delay in seconds."""
        failures = self._failures.pop(key, 0) + 1
        self._failures[key] = failures
        if len(self._failures) > _COUNTED_KEYS:
            self._failures.popitem(last=False)
        self._metrics.retried()
        delay = self._backoff.delay(failures, self._random, error)
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """Reset the key's back-off."""
        self._failures.pop(key, None)

    def drop(self, key: K) -> None:
        """Forget a key, and what ``add_after`` and ``retry`` have planned for it: nothing is left to do."""
        self.forget(key)
        planned = self._later.pop(key, None)
        if planned is not None:
            planned[1]()

    def failures(self, key: K) -> int:
        return self._failures.get(key, 0)

    async def run(self, worker: Callable[[K], Awaitable[None]], workers: int) -> None:
        """Work with so many workers until ``shut_down``, then finish what is being worked on; or until canceled.

        What waits when it is canceled waits for the next ``run``.
        """
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._work(worker))

    def shut_down(self) -> None:
        """Hand out no more keys; those that wait are dropped, since the next start lists everything again."""
        if self._stopped:
            return
        self._stopped = True
        for _due, cancel in self._later.values():
            cancel()
        self._later.clear()
        self._metrics.dropped(len(self._ready))
        self._awake.set()

    @property
    def depth(self) -> int:
        """How many keys wait for a worker."""
        return 0 if self._stopped else len(self._ready)

    @property
    def in_flight(self) -> int:
        """How many keys are being worked on."""
        return len(self._ready.in_flight)

    @property
    def delayed(self) -> int:
        """How many keys wait for their time."""
        return len(self._later)

    def pending(self, seconds: float) -> int:
        """Return how many keys are worked on, wait for a worker, or become due within so many seconds."""
        due = self._clock() + seconds
        return self.depth + self.in_flight + sum(at <= due for at, _timer in self._later.values())

    @property
    def oldest(self) -> float:
        """Seconds that the first key has been waiting for a worker; 0 when none waits."""
        since = self._ready.oldest()
        return 0.0 if since is None else self._clock() - since

    def _due(self, key: K) -> None:
        self._later.pop(key, None)
        self.add(key)

    async def _work(self, worker: Callable[[K], Awaitable[None]]) -> None:
        while not self._stopped:
            key = self._ready.take()
            if key is None:
                self._awake.clear()
                await self._awake.wait()
                continue
            await self._work_on(key, worker)

    async def _work_on(self, key: K, worker: Callable[[K], Awaitable[None]]) -> None:
        """Let the worker have one key; this is the edge at which bugs are caught."""
        start = self._clock()
        self._metrics.taken(start - self._ready.in_flight[key][1])
        try:
            await worker(key)
        except Exception as error:  # noqa: BLE001 - one object's bug must not stop the work on all others
            _log.error("the worker failed on %s", key, exc_info=error)
            self.retry(key, error)
        finally:
            self._metrics.done(self._clock() - start)
            self._ready.done(key)
            if key in self._again:
                self._again.discard(key)
                self.add(key)
