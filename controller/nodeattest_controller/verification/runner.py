"""Running a provider's verification: one at a time for a machine and requester, each with a time limit.

A verification that gives no verdict in time is ``Unavailable``, its worker is free, and no other of the same key is
begun until it has ended, even where it does not heed its cancellation. So a platform that fails for one machine delays
no other; with the requester in the key, nobody who floods with another's machine keeps that one from its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, TypeVar

from nodeattest_providers.errors import Reason, Unavailable

_T = TypeVar("_T")

_MAX_WAIT: Final = 1.0
"""Seconds for which a request holds a worker while another of its key is verified: usually that takes 5 ms."""
_RETRY: Final = 10.0
"""Seconds."""


class VerificationRunner:
    """The verifications that are under way."""

    def __init__(self, time_limit: float) -> None:
        """``time_limit``: seconds for one verification."""
        self._time_limit = time_limit
        self._under_way: dict[Hashable, asyncio.Task[object]] = {}

    async def run(self, key: Hashable, verify: Callable[[], Awaitable[_T]]) -> _T:
        """Verify, or ask a provider for anything else of a machine; raises what ``verify`` raises, or Unavailable."""
        await self._wait_for_earlier(key)
        task = asyncio.create_task(_begin(verify))
        self._under_way[key] = task
        task.add_done_callback(lambda ended: self._ended(key, ended))
        try:
            await asyncio.wait({task}, timeout=self._time_limit)
        finally:
            task.cancel()  # does nothing to one that has ended
        if not task.done() or task.cancelled():
            raise _unavailable(f"the provider gave no verdict within {self._time_limit:g} s")
        return task.result()

    async def _wait_for_earlier(self, key: Hashable) -> None:
        try:
            async with asyncio.timeout(_MAX_WAIT):
                while (earlier := self._under_way.get(key)) is not None and not earlier.done():
                    await asyncio.wait({earlier})
        except TimeoutError:
            raise _unavailable("an earlier verification of this machine has not ended") from None

    def _ended(self, key: Hashable, task: asyncio.Task[_T]) -> None:
        if self._under_way.get(key) is task:
            del self._under_way[key]
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not complain of one that nobody waited for

    def __len__(self) -> int:
        return len(self._under_way)


async def _begin(verify: Callable[[], Awaitable[_T]]) -> _T:
    return await verify()


def _unavailable(detail: str) -> Unavailable:
    return Unavailable(
        Reason.PLATFORM_UNAVAILABLE,
        detail,
        remedy="see to the platform that the provider asks; other machines are not delayed",
        retry_after=_RETRY,
    )
