"""The HTTP server of a proxy: connections are kept, responses are streamed, WebSockets are possible.

Unauthenticated connections, where they can be distinguished, are few and short. A client that disconnects cancels its
request. Unauthenticated clients cannot fill the log.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

from aiohttp import HttpVersion10, HttpVersion11, web

from nodeattest_identity.proxy import refusals
from nodeattest_identity.proxy.forward import Forwarder
from nodeattest_identity.proxy.refusals import ProxyLimits, Refusal, RefusalError
from nodeattest_kube.periodic import RateLimiter
from nodeattest_serving.bounded_server import BindAddress, ConnectionLimits, UnauthenticatedLimits
from nodeattest_serving.http_server import HttpLimits, HttpListener, Reply

_VERSIONS: Final = (HttpVersion11, HttpVersion10)
_INVALID: Final = {
    HTTPStatus.BAD_REQUEST: Refusal.REQUEST_MALFORMED,
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: Refusal.HEADERS_TOO_LARGE,
    HTTPStatus.REQUEST_TIMEOUT: Refusal.REQUEST_TOO_SLOW,
    HTTPStatus.INTERNAL_SERVER_ERROR: Refusal.INTERNAL_ERROR,
}

log = logging.getLogger(__name__)


class ProxyServer(HttpListener):
    """One address, and the connections to upstreams."""

    cancels_requests = True

    def __init__(
        self,
        address: BindAddress,
        tls: ssl.SSLContext | None,
        limits: ProxyLimits,
        *,
        user_requests: int,
        clock: Callable[[], float],
        is_unauthenticated: Callable[[asyncio.BaseTransport], bool] | None = None,
    ) -> None:
        """``tls``: None for plain HTTP. ``user_requests``: of one user in flight. ``clock``: monotonic seconds.

        ``is_unauthenticated`` says of a connection that its client is not authenticated; None: not known of any.
        """
        self.limits = limits
        self.forwarder = Forwarder(limits)
        self._user_requests = user_requests
        self._held: Counter[str | None] = Counter()
        """Requests in flight, by user."""
        self._lines = RateLimiter(burst=20, per_second=2.0, clock=clock)
        self._is_unauthenticated = is_unauthenticated
        unauthenticated = None
        if is_unauthenticated is not None:
            most = limits.unauthenticated_connections
            unauthenticated = UnauthenticatedLimits(is_unauthenticated=is_unauthenticated, connections=most)
        super().__init__(
            address,
            tls,
            # Who connects is a proxy, and all its users come from one address: no lower limit of one client.
            ConnectionLimits(connections=limits.connections, connections_of_client=limits.connections),
            HttpLimits(
                line=refusals.MAX_LINE,
                field=refusals.MAX_FIELD,
                fields=refusals.MAX_FIELDS,
                head=refusals.MAX_HEAD,
                header_seconds=limits.header_seconds,
                idle_seconds=limits.idle_seconds,
                unread_seconds=limits.unread_seconds,
            ),
            unauthenticated=unauthenticated,
        )

    @abstractmethod
    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Handle a request; raises ``RefusalError``."""

    def count_invalid(self, refusal: Refusal, /) -> None:
        """Count a refusal of what is no request; for metrics."""

    @property
    def in_flight(self) -> int:
        return self._held.total()

    @contextmanager
    def in_progress(self, user: str | None) -> Generator[None]:
        """Count a request inside the context; raises ``RefusalError``. ``user``: None for unauthenticated ones."""
        if self._held[user] >= self._user_requests:
            raise RefusalError(Refusal.USER_BUSY, f"expected at most {self._user_requests} requests at once, got more")
        self._held[user] += 1
        try:
            yield
        finally:
            self._held -= Counter((user,))

    def log_limited(self, kind: str, message: str) -> None:
        """Log a line about an unauthenticated or refused request, of each kind only so many."""
        log.log(logging.INFO if self._lines.take(kind) else logging.DEBUG, "%s", message)

    async def start(self) -> None:
        await self.forwarder.open()
        await super().start()

    async def stop(self) -> None:
        await super().stop()
        await self.forwarder.close()

    def lifetime(self, connection: asyncio.Transport, /) -> float | None:
        is_short = self._is_unauthenticated is not None and self._is_unauthenticated(connection)
        return self.limits.unauthenticated_seconds if is_short else None

    def refuse(self, status: HTTPStatus) -> Reply:
        return self._invalid(_INVALID[status], "expected HTTP/1.1, got something else").reply()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Respond to one request; an unexpected error is a 500, and logged."""
        try:
            # aiohttp accepts other versions, and limits no more than each field
            if request.version not in _VERSIONS:
                return self._invalid(Refusal.REQUEST_MALFORMED, "expected HTTP/1.1 or 1.0").response()
            if sum(len(name) + len(value) for name, value in request.raw_headers) > refusals.MAX_HEAD:
                detail = f"expected at most {refusals.MAX_HEAD} bytes of header"
                return self._invalid(Refusal.HEADERS_TOO_LARGE, detail).response()
            return await self.handle(request)
        except RefusalError as error:
            return error.response()
        except Exception as error:
            transport = request.transport
            if isinstance(error, ConnectionError) and (transport is None or transport.is_closing()):
                raise  # the client has gone
            log.exception("internal error while answering a request")
            return RefusalError(Refusal.INTERNAL_ERROR, "a bug", close=True).response()

    def _invalid(self, refusal: Refusal, detail: str) -> RefusalError:
        self.count_invalid(refusal)
        return RefusalError(refusal, detail, close=True)
