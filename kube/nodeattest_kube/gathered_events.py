"""Events about many objects of one group: the first at once, and those of the next seconds together in one.

Promises: a group costs at most two Events in its first ``PERIOD`` and one in each after that, however many of its
objects there are news of; one alone is about its object, several are about the group and name the first ones; what
waits is written at the end of the process.
Leaves to others: writing, and its rate limits (``events``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from nodeattest_kube.events import EventRecorder, ObjectRef

__all__ = ["GatheredEvents"]

PERIOD: Final = 10.0
"""Seconds."""
_NAMED: Final = 20
"""Objects that an Event about several names; the rest is counted."""


class CallLater(Protocol):
    """Calls a function when some seconds have passed, as an event loop does."""

    def __call__(self, delay: float, callback: Callable[[], None], /) -> object:
        """Plan the call."""
        ...


@dataclass(slots=True)
class _Waiting:
    """What waits of one group."""

    names: list[str] = field(default_factory=list[str])
    count: int = 0
    subject: ObjectRef | None = None
    """Of the first one."""
    message: str = ""
    """The same."""


class GatheredEvents:
    """``Normal`` Events with one reason."""

    def __init__(self, events: EventRecorder, reason: str, *, what: str, call_later: CallLater | None = None) -> None:
        """``call_later``: None for the loop's; ``what`` is true of the objects that are named after it."""
        self._events = events
        self._reason = reason
        self._what = what
        self._call_later = call_later
        self._waiting: dict[ObjectRef, _Waiting] = {}

    def record(self, group: ObjectRef, subject: ObjectRef, name: str, message: str) -> None:
        """Write an Event about ``subject`` now, or note it for the one about its group."""
        waiting = self._waiting.get(group)
        if waiting is None:
            self._events.record(subject, "Normal", self._reason, message)
            self._waiting[group] = _Waiting()
            self._plan(group)
            return
        if not waiting.count:
            waiting.subject, waiting.message = subject, message
        waiting.count += 1
        if len(waiting.names) < _NAMED:
            waiting.names.append(name)

    async def close(self) -> None:
        """Write what waits."""
        for group in list(self._waiting):
            self._write(group, self._waiting.pop(group))

    def _plan(self, group: ObjectRef) -> None:
        call_later = self._call_later or asyncio.get_running_loop().call_later
        call_later(PERIOD, lambda: self._period_ended(group))

    def _period_ended(self, group: ObjectRef) -> None:
        waiting = self._waiting.pop(group, None)
        if waiting is None or not waiting.count:
            return
        self._write(group, waiting)
        self._waiting[group] = _Waiting()
        self._plan(group)

    def _write(self, group: ObjectRef, waiting: _Waiting) -> None:
        if waiting.subject is None:
            return
        if waiting.count == 1:
            self._events.record(waiting.subject, "Normal", self._reason, waiting.message)
            return
        more = f" and {waiting.count - len(waiting.names)} more" if waiting.count > len(waiting.names) else ""
        message = f"{waiting.count} {self._what}: {', '.join(waiting.names)}{more}"
        self._events.record(group, "Normal", self._reason, message)
