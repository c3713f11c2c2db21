"""Look-ups of host names in threads of their own, so that one tenant's resolver delays nobody else.

Promises: a tenant has a bounded number of look-ups under way, and one that hangs counts until it really ends, also when
nobody waits for it any more: ``getaddrinfo`` cannot be cancelled. Leaves to others: time limits (``client``).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

from nodeattest_kube.transport import AddressInfos, Resolver

THREADS: Final = 32

PER_TENANT: Final = 2
"""Look-ups at once; the clusters of a namespace wait for each other."""


class Lookups:
    """The look-ups of all tenants; close it when no client uses it any more."""

    def __init__(self, getaddrinfo: Callable[..., AddressInfos] = socket.getaddrinfo) -> None:
        """``getaddrinfo`` blocks; it is called in a thread."""
        self._getaddrinfo = getaddrinfo
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="lookup")
        self._free: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """Of the tenants that look something up now."""

    def of(self, tenant: str) -> Resolver:
        """Return the resolver of a tenant's clients."""
        return partial(self.find, tenant)

    async def find(self, tenant: str, host: str, port: int) -> AddressInfos:
        """Look a name up; raises OSError."""
        free, loop = self._free.setdefault(tenant, asyncio.Semaphore(PER_TENANT)), asyncio.get_running_loop()
        await free.acquire()
        try:
            call = self._threads.submit(
                self._getaddrinfo, host, port, socket.AF_UNSPEC, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG
            )
        except RuntimeError:  # closed
            free.release()
            raise OSError("no more look-ups") from None

        def ended(_call: Future[AddressInfos]) -> None:
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(free.release)

        call.add_done_callback(ended)
        return await asyncio.wrap_future(call)

    def close(self) -> None:
        """End it; look-ups under way are not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)
