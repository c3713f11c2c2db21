"""The objects of one collection in memory, with secondary indexes and a memory budget.

One object gets at most a small part of the bytes that are left, so large objects leave room for small ones. If
namespaces are of different tenants, each has at most as much as it leaves to the others: one alone gets half of all.
Source: dynamic thresholds for shared buffers (Choudhury and Hahne, 1998).
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

from nodeattest_parsing.values import JsonObject, JsonValue

T = TypeVar("T")

BATCH: Final = 200
"""Things that are worked on before other tasks may run: some 20 µs each, so 4 ms."""
_PART: Final = 64
"""An object gets at most this part of the bytes that are left."""
_NOTHING: Final[dict[str, None]] = {}

Version = tuple[str, str]
"""UID and resourceVersion, taken before any transform."""
IndexFunction = Callable[[JsonObject], Iterable[str]]
"""Names the values under which an object is found; called once a version, so it must depend on the object alone."""


async def in_batches(
    things: Iterable[T], size: int = BATCH, *, pause: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)
) -> AsyncGenerator[T]:
    """Yield every thing, and let other tasks run before each batch, by ``pause``."""
    for number, thing in enumerate(things):
        if number % size == 0:
            await pause()
        yield thing


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
        stored = self._objects.get(key)
        return None if stored is None else stored[1]

    def has(self, key: str, version: Version) -> bool:
        """Whether exactly this version of the object is stored; without a resourceVersion nobody can tell."""
        stored = self._objects.get(key)
        return version[1] != "" and stored is not None and stored[0] == version

    def values(self) -> list[JsonObject]:
        return [item for _version, item in self._objects.values()]

    def keys(self) -> list[str]:
        return list(self._objects)

    def by_index(self, name: str, value: str) -> list[JsonObject]:
        return list(self.each(name, value))

    def each(self, name: str, value: str) -> Iterator[JsonObject]:
        """Yield the objects of an index one by one, as each is then; skip those that are gone by then."""
        for key in list(self._indexes[name].get(value, _NOTHING)):
            if key in self._indexes[name].get(value, _NOTHING):
                yield self._objects[key][1]

    def put(self, key: str, version: Version, item: JsonObject) -> None:
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


class MemoryPool:
    """The bytes that several collections share."""

    def __init__(self, total: int) -> None:
        self.total: Final = total
        self.used = 0
        self.used_by: Counter[str] = Counter()
        """Bytes by namespace."""

    def add(self, namespace: str, size: int) -> None:
        """Count bytes, fewer where ``size`` is negative."""
        self.used += size
        self.used_by[namespace] += size
        if not self.used_by[namespace]:
            del self.used_by[namespace]


class MemoryBudget:
    """The bytes of each object of a collection."""

    def __init__(self, memory: int | MemoryPool, *, objects: int | None = None, owner: str | None = None) -> None:
        """``objects``: how many there may be, if namespaces have shares; without it only bytes count.

        ``owner``: the namespace of all objects, that of their cluster; by default each key names its own.
        """
        self._pool = memory if isinstance(memory, MemoryPool) else MemoryPool(memory)
        self._objects, self._owner = objects, owner
        self._sizes: dict[str, int] = {}
        self._objects_of: Counter[str] = Counter()

    @property
    def left(self) -> int:
        return self._pool.total - self._pool.used

    def of(self, key: str) -> int:
        return self._sizes.get(key, 0)

    def take(self, key: str, size: int) -> bool:
        """Reserve bytes for a key in place of its former ones; False, and nothing changes, above its limit.

        What does not grow stays, whatever others have taken since.
        """
        before = self._sizes.get(key, -1)
        if size > before and not (size * _PART <= self.left + max(before, 0) and self._has_share(key, size)):
            return False
        self._set(key, size)
        return True

    def release(self, key: str) -> None:
        self._set(key, None)

    def keep(self, sizes: Mapping[str, int]) -> None:
        """Keep these keys, whose bytes were taken, and release all others."""
        for key in [*self._sizes]:
            self._set(key, sizes.get(key))

    def close(self) -> None:
        self.keep({})

    def _set(self, key: str, size: int | None) -> None:
        before = self._sizes.pop(key, None)
        if size is not None:
            self._sizes[key] = size
        namespace = self._namespace_of(key)
        self._pool.add(namespace, (size or 0) - (before or 0))
        self._objects_of[namespace] += (size is not None) - (before is not None)
        if not self._objects_of[namespace]:
            del self._objects_of[namespace]

    def _namespace_of(self, key: str) -> str:
        return key.partition("/")[0] if self._owner is None else self._owner

    def _has_share(self, key: str, size: int) -> bool:
        """Return whether a key's namespace, with this, leaves as much to the others."""
        if self._objects is None:
            return True
        namespace, more, new = self._namespace_of(key), size - self.of(key), key not in self._sizes
        bytes_fit = self._pool.used_by[namespace] + more <= self.left - more
        return bytes_fit and self._objects_of[namespace] + new <= self._objects - len(self._sizes) - new


def object_size(key: str, version: Version, item: JsonObject) -> int:
    """Return an object's bytes in memory with its key and version; values shared with others count fully."""
    size = sum(map(sys.getsizeof, (key, *version)))
    waiting: list[JsonValue] = [item]
    while waiting:
        value = waiting.pop()
        size += sys.getsizeof(value)
        if isinstance(value, dict):
            size += sum(map(sys.getsizeof, value))
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return size
