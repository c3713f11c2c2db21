"""The objects of one cluster, in memory, with versions, history and watchers.

Promises: every write gets the next resourceVersion; a reader sees a version whole; a watcher sees every change of its
collection once and in order. A stored value is never changed in place: writers put a new one.
Leaves what may be written to writes.py. One event loop owns a store; it has no locks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, dump, map_at, maps_at, text_at

_HISTORY_LIMIT: Final = 20_000  # Changes kept for watches that resume; etcd keeps five minutes' worth.


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Where an object stands inside its collection."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Stored:
    """One version of one object, as a value and as the bytes that clients get."""

    value: JsonMap
    data: bytes
    version: int


class ChangeKind(StrEnum):
    """What a write did; the value is the type of the watch event."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class Change:
    """One write: the object after it, and before it."""

    kind: ChangeKind
    collection: str
    key: Key
    now: Stored
    before: Stored | None


@dataclass(slots=True)
class Subscription:
    """The changes of one collection since it began; ``wake`` is set when there are some."""

    pending: deque[Change] = field(default_factory=deque["Change"])
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def push(self, change: Change) -> None:
        """Add one change."""
        self.pending.append(change)
        self.wake.set()


class Store:
    """All collections of a cluster; a collection is named ``group/plural``."""

    def __init__(self) -> None:
        self.version = 1
        self.oldest = 1  # Changes up to and with this version are forgotten.
        self._collections: dict[str, dict[Key, Stored]] = {}
        self._history: deque[Change] = deque()
        self._subscriptions: dict[str, list[Subscription]] = {}
        self._generations: dict[str, int] = {}

    def get(self, collection: str, key: Key) -> Stored | None:
        """Return the object, or None."""
        return self._collections.get(collection, {}).get(key)

    def list(self, collection: str, namespace: str = "") -> list[Stored]:
        """Return the objects in the order of their keys; an empty namespace means all."""
        found = self._collections.get(collection, {})
        return [found[key] for key in sorted(found) if not namespace or key.namespace == namespace]

    def generation(self, *collections: str) -> int:
        """Return a number that grows with every write to one of the collections."""
        return sum(self._generations.get(name, 0) for name in collections)

    def put(self, collection: str, value: JsonMap) -> Stored:
        """Write the object under the name and namespace of its metadata; takes the value over."""
        self.version += 1
        metadata = map_at(value, "metadata")
        metadata["resourceVersion"] = str(self.version)
        key = key_of(value)
        objects = self._collections.setdefault(collection, {})
        before = objects.get(key)
        now = objects[key] = Stored(value, dump(value), self.version)
        self._record(Change(ChangeKind.MODIFIED if before else ChangeKind.ADDED, collection, key, now, before))
        return now

    def delete(self, collection: str, key: Key) -> Stored:
        """Remove the object and return its last state, which bears the version of the removal."""
        before = self._collections[collection].pop(key)
        self.version += 1
        value: JsonMap = {
            **before.value,
            "metadata": {**map_at(before.value, "metadata"), "resourceVersion": str(self.version)},
        }
        now = Stored(value, dump(value), self.version)
        self._record(Change(ChangeKind.DELETED, collection, key, now, before))
        return now

    def since(self, collection: str, version: int) -> Iterator[Change]:
        """Yield the collection's changes after the version; the caller has compared it with ``oldest``."""
        return (change for change in self._history if change.now.version > version and change.collection == collection)

    def subscribe(self, collection: str) -> Subscription:
        """Start to collect the changes of the collection."""
        subscription = Subscription()
        self._subscriptions.setdefault(collection, []).append(subscription)
        return subscription

    def unsubscribe(self, collection: str, subscription: Subscription) -> None:
        """Stop to collect them."""
        self._subscriptions[collection].remove(subscription)

    def snapshot(self) -> JsonMap:
        """Return everything but the history."""
        objects: JsonMap = {
            name: [stored.value for stored in self.list(name)] for name in sorted(self._collections)
        }  # fmt: skip
        return {"version": self.version, "objects": objects}

    def restore(self, snapshot: JsonValue) -> None:
        """Take over what ``snapshot`` gave; versions stay what they were, and a watch from an older one gets 410."""
        for name in map_at(snapshot, "objects"):
            for value in maps_at(snapshot, "objects", name):
                stored = Stored(value, dump(value), int(text_at(value, "metadata", "resourceVersion")))
                self._collections.setdefault(name, {})[key_of(value)] = stored
        version = map_at(snapshot).get("version")
        self.oldest = self.version = version if isinstance(version, int) else self.version

    def _record(self, change: Change) -> None:
        self._generations[change.collection] = self._generations.get(change.collection, 0) + 1
        self._history.append(change)
        if len(self._history) > _HISTORY_LIMIT:
            self.oldest = self._history.popleft().now.version
        for subscription in self._subscriptions.get(change.collection, ()):
            subscription.push(change)


def key_of(value: JsonMap) -> Key:
    """Return where an object stands inside its collection."""
    return Key(text_at(value, "metadata", "namespace"), text_at(value, "metadata", "name"))
