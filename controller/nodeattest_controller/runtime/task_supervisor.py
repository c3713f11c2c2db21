"""What runs for one connection to a cluster: tasks that last, and one word when a bug ends one of them.

Promises: a task that ends of an exception is told of at once, with the exception, and only once a connection; closing
ends all of them and raises nothing, whatever they died of: one cluster's trouble never ends the others' service.
Leaves to others: connecting anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence

__all__ = ["TaskSupervisor"]


class TaskSupervisor:
    """The tasks of one connection, started at once."""

    def __init__(
        self, work: Sequence[Coroutine[object, object, None]], *, died: Callable[[BaseException], None]
    ) -> None:
        """``died`` is told what ended the first task that did not end by itself or by ``close``."""
        self.died: BaseException | None = None
        self._tell = died
        self._tasks = [asyncio.create_task(each) for each in work]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    async def close(self) -> None:
        """End all tasks and wait for them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and self.died is None:
            self.died = error
            self._tell(error)
