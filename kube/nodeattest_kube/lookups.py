"""Look-ups of host names in threads of their own, so that one tenant's resolver delays nobody else.

A tenant has a bounded number of look-ups in progress. One that hangs counts until it ends, even if nobody waits for it
any more, because ``getaddrinfo`` cannot be canceled. Out of scope: time limits (``client``).
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final
from weakref import WeakValueDictionary

from aiohttp.abc import AbstractResolver, ResolveResult

AddressInfos = Sequence[tuple[int, int, int, str, Any]]
"""What ``getaddrinfo`` returns: family, type, protocol, canonical name, address."""

_THREADS: Final = 32
PER_TENANT: Final = 2
"""Look-ups at once; the clusters of a namespace wait for each other."""
_MAX_ADDRESSES: Final = 4
"""Addresses of one family that a name may lead to. aiohttp tries all of them, and a name may have thousands."""


class Lookups:
    """The look-ups of all tenants; close it when no client uses it any more."""

    def __init__(self, getaddrinfo: Callable[..., AddressInfos] = socket.getaddrinfo) -> None:
        """``getaddrinfo`` blocks; it is called in a thread."""
        self._getaddrinfo = getaddrinfo
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="lookup")
        self._free: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """By tenant with a look-up in progress."""

    def of(self, tenant: str) -> AbstractResolver:
        """Return the resolver of a tenant's clients."""
        return _TenantResolver(self, tenant)

    async def find(self, tenant: str, host: str, port: int) -> AddressInfos:
        """Look up a name; raises OSError."""
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
        """Stop; look-ups in progress are not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class _TenantResolver(AbstractResolver):
    def __init__(self, lookups: Lookups, tenant: str) -> None:
        self._lookups, self._tenant = lookups, tenant

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        del family
        count = Counter[int]()
        results: list[ResolveResult] = []
        for found, _kind, protocol, _name, address in await self._lookups.find(self._tenant, host, port):
            count[found] += 1
            if count[found] <= _MAX_ADDRESSES:
                results.append(
                    ResolveResult(
                        hostname=host,
                        host=address[0],
                        port=port,
                        family=found,
                        proto=protocol,
                        flags=socket.AI_NUMERICHOST,
                    )
                )
        return results

    async def close(self) -> None:
        """Own nothing."""
