"""Watches: the changes of a collection as a stream of lines.

Promises: a watch from a version gives every later change once; one from a forgotten version gets an ERROR of code 410;
an object that enters or leaves the selection is ADDED or DELETED; bookmarks come at an interval and at the end.
Source: k8s.io/apiserver/pkg/endpoints/handlers/watch.go, pkg/storage/cacher.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, dump
from nodeattest_sandbox.apiserver.kinds import Kind
from nodeattest_sandbox.apiserver.reads import object_body
from nodeattest_sandbox.apiserver.selectors import Match
from nodeattest_sandbox.apiserver.status_errors import expired
from nodeattest_sandbox.apiserver.store import Change, ChangeKind, Key, Store, Stored, Subscription, key_of

__all__ = ["WatchRequest", "watch_lines"]


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """One watch; version 0 means: the present state first."""

    kind: Kind
    namespace: str
    name: str
    match: Match | None
    version: int
    bookmarks: bool
    timeout: float  # seconds
    bookmark_interval: float  # seconds

    def wants(self, key: Key, stored: Stored) -> bool:
        """Return whether the object is in the selection."""
        if self.namespace and key.namespace != self.namespace:
            return False
        if self.name and key.name != self.name:
            return False
        return self.match is None or self.match(stored.value)

    def line(self, kind: str, stored: Stored) -> bytes:
        """Return one event."""
        return b'{"type":"%s","object":%s}\n' % (kind.encode(), object_body(self.kind, stored))


async def watch_lines(store: Store, asked: WatchRequest) -> AsyncIterator[bytes]:
    """Yield the events of a watch until it times out."""
    if asked.version and asked.version < store.oldest:
        yield _too_old(store, asked.version)
        return
    collection = asked.kind.collection
    subscription = store.subscribe(collection)
    try:
        for line in _beginning(store, asked):
            yield line
        async for line in _changes(store, asked, subscription):
            yield line
    finally:
        store.unsubscribe(collection, subscription)


def _beginning(store: Store, asked: WatchRequest) -> list[bytes]:
    collection = asked.kind.collection
    if asked.version:
        return [line for change in store.since(collection, asked.version) for line in _event(asked, change)]
    objects = store.list(collection, asked.namespace)
    return [asked.line("ADDED", stored) for stored in objects if asked.wants(key_of(stored.value), stored)]


async def _changes(store: Store, asked: WatchRequest, subscription: Subscription) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    end = loop.time() + asked.timeout
    while (left := end - loop.time()) > 0:
        wait = min(left, asked.bookmark_interval) if asked.bookmarks else left
        try:
            async with asyncio.timeout(wait):
                await subscription.wake.wait()
        except TimeoutError:
            if not subscription.pending:  # else the bookmark would skip what came at this very moment
                if asked.bookmarks:
                    yield _bookmark(asked.kind, store.version)
                continue
        subscription.wake.clear()
        lines: list[bytes] = []
        while subscription.pending:
            lines.extend(_event(asked, subscription.pending.popleft()))
        if lines:
            yield b"".join(lines)


def _event(asked: WatchRequest, change: Change) -> Iterator[bytes]:
    if asked.version and change.now.version <= asked.version:
        return
    was = change.before is not None and asked.wants(change.key, change.before)
    now = change.kind is not ChangeKind.DELETED and asked.wants(change.key, change.now)
    match was, now:
        case False, True:
            yield asked.line("ADDED", change.now)
        case True, True:
            yield asked.line("MODIFIED", change.now)
        case True, False:
            yield asked.line("DELETED", change.now)
        case _:
            return


def _bookmark(kind: Kind, version: int) -> bytes:
    metadata: JsonMap = {"resourceVersion": str(version), "creationTimestamp": None}
    mark: JsonMap = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}
    return b'{"type":"BOOKMARK","object":%s}\n' % dump(mark)


def _too_old(store: Store, version: int) -> bytes:
    status = expired(f"too old resource version: {version} ({store.oldest})").status
    return b'{"type":"ERROR","object":%s}\n' % dump(status)
