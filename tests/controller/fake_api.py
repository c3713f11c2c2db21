"""An API server in memory that is an ``ApiClient``: objects by path, resourceVersions, patches, lists and watches.

It knows no schema: an object is what was written, and ``/status`` and ``/approval`` write the object itself.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from copy import deepcopy
from datetime import UTC, datetime
from urllib.parse import unquote

from aiohttp.abc import AbstractResolver

from nodeattest_kube.answers import WatchEvent, WatchType, parse_json
from nodeattest_kube.client import WATCH_SECONDS, ApiClient
from nodeattest_kube.errors import AlreadyExists, ApiError, Conflict, NotFound, Unreachable
from nodeattest_kube.input_scheduler import ClusterInput
from nodeattest_parsing.objects import mapping, number, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_sandbox.apiserver.writes import merge_patch

SUBRESOURCES = ("status", "approval")


class Killed(BaseException):
    """The end of a process that was killed: nothing of it catches this."""


class FakeApi(ApiClient):
    """One API server's objects, and a client of it."""

    def __init__(self, server: str = "https://fake.example") -> None:  # pyright: ignore[reportMissingSuperCall]
        self.server = server
        self.requests = 0
        self.on_request = lambda _method, _status: None
        self.on_contact = lambda _error: None
        self.has_reported = lambda _error: False
        self.log_name = server
        self.may_send = lambda: True
        self.objects: dict[str, JsonObject] = {}
        """By the path of each."""
        self.documents: dict[str, JsonObject] = {}
        """What is no object, by path: discovery."""
        self.answers: dict[str, Callable[[JsonObject], JsonObject]] = {}
        """What a POST returns instead of creating an object, by path: reviews, dry runs. May raise an ``ApiError``."""
        self.calls: list[tuple[str, str]] = []
        self.on_call: Callable[[str, str], Awaitable[None]] | None = None
        self.on_answer: Callable[[str], Awaitable[None]] | None = None
        """Awaited, by path, between what a GET reads and its answer."""
        self.dies_before = self.dies_after = ""
        """The part of the path of a write around which the process dies."""
        self.pruned: tuple[str, ...] = ()
        """Fields of a status that no definition has: a patch of one is dropped."""
        self._faults: list[tuple[str, str, ApiError]] = []
        self.closed = False
        self.refuses = ""
        self.date: Callable[[], datetime] = lambda: datetime.now(UTC)
        """Its clock."""
        self._versions = itertools.count(2)
        self._version = 1
        """Of an empty server; its first object has a later one, so that a watch from an empty list shows it."""
        self._log: list[tuple[int, str, WatchType, JsonObject]] = []
        self._changed = asyncio.Event()

    # What a test does as somebody else

    def put(self, path: str, body: JsonObject) -> JsonObject:
        """Create or replace an object, whatever its version."""
        known = self.objects.get(path)
        return self._store(path, body, WatchType.ADDED if known is None else WatchType.MODIFIED)

    def remove(self, path: str) -> None:
        gone = self.objects.pop(path)
        self._version = next(self._versions)
        last: JsonObject = {**gone, "metadata": {**mapping(gone, "metadata"), "resourceVersion": str(self._version)}}
        self._record(path, WatchType.DELETED, last)

    def fail(self, method: str, part: str, error: ApiError, times: int = 1) -> None:
        """Answer the next requests of a method whose path has a part with an error."""
        self._faults += [(method, part, error)] * times

    def writes(self, part: str = "") -> list[str]:
        return [method for method, path in self.calls if method in {"POST", "PUT", "PATCH"} and part in path]

    def events(self, field: str = "reason") -> list[str]:
        return [text(obj, field) for path, obj in self.objects.items() if "/events/" in path]

    def count(self, method: str, part: str = "") -> int:
        return sum(called == method and part in path for called, path in self.calls)

    # ApiClient

    @property
    def refused_address(self) -> str:
        return self.refuses

    def use_resolver(self, resolver: AbstractResolver) -> None:
        self.resolver = resolver

    def server_time(self) -> datetime | None:
        return self.date()

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> JsonObject:
        try:
            return await self._get(path, query)
        finally:
            if self.on_answer is not None:
                await self.on_answer(path)

    async def _get(self, path: str, query: Mapping[str, str] | None) -> JsonObject:
        await self._call("GET", path)
        if path in self.documents:
            return deepcopy(self.documents[path])
        found = self.objects.get(unquote(path))
        if found is not None:
            return deepcopy(found)
        if query is not None and "limit" in query:
            return self._listed(path, query)
        raise _not_found(path)

    async def document(self, path: str, *, accept: str, limit: int) -> bytes:
        del accept, limit
        await self._call("GET", path)
        raise _not_found(path)

    async def create(self, path: str, body: JsonObject) -> JsonObject:
        await self._call("POST", path)
        if path in self.answers:
            return self.answers[path](body)
        at = f"{unquote(path)}/{text(body, 'metadata', 'name')}"
        if at in self.objects:
            raise AlreadyExists(409, "AlreadyExists", f"{at} exists")
        return deepcopy(self._store(at, body, WatchType.ADDED))

    async def replace(self, path: str, body: JsonObject) -> JsonObject:
        await self._call("PUT", path)
        at = _object_path(path)
        self._check_version(at, body)
        return deepcopy(self._store(at, body, WatchType.MODIFIED))

    async def merge_patch(self, path: str, body: JsonObject) -> JsonObject:
        await self._call("PATCH", path)
        at = _object_path(path)
        self._check_version(at, body)
        patched = merge_patch(deepcopy(self.objects[at]), deepcopy(body))
        assert isinstance(patched, dict)
        status = patched.get("status")
        if isinstance(status, dict):
            patched["status"] = {name: value for name, value in status.items() if name not in self.pruned}
        return deepcopy(self._store(at, patched, WatchType.MODIFIED))

    async def delete(self, path: str, *, uid: str | None = None, resource_version: str | None = None) -> None:
        await self._call("DELETE", path)
        at = unquote(path)
        found = self.objects.get(at)
        if found is None:
            raise _not_found(path)
        for name, wanted in (("uid", uid), ("resourceVersion", resource_version)):
            if wanted is not None and text(found, "metadata", name) != wanted:
                raise Conflict(409, "Conflict", f"{path}: another {name}")
        self.remove(at)

    async def pages(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        limit: int = 500,
        *,
        skipped: Callable[[], None] | None = None,
    ) -> AsyncGenerator[JsonObject]:
        del limit, skipped
        await self._call("LIST", path)
        yield self._listed(path, query or {})

    async def watch(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        opened: Callable[[], None] | None = None,
        skipped: Callable[[], None] | None = None,
        seconds: tuple[int, int] = WATCH_SECONDS,
    ) -> AsyncGenerator[WatchEvent]:
        del skipped, seconds
        await self._call("WATCH", path)
        if opened is not None:
            opened()
        reached = int((query or {}).get("resourceVersion") or 0)
        while True:
            changed = self._changed
            for version, at, kind, obj in list(self._log):
                if version > reached:
                    reached = version
                    if _is_in(at, path) and _selected(obj, query or {}):
                        yield WatchEvent(kind, deepcopy(obj))
            if changed is self._changed:
                await changed.wait()

    def schedule_input(self, turns: ClusterInput) -> None:
        del turns

    async def pause(self) -> None:
        await asyncio.sleep(0)

    async def close(self) -> None:
        self.closed = True

    # Inside

    async def _call(self, method: str, path: str) -> None:
        await asyncio.sleep(0)  # as a request does, let others run
        if self.closed:
            raise Unreachable(f"{method} {path}: closed")
        if not self.may_send():
            raise Unreachable(f"{method} {path}: not sent; the time in which this process may ask is over")
        self.requests += 1
        self.calls.append((method, path))
        try:
            self._fault(method, path)
            if self.on_call is not None:
                await self.on_call(method, path)
        except ApiError as error:
            self.on_contact(error)
            raise
        self.on_contact(None)

    def _fault(self, method: str, path: str) -> None:
        if self.dies_before and self.dies_before in path and method != "GET":
            self.dies_before = ""
            raise Killed
        for fault in self._faults:
            if fault[0] == method and fault[1] in path:
                self._faults.remove(fault)
                raise fault[2]

    def _check_version(self, path: str, body: JsonObject) -> None:
        found = self.objects.get(path)
        if found is None:
            raise _not_found(path)
        for name in ("resourceVersion", "uid"):
            wanted = text(body, "metadata", name)
            if wanted and wanted != text(found, "metadata", name):
                raise Conflict(409, "Conflict", f"{path}: the object has been modified")

    def _store(self, path: str, body: JsonObject, kind: WatchType) -> JsonObject:
        known, self._version = self.objects.get(path), next(self._versions)
        meta: JsonObject = {**mapping(body, "metadata")}
        meta.setdefault("name", path.rpartition("/")[2])
        namespace = _namespace(path)
        if namespace:
            meta["namespace"] = namespace
        uid = text(known or {}, "metadata", "uid") or text(body, "metadata", "uid")
        meta["uid"] = uid or f"uid-{self._version}"
        meta["resourceVersion"] = str(self._version)
        generation = number(known or {}, "metadata", "generation") or 0
        meta["generation"] = generation + (known is None or known.get("spec") != body.get("spec"))
        stored = _as_read({**body, "metadata": meta})
        self.objects[path] = stored
        self._record(path, kind, stored)
        if self.dies_after and self.calls and self.dies_after in self.calls[-1][1]:
            self.dies_after = ""
            raise Killed
        return stored

    def _record(self, path: str, kind: WatchType, obj: JsonObject) -> None:
        self._log.append((self._version, path, kind, obj))
        self._changed.set()
        self._changed = asyncio.Event()

    def _listed(self, path: str, query: Mapping[str, str]) -> JsonObject:
        found: list[JsonValue] = [
            deepcopy(obj) for at, obj in self.objects.items() if _is_in(at, path) and _selected(obj, query)
        ]
        return {"kind": "List", "metadata": {"resourceVersion": str(self._version)}, "items": found}


