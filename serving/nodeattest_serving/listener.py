"""An HTTP server for unauthenticated clients, whose handler returns a ``Reply``.

A connection ends after one answer, or, with ``idle_seconds``, when no further request comes in that time; and after
``connection_seconds``. Forwarded addresses are ignored.
Out of scope: the answers (``Handler``), and how much of a body they read.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Collection
from http import HTTPStatus
from typing import Final

from aiohttp import web

from nodeattest_kube.addresses import IPNetwork
from nodeattest_kube.rate_limiter import RateLimiter
from nodeattest_serving.bounded_server import BindAddress, ConnectionLimits, UnauthenticatedLimits, client_of
from nodeattest_serving.http_server import HttpLimits, HttpListener, InvalidRequest, ServerConnection
from nodeattest_serving.replies import USUAL_HEADERS, Reply, refusal

__all__ = ["Handler", "Listener", "client_of"]

_MAX_LINE: Final = 2048
"""Bytes of a request line; ours has 80."""
_MAX_FIELD: Final = 8190
_MAX_FIELDS: Final = 64
_MAX_HEAD: Final = 32 * 1024
"""Bytes of request line and header: a line and a dozen headers, one of 4 KiB."""

_PIECE: Final = 64 * 1024

log = logging.getLogger(__name__)

Handler = Callable[[web.BaseRequest, str], Awaitable[Reply]]
"""Answers a request of a client (``client_of``)."""


class Listener(HttpListener):
    """A server on one address with one handler."""

    def __init__(
        self,
        handler: Handler,
        address: BindAddress,
        tls: ssl.SSLContext | None,
        limits: ConnectionLimits,
        *,
        arrivals: RateLimiter | None = None,
        unauthenticated: UnauthenticatedLimits | None = None,
        allowed: Collection[IPNetwork] = (),
    ) -> None:
        """Others than ``handler``: see ``BoundedServer``."""
        self._answer = handler
        self._limits = limits
        idle = limits.connection_seconds if limits.idle_seconds is None else limits.idle_seconds
        lifetime = limits.connection_seconds + (limits.idle_seconds or 0.0)
        super().__init__(
            self._handle,
            address,
            tls,
            limits,
            HttpLimits(
                line=_MAX_LINE,
                field=_MAX_FIELD,
                fields=_MAX_FIELDS,
                head=_MAX_HEAD,
                header_seconds=idle,
                idle_seconds=idle,
                unread_seconds=limits.connection_seconds,
            ),
            refuse=_refuse,
            lifetime=lambda _: lifetime,
            arrivals=arrivals,
            unauthenticated=unauthenticated,
            allowed=allowed,
        )

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; an exception is logged and answered with 500."""
        transport = request.transport
        client = client_of(None if transport is None else transport.get_extra_info("peername"))
        try:
            reply = await self._answer(request, client)
        except Exception:
            log.exception("answering a request failed")
            reply = refusal(HTTPStatus.INTERNAL_SERVER_ERROR)
        try:
            return await _send(request, reply, last=self._is_last(request))
        finally:
            reply.written()

    def _is_last(self, request: web.BaseRequest) -> bool:
        """Whether the connection ends after this answer."""
        connection, now = request.protocol, asyncio.get_running_loop().time()
        opened = connection.opened if isinstance(connection, ServerConnection) else now
        return self._limits.idle_seconds is None or now >= opened + self._limits.connection_seconds


async def _send(request: web.BaseRequest, reply: Reply, *, last: bool) -> web.StreamResponse:
    """Write a reply, and wait until the client has read all but some 200 KiB; ``last``: the connection ends after it.

    By pieces: asyncio's TLS takes a single one whole, however large, and says nothing of what waits.
    """
    answer = web.StreamResponse(status=reply.status, headers={**USUAL_HEADERS, **reply.headers})
    answer.content_length = len(reply.body)
    if last:
        answer.force_close()
    await answer.prepare(request)
    if request.method != "HEAD":
        for start in range(0, len(reply.body), _PIECE):
            await answer.write(reply.body[start : start + _PIECE])
    await answer.write_eof()
    return answer


def _refuse(kind: InvalidRequest) -> Reply:
    return refusal(
        HTTPStatus.INTERNAL_SERVER_ERROR if kind is InvalidRequest.INTERNAL_ERROR else HTTPStatus.BAD_REQUEST
    )
