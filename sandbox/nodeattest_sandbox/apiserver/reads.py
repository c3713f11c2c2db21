"""Get, list and watch: bytes of stored objects put together, without rendering them anew.

Promises: a list is one consistent state; with ``limit`` it is paged, and every page shows the state of the first one.
A watch from a version gives every later change once; one from a forgotten version gets an ERROR of code 410; an object
that enters or leaves the selection is ADDED or DELETED; bookmarks come at an interval and at the end.
Source: k8s.io/apiserver/pkg/registry/generic/registry/store.go, pkg/storage/etcd3/store.go, pkg/endpoints/handlers/
watch.go, pkg/storage/cacher.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, dump, map_at, text_at
from nodeattest_sandbox.apiserver.kinds import Kind
from nodeattest_sandbox.apiserver.rbac import RequestInfo
from nodeattest_sandbox.apiserver.status_errors import bad_request, expired
from nodeattest_sandbox.apiserver.store import Change, ChangeKind, Key, Store, Stored, Subscription, key_of

Match: TypeAlias = Callable[[JsonMap], bool]

_METADATA: Final = ("metadata.name", "metadata.namespace")
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "/secrets": ("type",),
    "/events": ("involvedObject.uid", "involvedObject.name", "reason"),
    "certificates.k8s.io/certificatesigningrequests": ("spec.signerName",),
}
_LABEL: Final = re.compile(r"(?P<not>!?)(?P<key>[^\s!=,()]+)(?:(?P<op>==|=|!=)(?P<value>[^\s!=,()]*))?")
_FIELD: Final = re.compile(r"(?P<key>[^=!]+)(?P<op>==|=|!=)(?P<value>.*)")


def read_selectors(kind: Kind, label_selector: str, field_selector: str) -> Match | None:
    """Return the test for both selectors, or None when there is nothing to test; raises ApiError."""
    tests = [_label_test(term.strip()) for term in label_selector.split(",") if term.strip()]
    tests += [_field_test(kind, term.strip()) for term in field_selector.split(",") if term.strip()]
    return (lambda value: all(test(value) for test in tests)) if tests else None


def _label_test(term: str) -> Match:
    found = _LABEL.fullmatch(term)
    if found is None or (found["not"] and found["op"]):
        raise bad_request(f"unable to parse requirement: {term!r}")
    key, op, wanted = found["key"], found["op"], found["value"]

    def test(value: JsonMap) -> bool:
        labels = map_at(value, "metadata", "labels")
        if op is None:
            return (key in labels) is not bool(found["not"])
        return (key in labels and labels[key] == wanted) is (op != "!=")

    return test


def _field_test(kind: Kind, term: str) -> Match:
    found = _FIELD.fullmatch(term)
    if found is None or found["key"] not in (*_METADATA, *_FIELDS.get(kind.collection, ())):
        raise bad_request(f'field label not supported: "{term}" of {kind.plural}')
    steps, wanted, equal = found["key"].split("."), found["value"], found["op"] != "!="
    return lambda value: (text_at(value, *steps) == wanted) is equal


_BOOKMARK_INTERVAL: Final = 5.0  # seconds; kube-apiserver sends one a minute
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
            version = self._store.version
            objects = self._store.list(kind.collection, info.namespace if kind.namespaced else "")
            objects = [stored for stored in objects if match is None or match(stored.value)]
        limit = read_number(query.get("limit", "")) or len(objects)
        rest = objects[limit:]
        if not rest:
            return Page(objects, version)
        self._serial += 1
        self._rests[f"page-{self._serial}"] = (version, rest)
        while len(self._rests) > _KEPT_LISTS:
            self._rests.popitem(last=False)
        return Page(objects[:limit], version, f"page-{self._serial}", 0 if match else len(rest))

    def _resume(self, token: str) -> tuple[int, list[Stored]]:
        found = self._rests.get(token)
        if found is None or found[0] < self._store.oldest:
            raise expired(
                "The provided continue parameter is too old to display a consistent list result. "
                "You can start a new list without the continue parameter."
            )
        return found


def read_number(text: str) -> int:
    """Read a number of the query; none means 0."""
    if text and not text.isdigit():
        raise bad_request(f'strconv.ParseUint: parsing "{text}": invalid syntax')
    return int(text or "0")


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
        wait = min(left, _BOOKMARK_INTERVAL) if asked.bookmarks else left
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