def _object_path(path: str) -> str:
    head, _, last = unquote(path).rpartition("/")
    return head if last in SUBRESOURCES else f"{head}/{last}"


def _is_in(path: str, collection: str) -> bool:
    head = path.rpartition("/")[0]
    namespace = _namespace(path)
    return head == collection or (bool(namespace) and head.replace(f"/namespaces/{namespace}", "", 1) == collection)


def _namespace(path: str) -> str:
    parts = path.split("/")
    at = parts.index("namespaces") if "namespaces" in parts else -1
    return parts[at + 1] if at >= 0 and len(parts) > at + 3 else ""


_TERM = re.compile(r"([\w./-]+)(?:=([^,]*)| in \(([^)]*)\))?(?:,|$)")


def _selected(obj: JsonObject, query: Mapping[str, str]) -> bool:
    known = mapping(obj, "metadata", "labels")
    for term in _TERM.finditer(query.get("labelSelector", "")):
        name, value, values = term.groups()
        wanted = [value] if value else (values or "").split(",")
        if name not in known or ("" not in wanted and known[name] not in wanted):
            return False
    field, _, value = query.get("fieldSelector", "").partition("=")
    return not field or text(obj, *field.split(".")) == value


def _as_read(value: JsonObject) -> JsonObject:
    """Return what a client reads of it: plain texts, also where our own types were written."""
    return parse_json(json.dumps(value).encode())


def _not_found(path: str) -> NotFound:
    return NotFound(404, "NotFound", f"{path} not found")
