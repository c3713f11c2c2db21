"""The objects of one collection in memory, with secondary indexes.

An object and its index entries change together; the same version twice is one change.
Out of scope: where the objects come from, and concurrency (everything here runs between two awaits).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from nodeattest_parsing.values import JsonObject

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
