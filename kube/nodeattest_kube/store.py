"""The objects of one collection in memory, with secondary indexes.

Promises: an object and its index entries change together; the same version twice is one change; an object that was
``settled`` takes little memory, and is made anew for who reads it. Leaves to others: where the objects come from, and
concurrency (everything here runs between two awaits).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from nodeattest_kube.jsontypes import JsonObject
from nodeattest_kube.object_packer import ObjectPacker

__all__ = ["IndexFunction", "Kept", "Store", "Version"]

Version = tuple[str, str]
"""UID and resourceVersion, taken before any transform."""
IndexFunction = Callable[[JsonObject], Iterable[str]]
"""Names the values under which an object is found; called once a version, so it must depend on the object alone."""

Kept = JsonObject | bytes
"""An object as it is, or packed: its UID and resourceVersion, a line each, and what the packer made of it."""

_NOTHING: Final[dict[str, None]] = {}


class Store:
    """Objects by key, and keys by the values of each index."""

    def __init__(self) -> None:
        self._objects: dict[str, tuple[Version, JsonObject] | bytes] = {}
        self._packer = ObjectPacker()
        self._functions: dict[str, IndexFunction] = {}
        self._indexes: dict[str, dict[str, dict[str, None]]] = {}
        self._values: dict[str, tuple[tuple[str, str], ...]] = {}
        """By key, where indexes have it."""
        self._alone: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {}
        """The same of keys that are in one place, as most are: one for all that are in it."""

    def index(self, name: str, function: IndexFunction) -> None:
        """Add an index over present and future objects."""
        if name in self._functions:
            raise ValueError(f"the index {name!r} exists")
        self._functions[name] = function
        self._indexes[name] = {}
        for key, stored in self._objects.items():
            self._enter(key, self._read(stored), name)

    def get(self, key: str) -> JsonObject | None:
        """Return the object of a key."""
        stored = self._objects.get(key)
        return None if stored is None else self._read(stored)

    def kept(self, key: str) -> Kept | None:
        """Return the object of a key in the form that it is kept in."""
        stored = self._objects.get(key)
        return stored if isinstance(stored, bytes) or stored is None else stored[1]

    def has(self, key: str, version: Version) -> bool:
        """Whether exactly this version of the object is stored; without a resourceVersion nobody can tell."""
        stored = self._objects.get(key)
        if isinstance(stored, bytes):
            line = _line(version)
            return version[1] != "" and line is not None and stored.startswith(line)
        return version[1] != "" and stored is not None and stored[0] == version

    def version(self, key: str) -> Version:
        """Return the version of an object that is stored."""
        stored = self._objects[key]
        if isinstance(stored, bytes):
            uid, version, _packed = stored.split(b"\n", 2)
            return uid.decode(), version.decode()
        return stored[0]

    def values(self) -> list[JsonObject]:
        """Return all objects, as they are now."""
        return list(map(self._read, self._objects.values()))

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
                yield self._read(self._objects[key])

    def index_values(self, name: str) -> list[str]:
        """Return the values that an index has objects under."""
        return list(self._indexes[name])

    def put(self, key: str, version: Version, item: Kept) -> None:
        """Store a version of an object in place of any other."""
        self._leave(key)
        self._objects[key] = stored = item if isinstance(item, bytes) else (version, item)
        if self._functions:
            found = self._read(stored)
            for name in self._functions:
                self._enter(key, found, name)

    def settle(self, key: str, item: JsonObject, *, packed: bool) -> None:
        """Store what stays of an object that is stored; indexes find it as before."""
        version = self.version(key)
        line = _line(version) if packed else None
        made = self._packer.pack(item) if line is not None else item
        self._objects[key] = line + made if line is not None and isinstance(made, bytes) else (version, item)

    def remove(self, key: str) -> bool:
        """Forget an object; False when it was not here."""
        self._leave(key)
        return self._objects.pop(key, None) is not None

    def __len__(self) -> int:
        return len(self._objects)

    def _read(self, stored: tuple[Version, JsonObject] | bytes) -> JsonObject:
        return self._packer.unpack(stored.split(b"\n", 2)[2]) if isinstance(stored, bytes) else stored[1]

    def _enter(self, key: str, item: JsonObject, name: str) -> None:
        for value in self._functions[name](item):
            self._indexes[name].setdefault(value, {})[key] = None
            place, others = (name, value), self._values.get(key, ())
            self._values[key] = (*others, place) if others else self._alone.setdefault(place, (place,))

    def _leave(self, key: str) -> None:
        for place in self._values.pop(key, ()):
            name, value = place
            keys = self._indexes[name].get(value)
            if keys is not None:
                keys.pop(key, None)
                if not keys:
                    del self._indexes[name][value]
                    self._alone.pop(place, None)


def _line(version: Version) -> bytes | None:
    """Write a version before what is packed; None where it is not as Kubernetes writes it."""
    uid, number = version
    line = f"{uid}\n{number}\n"
    return line.encode() if line.isascii() and "\n" not in uid + number else None
