"""Blocking libraries in threads, with an end.

Promises: a call that does not return in time is ``StoreUnavailableError``; its thread ends by the library's own
time limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from nodeattest_identity.publish.store import StoreUnavailableError

__all__ = ["CONNECT", "READ", "in_thread"]

T = TypeVar("T")

CONNECT: Final = 5
READ: Final = 10
"""Seconds that a library waits for a connection and for bytes."""
_TOTAL: Final = 60.0
"""Seconds of one call with the library's own retries."""


async def in_thread(name: str, call: Callable[[], T], *, total: float = _TOTAL) -> T:
    """Run a blocking call; ``name`` is the place, for the message."""
    try:
        async with asyncio.timeout(total):
            return await asyncio.to_thread(call)
    except TimeoutError:
        raise StoreUnavailableError(f"{name}: expected an answer within {total:.0f} s, got none") from None
