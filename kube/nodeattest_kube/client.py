"""The API client: raw JSON objects in and out, one typed error for every other outcome.

Promises: no retry of its own (aiohttp resends an idempotent request once when a kept connection turns out closed);
no server's answer gives another exception than ``ApiError``. Leaves to others: back-off, caching, paths (``paths``).
Source: Kubernetes API concepts (verbs, chunked lists, watches, bookmarks, preconditions).
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlencode

from aiohttp import ClientTimeout

from nodeattest_kube.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeconfigError,
    Malformed,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    error_from_status,
)
from nodeattest_kube.jsontypes import JsonObject, JsonValue, dig, dig_text, parse_json
from nodeattest_kube.kubeconfig import Endpoint, check_proxy_url, in_cluster_endpoint, parse_kubeconfig, read_kubeconfig
from nodeattest_kube.lines import LineAssembler
from nodeattest_kube.proxies import environment_proxy
from nodeattest_kube.tokens import TokenSource
from nodeattest_kube.transport import Answer, Transport

__all__ = [
    "AlreadyExists",
    "ApiClient",
    "ApiError",
    "Conflict",
    "Forbidden",
    "Gone",
    "Invalid",
    "JsonObject",
    "JsonValue",
    "KubeconfigError",
    "Malformed",
    "NotFound",
    "TooManyRequests",
    "Unauthorized",
    "Unreachable",
    "WatchEvent",
    "WatchType",
]

_WATCH_SECONDS: Final = (240, 480)
"""How long a watch is asked to last, drawn anew each time so that a fleet's watches do not end together."""
_LINE_LIMIT: Final = 8 << 20
"""Bytes of one watch event; etcd takes objects of 1.5 MiB, which JSON escapes can multiply."""
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))
_LIST_PATIENCE: Final = 6.0
"""How many request time limits one page of a list may take; silence within it is limited as everywhere."""


class WatchType(StrEnum):
    """What happened to the object of a watch event."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    """Nothing but a newer ``metadata.resourceVersion`` to go on from."""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One line of a watch."""

    type: WatchType
    object: JsonObject = field(repr=False)


