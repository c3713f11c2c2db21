"""Get and list: bytes of stored objects put together, without rendering them anew.

Promises: a list is one consistent state; with ``limit`` it is paged, and every page shows the state of the first one.
Source: k8s.io/apiserver/pkg/registry/generic/registry/store.go, pkg/storage/etcd3/store.go.
"""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, dump, load, text_at
from nodeattest_sandbox.apiserver.kinds import Kind
from nodeattest_sandbox.apiserver.requestinfo import RequestInfo
from nodeattest_sandbox.apiserver.selectors import Match
from nodeattest_sandbox.apiserver.status_errors import ApiError, bad_request, expired
from nodeattest_sandbox.apiserver.store import Key, Store, Stored

__all__ = ["Page", "Pager", "list_body", "object_body", "read_version"]

_KEPT_LISTS: Final = 256  # Paged lists that can be continued; older continue tokens get 410.


@dataclass(frozen=True, slots=True)
class Page:
    """Some objects of one state of a collection."""

    objects: list[Stored]
    version: int
    next_token: str = ""
    remaining: int = 0


@dataclass(slots=True)
class Pager:
    """Keeps the rest of paged lists, so that later pages show the same state."""

    store: Store
    _rests: OrderedDict[str, tuple[int, list[Stored]]] = field(
        default_factory=OrderedDict[str, tuple[int, list[Stored]]]
    )
    _serial: int = 0

    def list(self, kind: Kind, info: RequestInfo, query: Mapping[str, str], match: Match | None) -> Page:
        """Return the page that the query asks for; raises 410 for a token of a forgotten list."""
        token = query.get("continue", "")
        if token:
            version, objects = self._resume(token)
        else:
            check_future(self.store, query.get("resourceVersion", ""))
            version, objects = self.store.version, self._select(kind, info, match)
        limit = read_limit(query.get("limit", ""))
        if not limit or len(objects) <= limit:
            return Page(objects, version)
        rest = objects[limit:]
        return Page(objects[:limit], version, self._keep(version, rest), 0 if match else len(rest))

    def forget(self) -> None:
        """Let every continue token expire."""
        self._rests.clear()

    def _select(self, kind: Kind, info: RequestInfo, match: Match | None) -> list[Stored]:
        if info.name:  # A field selector on the name: one look-up instead of a scan.
            found = self.store.get(kind.collection, Key(info.namespace if kind.namespaced else "", info.name))
            objects = [found] if found else []
            if not (kind.namespaced and not info.namespace):
                return [o for o in objects if match is None or match(o.value)]
        objects = self.store.list(kind.collection, info.namespace if kind.namespaced else "")
        return objects if match is None else [stored for stored in objects if match(stored.value)]

    def _keep(self, version: int, rest: list[Stored]) -> str:
        self._serial += 1
        token = (
            base64.urlsafe_b64encode(dump({"v": "meta.k8s.io/v1", "rv": version, "n": self._serial}))
            .decode()
            .rstrip("=")
        )
        self._rests[token] = (version, rest)
        while len(self._rests) > _KEPT_LISTS:
            self._rests.popitem(last=False)
        return token

    def _resume(self, token: str) -> tuple[int, list[Stored]]:
        try:
            text_at(load(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))), "v")
        except (ValueError, binascii.Error) as problem:
            raise bad_request(f"continue key is not valid: {problem}") from problem
        found = self._rests.get(token)
        if found is None or found[0] < self.store.oldest:
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
