"""Long work in one event loop, in slices: other tasks run between two of them.

Look-ups of host names in threads of their own, so that one tenant's resolver delays nobody else.

Promises: a tenant has a bounded number of look-ups under way, and one that hangs counts until it really ends, also when
nobody waits for it any more: ``getaddrinfo`` cannot be cancelled. Leaves to others: time limits (``client``).

The objects of one collection in memory, with secondary indexes.

An object and its index entries change together; the same version twice is one change.
Out of scope: where the objects come from, and concurrency (everything here runs between two awaits).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from nodeattest_kube.sockets import AddressInfos, Resolver
from nodeattest_parsing.values import JsonObject

T = TypeVar("T")

BATCH: Final = 200
"""Things that are worked on before other tasks may run: some 20 µs each, so 4 ms."""


async def _let_others_run() -> None:
    await asyncio.sleep(0)


async def in_batches(
    things: Iterable[T], size: int = BATCH, *, pause: Callable[[], Awaitable[None]] = _let_others_run
) -> AsyncGenerator[T]:
    """Yield every thing, and let other tasks run before each batch, by ``pause``."""
    for number, thing in enumerate(things):
        if number % size == 0:
            await pause()
        yield thing


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


Version = tuple[str, str]
"""UID and resourceVersion, taken before any transform."""
IndexFunction = Callable[[JsonObject], Iterable[str]]
"""Names the values under which an object is found; called once a version, so it must depend on the object alone."""

_NOTHING: Final[dict[str, None]] = {}


class Store:
    """Objects by key, and keys by the values of each index."""

    def __init__(self) -> None:
        self._objects: dict[str, tuple[Version, JsonObject]] = {}
        self._functions: dict[str, IndexFunction] = {}
        self._indexes: dict[str, dict[str, dict[str, None]]] = {}
        self._values: dict[str, list[tuple[str, str]]] = {}
        """By key: the index and value of each place where indexes have it."""

    def index(self, name: str, function: IndexFunction) -> None:
        """Add an index over present and future objects."""
        if name in self._functions:
            raise ValueError(f"the index {name!r} exists")
        self._functions[name] = function
        self._indexes[name] = {}
        for key, (_version, item) in self._objects.items():
            self._enter(key, item, name)

    def get(self, key: str) -> JsonObject | None:
        """Return the object of a key."""
        stored = self._objects.get(key)
        return None if stored is None else stored[1]

    def has(self, key: str, version: Version) -> bool:
        """Whether exactly this version of the object is stored; without a resourceVersion nobody can tell."""
        stored = self._objects.get(key)
        return version[1] != "" and stored is not None and stored[0] == version

    def version(self, key: str) -> Version:
        """Return the version of an object that is stored."""
        return self._objects[key][0]

    def values(self) -> list[JsonObject]:
        """Return all objects, as they are now."""
        return [item for _version, item in self._objects.values()]

    def keys(self) -> list[str]:
        """Return all keys, as they are now."""
        return list(self._objects)

    def by_index(self, name: str, value: str) -> list[JsonObject]:
        """Return the objects that an index has under a value."""
        return list(self.each(name, value))

    def each(self, name: str, value: str) -> Iterator[JsonObject]:
        """Yield the same one by one, as each is then: what is there when the first is asked for, and still is."""
        for key in list(self._indexes[name].get(value, _NOTHING)):
            if key in self._indexes[name].get(value, _NOTHING):
                yield self._objects[key][1]

    def put(self, key: str, version: Version, item: JsonObject) -> None:
        """Store a version of an object in place of any other."""
        self._leave(key)
        self._objects[key] = version, item
        for name in self._functions:
            self._enter(key, item, name)

    def remove(self, key: str) -> bool:
        """Forget an object; False when it was not here."""
        self._leave(key)
        return self._objects.pop(key, None) is not None

    def __len__(self) -> int:
        return len(self._objects)

    def _enter(self, key: str, item: JsonObject, name: str) -> None:
        for value in self._functions[name](item):
            self._indexes[name].setdefault(value, {})[key] = None
            self._values.setdefault(key, []).append((name, value))

    def _leave(self, key: str) -> None:
        for name, value in self._values.pop(key, ()):
            keys = self._indexes[name].get(value)
            if keys is not None:
                keys.pop(key, None)
                if not keys:
                    del self._indexes[name][value]
