"""Requests of one user at once: a limit, and a short queue behind it.

Promises: each user has at most ``limit`` slots, and as many requests that wait for one, in turn, for ``_SECONDS``. So a
page that loads more things at once than the limit is served, and a user's slow requests leave room for others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

__all__ = ["UserBusyError", "UserSlots"]

_SECONDS: Final = 5.0
"""That a request waits at most."""


class UserBusyError(Exception):
    """A user has too many requests."""


@dataclass(slots=True)
class _User:
    held: int = 0
    waiters: deque[asyncio.Future[None]] = field(default_factory=deque[asyncio.Future[None]])


class UserSlots:
    """Slots of each user."""

    def __init__(self, limit: int, *, seconds: float = _SECONDS) -> None:
        self._limit = limit
        self._seconds = seconds
        self._users: dict[Hashable, _User] = {}

    @property
    def held(self) -> int:
        """Number of slots in use."""
        return sum(user.held for user in self._users.values())

    @asynccontextmanager
    async def hold(self, name: Hashable) -> AsyncGenerator[None]:
        """Hold a slot inside the context; raises ``UserBusyError``."""
        user = self._users.setdefault(name, _User())
        if user.held < self._limit:
            user.held += 1
        elif len(user.waiters) < self._limit:
            await self._wait(name, user)
        else:
            raise UserBusyError
        try:
            yield
        finally:
            self._release(name, user)

    async def _wait(self, name: Hashable, user: _User) -> None:
        """Wait for a slot, which its holder hands over."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        user.waiters.append(waiter)
        try:
            async with asyncio.timeout(self._seconds):
                await waiter
        except BaseException as error:  # a cancelled waiter leaves the queue, too
            if waiter in user.waiters:
                user.waiters.remove(waiter)
            elif not waiter.cancelled():
                self._release(name, user)  # it was ours in the moment in which we gave up
            if isinstance(error, TimeoutError):
                raise UserBusyError from None
            raise

    def _release(self, name: Hashable, user: _User) -> None:
        while user.waiters:
            waiter = user.waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        user.held -= 1
        if not user.held:
            del self._users[name]
