"""Requests of one user at once: a limit, and a short queue behind it.

Promises: each user has at most ``limit`` slots, and as many requests that wait for one, in turn, for ``_SECONDS``. So a
page that loads more things at once than the limit is served, and a user's slow requests leave room for others.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from nodeattest_identity.proxy.wait_queue import WaitQueue

__all__ = ["UserBusyError", "UserSlots"]

_SECONDS: Final = 5.0
"""That a request waits at most."""


class UserBusyError(Exception):
    """A user has too many requests."""


@dataclass(slots=True)
class _User:
    held: int = 0
    waiters: WaitQueue = field(default_factory=WaitQueue)


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
        try:
            await user.waiters.wait(self._seconds, pass_on=lambda: self._release(name, user))
        except TimeoutError:
            raise UserBusyError from None

    def _release(self, name: Hashable, user: _User) -> None:
        if user.waiters.serve():
            return
        user.held -= 1
        if not user.held:
            del self._users[name]
