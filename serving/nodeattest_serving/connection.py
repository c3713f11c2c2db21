"""One HTTP/1.1 connection of a listener, bounded in bytes and in time.

A connection that sends more bytes than a request may have, or takes too long to send one, is aborted. A malformed
request gets a fixed refusal that quotes nothing of it. Requests are scheduled fairly among clients (``CountedServer``).
Leaves to others: TLS and the number of connections (``listener``), pipelining (``sequential_connection``); aiohttp
refuses ambiguous framings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final, cast

from aiohttp import web

from nodeattest_serving.bounded_server import client_of
from nodeattest_serving.fair_scheduler import FairScheduler, ScheduleKey
from nodeattest_serving.read_ahead import not_read_while_waiting
from nodeattest_serving.replies import Reply, refusal
from nodeattest_serving.sequential_connection import SequentialConnection, new_request
from nodeattest_serving.settings import ConnectionLimits

__all__ = ["BoundedConnection", "CountedServer", "HttpServer", "quiet_log", "requester", "send"]

_MAX_LINE: Final = 2048
"""Bytes of a request line; ours has 80."""
_MAX_FIELD: Final = 8190
_MAX_FIELDS: Final = 64
_UNSENT: Final = 64 * 1024
"""Write buffer for a slow client; asyncio's TLS buffers eight times as much."""
_MAX_WAITING: Final = 768
"""Requests that wait; with the connections that wait for their handshake (``bounded_server``), 1,024 in all."""
_USUAL: Final = {
    "Content-Type": "application/json",
    "Cache-Control": "no-cache, private",
    "X-Content-Type-Options": "nosniff",
    "Server": "nodeattest",
}
"""Headers of each answer that says nothing else."""


class BoundedConnection(SequentialConnection):
    """aiohttp's connection with a limit of bytes per request.

    aiohttp keeps all received bytes until the connection ends, even those that its own limits refuse.
    """

    most_bytes: int
    limits: ConnectionLimits
    bytes_left: int
    """Bytes that may come until the next answer."""
    _ends: float
    """Loop time after which no further request is answered on this connection."""
    _due: float | None = None
    """Loop time by which the next request must have come; None while one is being answered."""
    _timer: asyncio.TimerHandle | None = None
    """None until the TLS handshake is over; asyncio also reports the end of a connection whose handshake failed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the timer; bytes may have come with the end of the handshake."""
        cast("asyncio.WriteTransport", transport).set_write_buffer_limits(high=_UNSENT)
        loop = asyncio.get_running_loop()
        self._ends = loop.time() + self.limits.connection_seconds
        self._due = loop.time() + self._idle_limit
        self._timer = loop.call_at(self._due, self._check_deadline)
        super().connection_made(transport)
        if self.bytes_left < 0 and self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count received bytes; abort above the limit."""
        self.bytes_left -= len(data)
        if self.bytes_left >= 0:
            super().data_received(data)
        elif self.transport is not None:
            self.transport.abort()

    def request_started(self) -> None:
        """Stop the idle timer: a request is being answered."""
        if self.limits.idle_seconds is not None:
            self._due = None

    def request_finished(self) -> bool:
        """Restart the idle timer after an answer; return whether another request may follow."""
        idle = self.limits.idle_seconds
        now = asyncio.get_running_loop().time()
        if idle is None or now >= self._ends:
            return False
        self.bytes_left = self.most_bytes
        self._due = now + idle
        return True

    @property
    def _idle_limit(self) -> float:
        idle = self.limits.idle_seconds
        return self.limits.connection_seconds if idle is None else idle

    def _check_deadline(self) -> None:
        """Abort the connection if its request is overdue; one timer serves all its requests."""
        loop = asyncio.get_running_loop()
        due = loop.time() + self._idle_limit if self._due is None else self._due
        if due > loop.time():
            self._timer = loop.call_at(due, self._check_deadline)
        elif self.transport is not None:
            self.transport.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Refuse malformed HTTP with a fixed answer; aiohttp's would quote the request and name versions."""
        del request, exc, message
        bad = status < HTTPStatus.INTERNAL_SERVER_ERROR
        return _response(refusal(HTTPStatus.BAD_REQUEST if bad else HTTPStatus.INTERNAL_SERVER_ERROR), last=True)