class ApiClient:
    """One identity towards one API server; close it, or use it as an asynchronous context manager."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        request_timeout: float = 10.0,
        watch_silence: float = 100.0,
        user_agent: str = "nodeattest",
        clock: Callable[[], float] = time.monotonic,
        randint: Callable[[int, int], int] = random.randint,
    ) -> None:
        """``watch_silence``: seconds without a line until a watch counts as hung; bookmarks come each minute."""
        self.server = endpoint.server
        self.requests = 0
        self.on_request: Callable[[str, int | None], None] = _ignore
        """Told the method and the status of each answer; None where none came. For metrics."""
        self._transport = Transport(endpoint)
        self._token = TokenSource(endpoint.token, endpoint.token_file, clock=clock)
        self._headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": user_agent}
        self._limits = ClientTimeout(total=request_timeout)
        self._list_limits = ClientTimeout(
            total=request_timeout * _LIST_PATIENCE, sock_connect=request_timeout, sock_read=request_timeout
        )
        self._watch_limits = ClientTimeout(total=None, sock_connect=request_timeout, sock_read=watch_silence)
        self._randint = randint

    @classmethod
    def from_kubeconfig(
        cls, document: bytes, *, context: str | None = None, request_timeout: float = 10.0, trust_env: bool = False
    ) -> Self:
        """Make a client out of a self-contained kubeconfig; raises ``KubeconfigError``.

        ``trust_env`` lets HTTPS_PROXY and NO_PROXY apply where the kubeconfig names no proxy of its own.
        """
        endpoint = parse_kubeconfig(document, context=context)
        return cls(_with_proxy(endpoint, trust_env), request_timeout=request_timeout)

    @classmethod
    def from_kubeconfig_file(
        cls, path: Path, *, context: str | None = None, request_timeout: float = 10.0, trust_env: bool = False
    ) -> Self:
        """Make a client out of a kubeconfig file, whose references are relative to it; raises ``KubeconfigError``."""
        endpoint = read_kubeconfig(path, context=context)
        return cls(_with_proxy(endpoint, trust_env), request_timeout=request_timeout)

    @classmethod
    def in_cluster(cls, environment: Mapping[str, str], *, request_timeout: float = 10.0) -> Self:
        """Make a client out of the pod's service account; ``environment`` is ``os.environ``, handed in by main."""
        return cls(in_cluster_endpoint(environment), request_timeout=request_timeout)

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> JsonObject:
        """Read one object, or a small collection."""
        return await self._exchange("GET", _target(path, query))

    async def create(self, path: str, body: JsonObject) -> JsonObject:
        """Create an object in the collection, or use a virtual resource such as a SubjectAccessReview."""
        return await self._exchange("POST", path, body=body)

    async def replace(self, path: str, body: JsonObject) -> JsonObject:
        """Write the whole object (PUT); its ``metadata.resourceVersion`` makes it a compare-and-swap."""
        return await self._exchange("PUT", path, body=body)

    async def merge_patch(self, path: str, body: JsonObject) -> JsonObject:
        """Apply an RFC 7386 merge patch."""
        return await self._exchange("PATCH", path, body=body, content_type="application/merge-patch+json")

    async def json_patch(self, path: str, operations: list[JsonObject]) -> JsonObject:
        """Apply an RFC 6902 patch; ``test`` operations that fail are ``Invalid``."""
        return await self._exchange("PATCH", path, body=operations, content_type="application/json-patch+json")

    async def delete(self, path: str, *, uid: str | None = None, resource_version: str | None = None) -> None:
        """Delete one object, only if it still is that one; a failed precondition is ``Conflict``."""
        wanted = {"uid": uid, "resourceVersion": resource_version}
        preconditions: JsonObject = {name: value for name, value in wanted.items() if value is not None}
        body: JsonObject = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if preconditions:
            body["preconditions"] = preconditions
        await self._exchange("DELETE", path, body=body)

    async def pages(
        self, path: str, query: Mapping[str, str] | None = None, limit: int = 500
    ) -> AsyncGenerator[JsonObject]:
        """Yield a consistent list page by page; ``Gone`` when the token expires between pages; 0 is no limit."""
        asked = {**(query or {}), **({"limit": str(limit)} if limit else {})}
        following = ""
        while True:
            now_asked = {**asked, "continue": following} if following else asked
            page = await self._exchange("GET", _target(path, now_asked), limits=self._list_limits)
            yield page
            following, previous = dig_text(page, "metadata", "continue"), following
            if not following:
                return
            if following == previous:
                raise Malformed(200, "MalformedAnswer", f"GET {path}: the list continues at itself")

    async def watch(
        self, path: str, query: Mapping[str, str] | None = None, *, opened: Callable[[], None] | None = None
    ) -> AsyncGenerator[WatchEvent]:
        """Yield the events of one watch connection until the server ends it; wrap it in ``contextlib.aclosing``.

        Bookmarks are asked for; ``opened`` is called once the server granted the watch. Raises what the server's ERROR
        event says (``Gone``: list again), and ``Unreachable`` when the connection breaks or falls silent.
        """
        asked = {"allowWatchBookmarks": "true", "timeoutSeconds": str(self._randint(*_WATCH_SECONDS)), **(query or {})}
        assembler = LineAssembler(_LINE_LIMIT)
        async with self._answer("GET", _target(path, {**asked, "watch": "1"}), limits=self._watch_limits) as answer:
            if opened is not None:
                opened()
            while chunk := await answer.chunk():
                for line in _lines(assembler, chunk, path):
                    yield _event(line, path)
        if assembler.incomplete:
            raise Unreachable(f"GET {path}: the watch ended within an event")

    async def close(self) -> None:
        """Close all connections; the client is of no further use."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    async def _exchange(
        self,
        method: str,
        target: str,
        *,
        body: JsonObject | list[JsonObject] | None = None,
        content_type: str = "application/json",
        limits: ClientTimeout | None = None,
    ) -> JsonObject:
        """Send one request and parse its answer."""
        data = None if body is None else _ENCODER.encode(body).encode()
        async with self._answer(method, target, data=data, content_type=content_type, limits=limits) as answer:
            return _parsed(await answer.body(), f"{method} {target.partition('?')[0]}", answer)

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        target: str,
        *,
        data: bytes | None = None,
        content_type: str = "application/json",
        limits: ClientTimeout | None = None,
    ) -> AsyncGenerator[Answer]:
        """Send a request and hand out its answer if the server granted it; raise its refusal otherwise."""
        self.requests += 1
        headers = dict(self._headers)
        token = self._token.current()
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        if data is not None:
            headers["Content-Type"] = content_type
        status: int | None = None
        try:
            async with self._transport.request(
                method, target, headers=headers, data=data, limits=limits or self._limits
            ) as answer:
                status = answer.status
                await self._check(answer, f"{method} {target.partition('?')[0]}")
                yield answer
        finally:
            self.on_request(method, status)

    async def _check(self, answer: Answer, where: str) -> None:
        """Raise the refusal where the server did not grant the request."""
        if not 200 <= answer.status < 300:  # noqa: PLR2004 - HTTP's success class
            if answer.status == 401:  # noqa: PLR2004 - HTTP's number
                self._token.refused()
            raise await _refusal(answer, where)


def _ignore(_method: str, _status: int | None) -> None:
    """Nobody counts."""


def _with_proxy(endpoint: Endpoint, trust_env: bool) -> Endpoint:
    """Add the environment's proxy if the caller allows it; the kubeconfig's own wins (client-go)."""
    if endpoint.proxy_url is not None or not trust_env:
        return endpoint
    # The one read of the environment below main: what the parameter is for.
    return replace(endpoint, proxy_url=check_proxy_url(environment_proxy(endpoint.server, os.environ)))


def _target(path: str, query: Mapping[str, str] | None) -> str:
    """Join path and query."""
    return f"{path}?{urlencode(query)}" if query else path


def _parsed(body: bytes, where: str, answer: Answer) -> JsonObject:
    """Parse a granted request's answer."""
    try:
        return parse_json(body)
    except ValueError as error:
        detail = f"{where}: expected a JSON object, got {answer.content_type or 'no content type'}: {error}"
        raise Malformed(answer.status, "MalformedAnswer", detail) from None


