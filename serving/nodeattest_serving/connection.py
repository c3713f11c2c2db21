"""One connection of a listener, in HTTP/1.1: what it may send, and how long it may wait.

Promises: a connection that sent more than any request of ours has, or that took too long to send one, ends at once;
what is no HTTP is refused in our own words.
Leaves to others: TLS and how many there are (``listener``); aiohttp refuses every ambiguous framing, and stops reading
from one who sends requests faster than they are answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from aiohttp import web

from nodeattest_serving.replies import Reply, refusal
from nodeattest_serving.settings import ConnectionLimits

__all__ = ["Connection", "CountedServer", "HttpServer", "quiet_log", "response"]

_MAX_LINE: Final = 2048
"""Bytes of a request line; ours has 80."""
_MAX_FIELD: Final = 8190
_MAX_FIELDS: Final = 64
_USUAL: Final = {
    "Content-Type": "application/json",
    "Cache-Control": "no-cache, private",
    "X-Content-Type-Options": "nosniff",
    "Server": "nodeattest",
}
"""Headers of each answer that says nothing else."""


class Connection(web.RequestHandler):
    """aiohttp's connection, which ends when more came than any request of ours has.

    aiohttp keeps all that came until the connection ends, whatever its own limits refused of it.
    """

    most_bytes: int
    limits: ConnectionLimits
    room: int
    """Bytes that may come until the next answer."""
    _ends: float
    """When no further request is answered here, on the loop's clock."""
    _due: float | None = None
    """When the request that is waited for must be here; None while one is being answered."""
    _timer: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; bytes may have come before, with the end of the handshake."""
        loop = asyncio.get_running_loop()
        self._ends = loop.time() + self.limits.connection_seconds
        self._due = loop.time() + self._patience
        self._timer = loop.call_at(self._due, self._look)
        super().connection_made(transport)
        if self.room < 0 and self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """End."""
        self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take some bytes in."""
        self.room -= len(data)
        if self.room >= 0:
            super().data_received(data)
        elif self.transport is not None:
            self.transport.abort()

    def asked(self) -> None:
        """Hear that a request is being answered."""
        if self.limits.idle_seconds is not None:
            self._due = None

    def answered(self) -> bool:
        """Hear that it has its answer; tell whether another may follow."""
        idle = self.limits.idle_seconds
        now = asyncio.get_running_loop().time()
        if idle is None or now >= self._ends:
            return False
        self.room = self.most_bytes
        self._due = now + idle
        return True

    @property
    def _patience(self) -> float:
        idle = self.limits.idle_seconds
        return self.limits.connection_seconds if idle is None else idle

    def _look(self) -> None:
        """End the connection if what it waits for is overdue; one timer serves all its requests."""
        loop = asyncio.get_running_loop()
        due = loop.time() + self._patience if self._due is None else self._due
        if due > loop.time():
            self._timer = loop.call_at(due, self._look)
        elif self.transport is not None:
            self.transport.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Refuse what is no HTTP in our own words; aiohttp's quote the request, and tell our versions."""
        del request, exc, message
        bad = status < HTTPStatus.INTERNAL_SERVER_ERROR
        return response(refusal(HTTPStatus.BAD_REQUEST if bad else HTTPStatus.INTERNAL_SERVER_ERROR), last=True)


class CountedServer(web.Server):
    """aiohttp's server, which tells when a connection has ended."""

    ended: Callable[[web.RequestHandler], None]

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Note the end of a connection."""
        super().connection_lost(handler, exc)
        self.ended(handler)


class HttpServer(CountedServer):
    """The server of connections that are bounded in all."""

    most_bytes: int
    limits: ConnectionLimits

    def __call__(self) -> Connection:
        """Make a connection's protocol; aiohttp's own way does without limits that it does not know."""
        quiet = quiet_log()
        connection = Connection(
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
        connection.most_bytes = connection.room = self.most_bytes
        return connection


def quiet_log() -> logging.Logger:
    """Make a log that keeps nothing: aiohttp's own lines quote requests."""
    return logging.Logger("http", logging.CRITICAL + 1)  # noqa: LOG001 - it must be nobody's child


def response(reply: Reply, *, last: bool) -> web.Response:
    """Make aiohttp's response of an answer; ``last``: the connection ends after it."""
    made = web.Response(status=reply.status, body=reply.body, headers={**_USUAL, **reply.headers})
    if last:
        made.force_close()
    return made