class CountedServer(web.Server):
    """aiohttp's server with a callback for the end of a connection; schedules its requests (``FairScheduler``).

    aiohttp answers whatever came in one pass of the loop. A request that waits is forgotten when its connection ends.
    """

    ended: Callable[[web.RequestHandler], None] | None = None

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        *,
        handler_cancellation: bool = False,
        per_pass: int = 1,
        schedule_by: Callable[[web.BaseRequest], ScheduleKey] | None = None,
        busy: Callable[[], web.StreamResponse] | None = None,
    ) -> None:
        """``handler_cancellation``: cancel that of a client that disconnects. ``per_pass``: see ``FairScheduler``.

        ``schedule_by``: None for the client's address. ``busy``: makes the answer where too many wait; None for 503.
        """
        scheduler = FairScheduler(_MAX_WAITING, per_pass=per_pass)
        self._waiting: dict[web.RequestHandler, asyncio.Task[object]] = {}
        """What handles the request of a connection, while that waits."""
        schedule_by = schedule_by or _by_address
        busy = busy or _busy

        async def scheduled(request: web.BaseRequest) -> web.StreamResponse:
            # Else its body is read before anybody takes it.
            with not_read_while_waiting(request.protocol, request.content):
                may_begin = await self._wait(scheduler, schedule_by(request), request.protocol)
            response = await handler(request) if may_begin else busy()
            declined = "Upgrade" in request.headers and response.status != HTTPStatus.SWITCHING_PROTOCOLS
            pipelined = isinstance(request.protocol, SequentialConnection) and request.protocol.is_pipelined
            if declined or pipelined:  # aiohttp loses some of what comes behind an upgrade
                response.force_close()
            return response

        super().__init__(scheduled, request_factory=new_request, handler_cancellation=handler_cancellation)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Note the end of a connection."""
        super().connection_lost(handler, exc)
        waiting = self._waiting.get(handler)
        if waiting is not None:
            waiting.cancel()
        if self.ended is not None:
            self.ended(handler)

    async def _wait(self, scheduler: FairScheduler, key: ScheduleKey, connection: web.RequestHandler) -> bool:
        """Wait as ``FairScheduler.wait`` does, at most until the connection ends."""
        task = asyncio.current_task()
        if task is not None:
            self._waiting[connection] = task
        try:
            return await scheduler.wait(key)
        finally:
            self._waiting.pop(connection, None)


class HttpServer(CountedServer):
    """A server of ``BoundedConnection``."""

    most_bytes: int
    limits: ConnectionLimits

    def __call__(self) -> BoundedConnection:
        """Make a connection's protocol; aiohttp's own way does without limits that it does not know."""
        quiet = quiet_log()
        connection = BoundedConnection(
            self,
            loop=asyncio.get_running_loop(),
            access_log=quiet,
            logger=quiet,
            max_line_size=_MAX_LINE,
            max_field_size=_MAX_FIELD,
            max_headers=_MAX_FIELDS,
            lingering_time=0.0,
        )
        connection.limits = self.limits
        connection.most_bytes = connection.bytes_left = self.most_bytes
        return connection


def requester(request: web.BaseRequest) -> str:
    """Name the client of a request (``client_of``)."""
    transport = request.transport
    return client_of(None if transport is None else transport.get_extra_info("peername"))


def _by_address(request: web.BaseRequest) -> ScheduleKey:
    return ScheduleKey(requester(request))


def _busy() -> web.StreamResponse:
    return _response(refusal(HTTPStatus.SERVICE_UNAVAILABLE), last=True)


def quiet_log() -> logging.Logger:
    """Make a logger without output: aiohttp's own lines quote requests."""
    return logging.Logger("http", logging.CRITICAL + 1)  # noqa: LOG001 - a logger without a parent, so that no handler gets its lines


async def send(request: web.BaseRequest, reply: Reply, *, last: bool) -> web.StreamResponse:
    """Write a reply, and wait until the client has read all but some 200 KiB; ``last``: the connection ends after it.

    By pieces: asyncio's TLS takes a single one whole, however large, and says nothing of what waits.
    """
    if len(reply.body) <= _UNSENT:
        return _response(reply, last=last)
    streamed = web.StreamResponse(status=reply.status, headers={**_USUAL, **reply.headers})
    streamed.content_length = len(reply.body)
    if last:
        streamed.force_close()
    await streamed.prepare(request)
    for start in range(0, len(reply.body), _UNSENT):
        await streamed.write(reply.body[start : start + _UNSENT])
    await streamed.write_eof()
    return streamed


def _response(reply: Reply, *, last: bool) -> web.Response:
    """Convert a reply to aiohttp's response."""
    made = web.Response(status=reply.status, body=reply.body, headers={**_USUAL, **reply.headers})
    if last:
        made.force_close()
    return made
