"""Waiting in tests: the one place that polls, and that sleeps.

Promises: ``eventually`` blocks its thread, ``until`` lets this process's event loop run meanwhile, ``succeeds`` repeats
what is refused at first. Who waits for other processes reads every 0.02 s at first, and never less often than every
0.1 s: each read costs both sides the CPU that what is waited for needs. A deadline ends only a test that fails anyway,
so it is generous, and the message says what was seen last.
That something does not happen no wall time shows: count turns (``others_run``) or other work (polls, requests, a clock
that a test moves).
Leaves to others: waiting for an event or a future, which needs no polling.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from inspect import isawaitable
from typing import Any, Final, Self, TypeVar

from nodeattest_sandbox.client import ApiRefusal

MIN_INTERVAL: Final = 0.02
MAX_INTERVAL: Final = 0.1
"""Seconds between two reads of what another process does."""
SHARE: Final = 0.05
"""Part of the time that was waited so far, which the next pause takes between these two."""
TURN: Final = 0.005
"""Seconds that other tasks get between two reads, at least."""
TURNS: Final = 10
"""So many times as long as a read takes they get, too: one that asks a server blocks them, and costs it CPU."""
MAX_TURN: Final = 1.0
SECONDS: Final = 20.0
"""That something may take on a machine with nothing else to do."""
LOADED: Final = 6
"""A loaded machine gets so many times as long."""
T = TypeVar("T")


class _Deadline:
    """When to give up, and what to say then."""

    def __init__(
        self, what: str, seconds: float, state: Callable[[], object] | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what = what
        self._seconds = seconds
        self._state = state
        self._clock = clock
        self._start = clock()

    def passed(self) -> bool:
        return self._waited() > LOADED * self._seconds

    def pause(self) -> float:
        """Return the seconds until the next read of what another process does."""
        return min(MAX_INTERVAL, max(MIN_INTERVAL, SHARE * self._waited()))

    def failure(self, last: object) -> AssertionError:
        seen = last if self._state is None else self._state()
        return AssertionError(f"{self._what} did not happen within {LOADED * self._seconds:g} s; last seen: {seen!r}")

    def _waited(self) -> float:
        return self._clock() - self._start


def eventually(
    read: Callable[[], T | None],
    what: str = "it",
    *,
    seconds: float = SECONDS,
    state: Callable[[], object] | None = None,
) -> T:
    """Read until what is read is true, and return it; ``state`` tells for the message what there is instead."""
    deadline = _Deadline(what, seconds, state)
    while not (found := read()):
        if deadline.passed():
            raise deadline.failure(found)
        time.sleep(deadline.pause())
    return found


async def until(
    read: Callable[[], Any], what: str = "it", *, seconds: float = SECONDS, state: Callable[[], object] | None = None
) -> Any:
    """Do as ``eventually`` does, by the event loop's clock, and let other tasks run meanwhile."""
    clock = asyncio.get_running_loop().time
    deadline = _Deadline(what, seconds, state, clock)
    while True:
        began = clock()
        found = read()
        if isawaitable(found):
            found = await found
        if found:
            return found
        if deadline.passed():
            raise deadline.failure(found)
        await asyncio.sleep(max(TURN, min(MAX_TURN, TURNS * (clock() - began))))


async def others_run(turns: int = 50) -> None:
    """Let this event loop's other tasks and timers have so many turns, in which they would do what they must not do."""
    for _ in range(turns):
        await asyncio.sleep(0.001)


def succeeds(call: Callable[[], T], *, seconds: float = SECONDS) -> T:
    """Repeat a call until neither the API server refuses it nor an assertion in it fails; return its value."""
    deadline = _Deadline("a call that is not refused", seconds, None)
    while True:
        try:
            return call()
        except (ApiRefusal, AssertionError):
            if deadline.passed():
                raise
        time.sleep(deadline.pause())


class Turns:
    """Counts how often another task of this event loop had its turn, while the block runs."""

    def __init__(self) -> None:
        self.count = 0

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)
