"""Limits of a proxy: bytes, seconds and connections, requests of one user, and log lines about refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from nodeattest_identity.proxy.refusals import Refusal, RefusalError
from nodeattest_kube.periodic import RateLimiter

CONNECTION_BYTES: Final = 300 * 1024
"""Memory of one TLS connection, nearly all of it TLS buffers."""
STALLED_BYTES: Final = 2200 * 1024
"""Measured memory of a stream whose client does not read, with TLS to client and upstream."""

MAX_LINE: Final = 8190
"""Bytes of a request line."""
MAX_FIELD: Final = 8190
"""Bytes of one header field."""
MAX_FIELDS: Final = 128
MAX_HEAD: Final = 32 * 1024
"""Bytes of request line and header together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyLimits:
    """Configurable limits; seconds are of a monotonic clock."""

    connections: int = 4096
    """At once, without unauthenticated ones; an idle one costs some 25 KiB, with TLS ``CONNECTION_BYTES``."""
    unauthenticated_connections: int = 64
    """At once, in addition, handshakes in progress included: others than the front proxy only get documents."""
    unauthenticated_seconds: float = 15.0
    """Lifetime of an unauthenticated connection: to fetch a document takes milliseconds."""
    upstream_connections: int = 4096
    """To all upstreams at once."""
    header_seconds: float = 10.0
    """From the first byte of a request, or of a connection, to the end of its header."""
    idle_seconds: float = 120.0
    """Between two requests of a connection: longer than kube-apiserver keeps an idle one (90 s, client-go)."""
    body_idle_seconds: float = 30.0
    """Between two pieces of a request's body."""
    unread_seconds: float = 30.0
    """How long a response of our own waits for a client that does not read."""
    forwarded_unread_seconds: float = 120.0
    """The same for a forwarded response or WebSocket, whose client may be busy for a while."""
    connect_seconds: float = 5.0
    """To reach the upstream."""
    answer_seconds: float = 60.0
    """From the end of a request's body to the upstream's response header."""
    request_seconds: float = 3600.0
    """For a whole request, streamed response or WebSocket: a revoked credential ends by then."""
    max_body: int | None = None
    """Bytes of a request's body; None: the upstream decides."""


def refusal_lines(clock: Callable[[], float]) -> RateLimiter:
    """Limit log lines about refused requests, by kind: unauthenticated clients must not fill the log."""
    return RateLimiter(burst=20, per_second=2.0, clock=clock)


class UserRequests:
    """Requests in flight, by user."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: Counter[str | None] = Counter()

    @property
    def total(self) -> int:
        """Number of requests in flight."""
        return self._held.total()

    @contextmanager
    def hold(self, user: str | None) -> Generator[None]:
        """Count a request inside the context; raises ``RefusalError``. ``user``: None for unauthenticated ones."""
        if self._held[user] >= self._limit:
            raise RefusalError(Refusal.USER_BUSY, f"expected at most {self._limit} requests at once, got more")
        self._held[user] += 1
        try:
            yield
        finally:
            self._held -= Counter((user,))
