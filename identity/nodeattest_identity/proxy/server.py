"""An HTTP server for proxies: kept connections, streamed responses, WebSockets.

Unauthenticated connections, where they can be distinguished, are few and short. A client that disconnects cancels its
request. Out of scope: responses, and limits of connections (``BoundedServer``).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import HttpVersion10, HttpVersion11, web

from nodeattest_identity.proxy.limits import MAX_FIELD, MAX_FIELDS, MAX_HEAD, MAX_LINE, ProxyLimits
from nodeattest_identity.proxy.refusals import Refusal, RefusalError, answer, reply
from nodeattest_serving.bounded_server import BindAddress, ConnectionLimits, UnauthenticatedLimits
from nodeattest_serving.http_server import HttpLimits, HttpListener, InvalidRequest, Reply

_VERSIONS: Final = (HttpVersion11, HttpVersion10)
_HANDSHAKES: Final = 256.0
"""A second, of clients that only their handshake authenticates: each has a quarter of a second at least."""
_INVALID: Final = {
    InvalidRequest.MALFORMED: Refusal.REQUEST_MALFORMED,
    InvalidRequest.HEADER_TOO_LARGE: Refusal.HEADERS_TOO_LARGE,
    InvalidRequest.HEADER_TOO_SLOW: Refusal.REQUEST_TOO_SLOW,
    InvalidRequest.INTERNAL_ERROR: Refusal.INTERNAL_ERROR,
}

log = logging.getLogger(__name__)

ProxyRequestHandler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
"""Handles a request; raises ``RefusalError``."""


class ProxyServer(HttpListener):
    """One address with one handler."""

    def __init__(
        self,
        handler: ProxyRequestHandler,
        address: BindAddress,
        tls: ssl.SSLContext | None,
        limits: ProxyLimits,
        *,
        refused: Callable[[Refusal], None] = lambda _: None,
        is_unauthenticated: Callable[[asyncio.BaseTransport], bool] | None = None,
    ) -> None:
        """``tls``: None for plain HTTP. ``refused`` is called for refusals before there is a request to handle.

        ``is_unauthenticated`` says of a connection that its client is not authenticated; None: not known of any
        connection.
        """
        self._proxy = handler
        self._refused = refused
        unauthenticated = None
        if is_unauthenticated is not None:
            unauthenticated = UnauthenticatedLimits(
                is_unauthenticated=is_unauthenticated,
                connections=limits.unauthenticated_connections,
                handshakes=_HANDSHAKES,
            )

        def lifetime(connection: asyncio.Transport) -> float | None:
            is_short = is_unauthenticated is not None and is_unauthenticated(connection)
            return limits.unauthenticated_seconds if is_short else None

        super().__init__(
            self._answer,
            address,
            tls,
            # Who connects is a proxy, and all its users come from one address: no lower limit of one client.
            ConnectionLimits(
                connections=limits.connections,
                connections_of_client=limits.connections,
                replaces_oldest=is_unauthenticated is None,
            ),
            HttpLimits(
                line=MAX_LINE,
                field=MAX_FIELD,
                fields=MAX_FIELDS,
                head=MAX_HEAD,
                header_seconds=limits.header_seconds,
                idle_seconds=limits.idle_seconds,
                unread_seconds=limits.unread_seconds,
            ),
            refuse=self._refuse,
            lifetime=lifetime,
            handler_cancellation=True,
            unauthenticated=unauthenticated,
        )

    def _refuse(self, kind: InvalidRequest) -> Reply:
        return reply(self._refusal(_INVALID[kind], "expected HTTP/1.1, got something else"))

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Respond to one request; an unexpected error is a 500, and logged."""
        try:
            # aiohttp accepts other versions, and limits no more than each field
            if request.version not in _VERSIONS:
                return answer(self._refusal(Refusal.REQUEST_MALFORMED, "expected HTTP/1.1 or 1.0"))
            if sum(len(name) + len(value) for name, value in request.raw_headers) > MAX_HEAD:
                return answer(self._refusal(Refusal.HEADERS_TOO_LARGE, f"expected at most {MAX_HEAD} bytes of header"))
            return await self._proxy(request)
        except RefusalError as error:
            return answer(error)
        except ConnectionError:
            raise  # the client has gone
        except Exception:
            log.exception("answering a request failed")
            return answer(RefusalError(Refusal.INTERNAL_ERROR, "a bug", close=True))

    def _refusal(self, refusal: Refusal, detail: str) -> RefusalError:
        self._refused(refusal)
        return RefusalError(refusal, detail, close=True)
