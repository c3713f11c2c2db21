"""Look-ups of host names in threads of their own, so that one tenant's resolver delays nobody else.

Promises: a tenant has a bounded number of look-ups under way, and one that hangs counts until it really ends, also when
nobody waits for it any more: ``getaddrinfo`` cannot be cancelled. Leaves to others: time limits (``client``).
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from aiohttp.abc import AbstractResolver, ResolveResult

__all__ = ["PER_TENANT", "THREADS", "Lookups"]

THREADS: Final = 32
PER_TENANT: Final = 2
"""Look-ups at once; the clusters of a namespace wait for each other."""
_Found = Sequence[tuple[int, int, int, str, Any]]
"""What ``getaddrinfo`` returns: family, type, protocol, canonical name, address."""


class Lookups:
    """The look-ups of all tenants; close it when no client uses it any more."""

    def __init__(self, getaddrinfo: Callable[..., _Found] = socket.getaddrinfo) -> None:
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

    def of(self, tenant: str) -> AbstractResolver:
        """Return the resolver of a tenant's clients."""
        return _Resolver(self, tenant)

    async def find(self, tenant: str, host: str, port: int, family: int) -> _Found:
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
                self._getaddrinfo, host, port, family, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG
            )
        except RuntimeError:  # closed
            self._end(tenant)
            raise OSError("no more look-ups") from None

        def ended(_call: Future[_Found]) -> None:
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


class _Resolver(AbstractResolver):
    def __init__(self, lookups: Lookups, tenant: str) -> None:
        self._lookups = lookups
        self._tenant = tenant

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Look a name up for aiohttp; raises OSError."""
        found = await self._lookups.find(self._tenant, host, port, family)
        numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return [
            ResolveResult(hostname=host, host=address[0], port=address[1], family=each, proto=protocol, flags=numeric)
            for each, _type, protocol, _name, address in found
            if isinstance(address[0], str)  # a Python without IPv6 gives numbers there
        ]

    async def close(self) -> None:
        """Do nothing: the threads are everybody's."""
