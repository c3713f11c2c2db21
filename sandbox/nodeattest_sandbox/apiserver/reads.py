"""Get, list and watch: bytes of stored objects put together, without rendering them anew.

Promises: a list is one consistent state; with ``limit`` it is paged, and every page shows the state of the first one.
A watch from a version gives every later change once; one from a forgotten version gets an ERROR of code 410; an object
that enters or leaves the selection is ADDED or DELETED; bookmarks come at an interval and at the end.
Source: k8s.io/apiserver/pkg/registry/generic/registry/store.go, pkg/storage/etcd3/store.go, pkg/endpoints/handlers/
watch.go, pkg/storage/cacher.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, dump, text_at
from nodeattest_sandbox.apiserver.kinds import Kind
from nodeattest_sandbox.apiserver.rbac import RequestInfo
from nodeattest_sandbox.apiserver.selectors import Match
from nodeattest_sandbox.apiserver.status_errors import ApiError, bad_request, expired
from nodeattest_sandbox.apiserver.store import Change, ChangeKind, Key, Store, Stored, Subscription, key_of

_KEPT_LISTS: Final = 256  # Paged lists that can be continued; older continue tokens get 410.


@dataclass(frozen=True, slots=True)
class Page:
    """Some objects of one state of a collection."""

    objects: list[Stored]
    version: int
    next_token: str = ""
    remaining: int = 0


class Pager:
    """Keeps the rest of paged lists, so that later pages show the same state."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rests: OrderedDict[str, tuple[int, list[Stored]]] = OrderedDict()
        self._serial = 0

    def list(self, kind: Kind, info: RequestInfo, query: Mapping[str, str], match: Match | None) -> Page:
        """Return the page that the query asks for; raises 410 for a token of a forgotten list."""
        token = query.get("continue", "")
        if token:
            version, objects = self._resume(token)
        else:
            check_future(self._store, query.get("resourceVersion", ""))
            version = self._store.version
            objects = self._store.list(kind.collection, info.namespace if kind.namespaced else "")
            objects = [stored for stored in objects if match is None or match(stored.value)]
        limit = read_limit(query.get("limit", "")) or len(objects)
        rest = objects[limit:]
        if not rest:
            return Page(objects, version)
        self._serial += 1
        self._rests[f"page-{self._serial}"] = (version, rest)
        while len(self._rests) > _KEPT_LISTS:
            self._rests.popitem(last=False)
        return Page(objects[:limit], version, f"page-{self._serial}", 0 if match else len(rest))

    def forget(self) -> None:
        """Let every continue token expire."""
        self._rests.clear()

    def _resume(self, token: str) -> tuple[int, list[Stored]]:
        found = self._rests.get(token)
        if found is None or found[0] < self._store.oldest:
            raise expired(
                "The provided continue parameter is too old to display a consistent list result. "
                "You can start a new list without the continue parameter."
            )
        return found


def read_limit(text: str) -> int:
    """Read the query parameter ``limit``; none means 0."""
    if text and not text.isdigit():
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return int(text or "0")


def read_version(text: str) -> int:
    """Read the query parameter ``resourceVersion``; none means 0."""
    if text and not text.isdigit():
        raise bad_request(
            f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        )
    return int(text or "0")


def check_future(store: Store, text: str) -> None:
    """Refuse a version that is not reached yet, which the real server waits for in vain."""
    version = read_version(text)
    if version > store.version:
        causes: list[JsonValue] = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
        message = f"Timeout: Too large resource version: {version}, current: {store.version}"
        raise ApiError(504, "Timeout", message, {"causes": causes, "retryAfterSeconds": 1})


def object_body(kind: Kind, stored: Stored) -> bytes:
    """Return the object in the version of the request."""
    if not kind.custom or text_at(stored.value, "apiVersion") == kind.api_version:
        return stored.data
    converted: JsonMap = {**stored.value, "apiVersion": kind.api_version}
    return dump(converted)


def list_body(kind: Kind, page: Page) -> bytes:
    """Return the list object; items of built-in kinds carry no kind and apiVersion, as in the real server."""
    metadata: JsonMap = {"resourceVersion": str(page.version)}
    if page.next_token:
        metadata["continue"] = page.next_token
    if page.remaining:
        metadata["remainingItemCount"] = page.remaining
    head: JsonMap = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata}
    skip = 0 if kind.custom else len(dump({"kind": kind.kind, "apiVersion": kind.api_version}))
    items = b",".join(object_body(kind, stored) if not skip else b"{" + stored.data[skip:] for stored in page.objects)
    return b'%s,"items":[%s]}' % (dump(head)[:-1], items)


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