async def _refusal(answer: Answer, where: str) -> ApiError:
    """Read a refusal: a ``Status`` object, or whatever a proxy on the way wrote, of which only the type is kept."""
    try:
        status = parse_json(await answer.body())
    except ValueError:
        status: JsonObject = {"message": f"{where}: HTTP {answer.status} {answer.phrase} without a Status object"}
    fallback = answer.phrase or f"HTTP {answer.status}"
    return error_from_status(answer.status, status, fallback=fallback, retry_after=answer.retry_after)


def _lines(assembler: LineAssembler, chunk: bytes, path: str) -> list[bytes]:
    """Cut a chunk into lines."""
    try:
        return assembler.feed(chunk)
    except ValueError as error:
        raise Malformed(200, "MalformedAnswer", f"GET {path}: {error} in a watch") from None


def _event(line: bytes, path: str) -> WatchEvent:
    """Parse one watch event (metav1.WatchEvent); raise what an ERROR event says."""
    try:
        event = parse_json(line)
        kind, subject = dig_text(event, "type"), dig(event, "object")
        if kind != "ERROR" and isinstance(subject, dict):
            return WatchEvent(WatchType(kind), subject)
    except ValueError as error:
        raise Malformed(200, "MalformedAnswer", f"GET {path}: no watch event: {error}") from None
    status = subject if isinstance(subject, dict) else {}
    code = dig(status, "code")
    raise error_from_status(code if isinstance(code, int) else 500, status, fallback="WatchError")
