"""Get and list: bytes of stored objects put together, without rendering them anew.

Promises: a list is one consistent state; with ``limit`` it is paged, and every page shows the state of the first one.
Source: k8s.io/apiserver/pkg/registry/generic/registry/store.go, pkg/storage/etcd3/store.go.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, dump, text_at
from nodeattest_sandbox.apiserver.kinds import Kind
from nodeattest_sandbox.apiserver.requestinfo import RequestInfo
from nodeattest_sandbox.apiserver.selectors import Match
from nodeattest_sandbox.apiserver.status_errors import ApiError, bad_request, expired
from nodeattest_sandbox.apiserver.store import Store, Stored

__all__ = ["Page", "Pager", "list_body", "object_body", "read_version"]

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
