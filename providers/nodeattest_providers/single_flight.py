"""One call for everybody who asks the same at the same time.

Promises: a caller that gives up or is cancelled takes nothing from the others; an answer is not kept once it is out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """Calls under way, by what they ask."""

    def __init__(self) -> None:
        self._tasks: dict[K, asyncio.Task[V]] = {}

    async def share(self, key: K, call: Callable[[], Awaitable[V]]) -> V:
        """Join the call under way for this key, or begin one."""
        task = self._tasks.get(key)
        if task is None:
            task = asyncio.ensure_future(_run(call))
            self._tasks[key] = task
            task.add_done_callback(lambda done: self._finished(key, done))
        return await asyncio.shield(task)

    def _finished(self, key: K, task: asyncio.Task[V]) -> None:
        self._tasks.pop(key, None)
        if not task.cancelled():
            task.exception()  # retrieved: the callers that wait have it, and without them nobody needs it

    async def cancel(self) -> None:
        """End the calls under way."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run(call: Callable[[], Awaitable[V]]) -> V:
    return await call()
