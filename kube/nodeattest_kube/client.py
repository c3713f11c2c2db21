"""The API client: raw JSON objects in and out, and an ``ApiError`` for every other outcome.

It does not retry, but ``transport`` sends an idempotent request again if a kept connection was closed. A list page that
is too large is requested again with half as many objects. An object that is too large alone is read as a row of a
table, without the object.
Source: Kubernetes API concepts (verbs, chunked lists, watches, bookmarks, preconditions); client-go
transport/token_source.go (re-read each minute; a failed re-read keeps the current token).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final, Self
from urllib.parse import urlencode

from aiohttp.abc import AbstractResolver

from nodeattest_kube import answers
from nodeattest_kube.addresses import AddressRules, environment_proxy
from nodeattest_kube.answers import TRUSTED, LineBuffer, PageLimits, TooManyValues, WatchEvent, parse_event, parse_json
from nodeattest_kube.errors import (
    ApiError,
    Malformed,
    TimedOut,
    TooLarge,
    Unauthorized,
    Unreachable,
    WatchHung,
    error_from_status,
)
from nodeattest_kube.input_scheduler import ClusterInput
from nodeattest_kube.kubeconfig import (
    ApiEndpoint,
    check_proxy_url,
    is_visible,
    parse_kubeconfig,
)
from nodeattest_kube.transport import ApiResponse, Transport
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject

_TOKEN_PERIOD: Final = 60.0
"""Seconds between two reads of a token's file. A projected service-account token is replaced when 80 % of its life, at
least 8 minutes, is gone."""
WATCH_SECONDS: Final = (60, 90)
"""How long a watch is asked to last, drawn for each watch so that a fleet's watches do not end together. A server on
which nothing happens sends no bookmark either, so only a new watch shows that it is there: within the shortest limit
for a cache without contact (120 s, ``--max-stale`` of ``discovery serve``)."""
_LIST_TIMEOUTS: Final = 6.0
"""How many request time limits one page of a list may take."""
_HEADERS: Final = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "nodeattest"}
_NO_HEADERS: Final[Mapping[str, str]] = {}


class ApiClient:
    """One identity towards one API server; close it, or use it as an asynchronous context manager."""

    def __init__(
        self,
        endpoint: ApiEndpoint,
        *,
        request_timeout: float = 10.0,
        watch_margin: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
        randint: Callable[[int, int], int] = random.randint,
    ) -> None:
        """``watch_margin``: seconds after which a watch is given up that the server should have ended."""
        self.server = endpoint.server
        self.requests = 0
        self.on_request: Callable[[str, int | None], None] = lambda _method, _status: None
        """Gets the method and the status of each answer; None without an answer."""
        self.on_contact: Callable[[ApiError | None], None] = lambda _error: None
        """Gets None for each request that the server granted, and the error of each other."""
        self.has_reported: Callable[[ApiError], bool] = lambda _error: False
        """Whether ``on_contact`` has reported already what an error says; loops then log it as debug only."""
        self.log_name = endpoint.server
        """How log lines name the server."""
        self.may_send: Callable[[], bool] = lambda: True
        """Whether this process may send a request; one that was stopped and woke late may not."""
        self._turns: ClusterInput | None = None
        self._bounds = TRUSTED
        self._transport = Transport(endpoint, request_timeout)
        self._token, self._token_file, self._token_due = endpoint.token, endpoint.token_file, float("-inf")
        self._request_timeout, self._watch_margin = request_timeout, watch_margin
        self._randint, self._clock = randint, clock
        self._server_time: tuple[datetime, float] | None = None
        """The server's time, and ``clock`` when it was received."""
        self._date = ""

    @classmethod
    def from_kubeconfig(
        cls, document: bytes, *, request_timeout: float = 10.0, addresses: AddressRules | None = None
    ) -> Self:
        """Make a client from a self-contained kubeconfig; raises ``KubeconfigError``.

        ``addresses``: what it may lead to; a service that reads others' kubeconfigs must give it.
        """
        return cls(parse_kubeconfig(document, addresses=addresses), request_timeout=request_timeout)

    @classmethod
    def from_endpoint(cls, endpoint: ApiEndpoint) -> Self:
        """Make a client from an operator's own kubeconfig; HTTPS_PROXY counts if that names no proxy."""
        proxy = endpoint.proxy_url
        if proxy is None:
            # The one read of the environment below main; the kubeconfig's own proxy wins (client-go).
            proxy = check_proxy_url(environment_proxy(endpoint.server, os.environ))
        return cls(replace(endpoint, proxy_url=proxy))

    @property
    def refused_address(self) -> str:
        """Why the last connection's address was refused, unless the server answered since."""
        return self._transport.refused_address

    def use_resolver(self, resolver: AbstractResolver) -> None:
        """Have this look up host names instead of the event loop's threads, from the first request on."""
        self._transport.resolver = resolver

    def schedule_input(self, turns: ClusterInput) -> None:
        """Handle answers in turns and in smaller pieces from now on, since the server is a tenant's."""
        self._turns, self._bounds = turns, answers.TENANT
        self._transport.schedule_input(turns)

    async def pause(self) -> None:
        """Let others run between two parts of long work on answers; a tenant's waits for its next turn."""
        await (asyncio.sleep(0) if self._turns is None else self._turns.turn())

    def server_time(self) -> datetime | None:
        """Return the time on the server's clock, to some seconds; None if no answer told it."""
        if self._server_time is None:
            return None
        moment, at = self._server_time
        try:
            return moment + timedelta(seconds=self._clock() - at)
        except OverflowError:  # somebody's last second of the year 9999
            return None

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> JsonObject:
        return await self._read("GET", _target(path, query))

    async def document(self, path: str, *, accept: str, limit: int) -> bytes:
        """Read what is no object, such as the public keys of tokens; ``limit`` in bytes."""
        async with self._answer("GET", path, headers={"Accept": accept}) as answer:
            return await answer.body(limit)

    async def create(self, path: str, body: JsonObject) -> JsonObject:
        """Create an object in the collection, or use a virtual resource such as a SubjectAccessReview."""
        return await self._exchange("POST", path, body)

    async def replace(self, path: str, body: JsonObject) -> JsonObject:
        """Write the whole object (PUT); its ``metadata.resourceVersion`` makes it a compare-and-swap."""
        return await self._exchange("PUT", path, body)

    async def merge_patch(self, path: str, body: JsonObject) -> JsonObject:
        return await self._exchange("PATCH", path, body, "application/merge-patch+json")

    async def delete(self, path: str, *, uid: str | None = None, resource_version: str | None = None) -> None:
        """Delete one object, only if it still is that one; a failed precondition is ``Conflict``."""
        wanted = {"uid": uid, "resourceVersion": resource_version}
        preconditions: JsonObject = {name: value for name, value in wanted.items() if value is not None}
        body: JsonObject = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if preconditions:
            body["preconditions"] = preconditions
        await self._exchange("DELETE", path, body)

    async def pages(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        limit: int = TRUSTED.objects,
        *,
        skipped: Callable[[], None] | None = None,
    ) -> AsyncGenerator[JsonObject]:
        """Yield a consistent list page by page; ``Gone`` when the token expires between pages.

        ``limit`` is how many objects to ask for at most in a page, 0 for all at once, for as long as that fits.
        ``skipped`` is called for each object that is too large alone, and is left out; without it that is ``TooLarge``.
        """
        asked = dict(query or {})
        count = most = min(limit, self._bounds.objects)
        following = ""
        while True:
            if following:
                asked["continue"] = following
            try:
                page = await self._page(path, asked, count)
            except TooLarge:
                if count != 1:
                    count = max((count or self._bounds.objects) // 2, 1)
                    continue
                if skipped is None:
                    raise
                skipped()
                page = await self._row(path, asked)
            yield page
            count = min(2 * count, most or self._bounds.objects)
            following, previous = text(page, "metadata", "continue"), following
            if not following:
                return
            if following == previous:
                raise Malformed(200, "MalformedAnswer", f"GET {path}: the list continues at itself")

    async def _page(self, path: str, asked: Mapping[str, str], count: int) -> JsonObject:
        query = {**asked, "limit": str(count)} if count else asked
        page = await self._read(
            "GET", _target(path, query), timeouts=_LIST_TIMEOUTS, limits=self._bounds.page_of(count)
        )
        items = page.get("items")
        if self._turns is not None and isinstance(items, list) and len(items) > count > 0:
            raise Malformed(200, "MalformedAnswer", f"GET {path}: more objects in a page than were asked for")
        return page

    async def _row(self, path: str, asked: Mapping[str, str]) -> JsonObject:
        """Read the next object as a row without the object, and make it an empty page that continues behind it."""
        target = _target(path, {**asked, "limit": "1", "includeObject": "None"})
        as_table = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
        table = await self._read("GET", target, headers=as_table, timeouts=_LIST_TIMEOUTS)
        if text(table, "kind") != "Table":
            raise Malformed(200, "MalformedAnswer", f"GET {path}: one object is too large, and there is no table of it")
        return {"metadata": table.get("metadata"), "items": []}

    async def watch(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        opened: Callable[[], None] | None = None,
        skipped: Callable[[], None] | None = None,
        seconds: tuple[int, int] = WATCH_SECONDS,
    ) -> AsyncGenerator[WatchEvent]:
        """Yield the events of one watch connection until the server ends it; wrap it in ``contextlib.aclosing``.

        It is asked to last ``seconds``, from least to most, with bookmarks. ``opened`` is called once the server
        granted the watch; ``skipped`` for each event that is too large, which is ``TooLarge`` without it. Raises what
        the server's ERROR event says (``Gone``: list again), ``Unreachable`` if the connection breaks, and
        ``WatchHung`` if the server does not end it in time.
        """
        lasts = self._randint(*seconds)
        asked = {"allowWatchBookmarks": "true", "timeoutSeconds": str(lasts), **(query or {}), "watch": "1"}
        lines = LineBuffer(self._bounds.object.bytes, skipped, f"GET {path}")
        async with self._answer("GET", _target(path, asked), seconds=lasts + self._watch_margin) as answer:
            if opened is not None:
                opened()
            try:
                while chunk := await answer.chunk():
                    await self._turn()
                    for line in lines.feed(chunk):
                        event = parse_event(line, path, self._bounds.object.values, skipped)
                        if event is not None:
                            yield event
            except TimedOut:
                raise WatchHung(f"GET {path}: the server did not end the watch in its time") from None
        if lines.incomplete:
            raise Unreachable(f"GET {path}: the watch ended within an event")

    async def close(self) -> None:
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    async def _exchange(
        self, method: str, target: str, body: JsonObject, content_type: str = "application/json"
    ) -> JsonObject:
        try:
            data = json.dumps(body, separators=(",", ":")).encode()
        except (ValueError, RecursionError) as error:  # an object that was read may be nested too deep to be written
            why = f"{method} {target}: cannot be written ({type(error).__name__})"
            raise Malformed(0, "MalformedObject", why) from None
        return await self._read(method, target, data=data, headers={"Content-Type": content_type})

    async def _read(
        self,
        method: str,
        target: str,
        *,
        data: bytes | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
        timeouts: float = 1.0,
        limits: PageLimits | None = None,
    ) -> JsonObject:
        """Send one request and parse its answer, within so many request time limits."""
        limits = limits or self._bounds.object
        seconds = timeouts * self._request_timeout
        async with self._answer(method, target, data=data, headers=headers, seconds=seconds) as answer:
            body = await answer.body(limits.bytes)
            await self._turn()
            where = f"{method} {target.partition('?')[0]}"
            try:
                return parse_json(body, limits.values, duplicates=True)
            except TooManyValues as error:
                raise TooLarge(answer.status, f"{where}: {error}") from None
            except ValueError as error:
                got = answer.header("Content-Type").partition(";")[0].strip() or "no content type"
                detail = f"{where}: expected a JSON object, got {got}: {error}"
                raise Malformed(answer.status, "MalformedAnswer", detail) from None

    async def _turn(self) -> None:
        if self._turns is not None:
            await self._turns.turn()

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        target: str,
        *,
        data: bytes | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
        seconds: float | None = None,
    ) -> AsyncGenerator[ApiResponse]:
        """Send a request and yield its answer if the server granted it; raise its refusal otherwise."""
        where = f"{method} {target.partition('?')[0]}"
        if not self.may_send():
            raise Unreachable(f"{where}: not sent; the time in which this process may ask is over")
        self.requests += 1
        sent = {**_HEADERS, **headers}
        token = self._current_token()
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        status: int | None = None
        try:
            answer = await self._transport.request(
                method, target, headers=sent, data=data, seconds=seconds or self._request_timeout
            )
            try:
                status = answer.status
                self._note_date(answer.header("Date"))
                if not HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
                    refusal = await self._refusal(answer, where)
                    self.on_contact(refusal)
                    raise refusal
                self.on_contact(None)
                yield answer
            finally:
                answer.release()
        except Unreachable as error:
            if status is None:
                self.on_contact(error)
            raise
        finally:
            self.on_request(method, status)

    def _current_token(self) -> str | None:
        """Return the token, None if the endpoint has none; raises ``Unauthorized`` if its file never had one."""
        if self._token_file is not None and self._clock() >= self._token_due:
            with suppress(OSError, ValueError):
                content = self._token_file.read_text("ascii").strip()
                if content and is_visible(content):
                    self._token = content
            if self._token is None:
                why = f"no token in {self._token_file}; check the mounted service account"
                raise Unauthorized(401, "Unauthorized", why)
            self._token_due = self._clock() + _TOKEN_PERIOD
        return self._token

    def _note_date(self, date: str) -> None:
        """Remember the server's time (RFC 9110 §6.6.1) if it is another: many answers have the same second."""
        if date == self._date:
            return
        self._date = date
        with suppress(ValueError, OverflowError):
            moment = parsedate_to_datetime(date)
            self._server_time = moment.replace(tzinfo=moment.tzinfo or UTC), self._clock()

    async def _refusal(self, answer: ApiResponse, where: str) -> ApiError:
        """Read a refusal: a ``Status`` object, or whatever a proxy on the way wrote, of which only the type is kept."""
        if answer.status == HTTPStatus.UNAUTHORIZED:
            self._token_due = float("-inf")  # the file is read again before the next request
        try:
            body = await answer.body(answers.REFUSAL.bytes)
            await self._turn()
            status = parse_json(body, answers.REFUSAL.values, duplicates=True)
        except (ValueError, TooLarge):
            status: JsonObject = {"message": f"{where}: HTTP {answer.status} {answer.phrase} without a Status object"}
        fallback = answer.phrase or f"HTTP {answer.status}"
        return error_from_status(answer.status, status, fallback=fallback, retry_after=answer.header("Retry-After"))


def _target(path: str, query: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(query)}" if query else path
