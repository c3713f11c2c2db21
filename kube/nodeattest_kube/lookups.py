"""Look-ups of host names in threads of their own, so that one tenant's resolver delays nobody else.

Promises: a tenant has a bounded number of look-ups under way, and one that hangs counts until it really ends, also when
nobody waits for it any more: ``getaddrinfo`` cannot be cancelled. Leaves to others: time limits (``client``).
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final

from nodeattest_kube.sockets import AddressInfos, Resolver

__all__ = ["PER_TENANT", "THREADS", "Lookups"]

THREADS: Final = 32
PER_TENANT: Final = 2
"""Look-ups at once; the clusters of a namespace wait for each other."""


class Lookups:
    """The look-ups of all tenants; close it when no client uses it any more."""

    def __init__(self, getaddrinfo: Callable[..., AddressInfos] = socket.getaddrinfo) -> None:
        """``getaddrinfo`` blocks; it is called in a thread."""
        self._getaddrinfo = getaddrinfo
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="lookup")
        self._free: dict[str, asyncio.Semaphore] = {}
        """Of the tenants that look something up now."""
        self._users: Counter[str] = Counter()
        """Look-ups under way or waiting, by tenant."""

    @property
    def tenants(self) -> int:
        """How many tenants look something up now: of the others nothing is kept."""
        return len(self._users)

    def of(self, tenant: str) -> Resolver:
        """Return the resolver of a tenant's clients."""
        return partial(self.find, tenant)

    async def find(self, tenant: str, host: str, port: int) -> AddressInfos:
        """Look a name up; raises OSError."""
        free, loop = self._free.setdefault(tenant, asyncio.Semaphore(PER_TENANT)), asyncio.get_running_loop()
        self._users[tenant] += 1
        try:
            await free.acquire()
        except asyncio.CancelledError:
            self._forget(tenant)
            raise
        try:
            call = self._threads.submit(
                self._getaddrinfo, host, port, socket.AF_UNSPEC, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG
            )
        except RuntimeError:  # closed
            self._end(tenant)
            raise OSError("no more look-ups") from None

        def ended(_call: Future[AddressInfos]) -> None:
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(self._end, tenant)

        call.add_done_callback(ended)
        return await asyncio.wrap_future(call)

    def _end(self, tenant: str) -> None:
        self._free[tenant].release()
        self._forget(tenant)

    def _forget(self, tenant: str) -> None:
        """Count one look-up less, and keep nothing of a tenant that has none."""
        self._users[tenant] -= 1
        if not self._users[tenant]:
            del self._users[tenant], self._free[tenant]

    def close(self) -> None:
        """End it; look-ups under way are not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)
