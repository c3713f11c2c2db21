"""Requests to one API server: kept connections, without retries, redirects, cookies or settings of the machine.

Promises: a request is sent once, and once more where a connection that was used before was closed without a byte of an
answer, if doing it twice is as doing it once (GET, PUT, DELETE): the server may have seen the first one, so the second
one's Conflict or NotFound may be about our own write. A connection goes back only when its answer was read
to its end. Every foreign exception becomes ``Unreachable``; a redirect is an answer, never followed (a hostile API
server must not aim our requests at something else); no body is unpacked. No socket is left open by ``close``.
Leaves to others: HTTP (``http1``), TLS, addresses and proxies (``dial``), what the bytes mean (``client``).
This client is our own, since it takes a third of aiohttp's time (docs/decisions.md).
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from nodeattest_kube.dial import Dialer, ProxyFailed, Resolver
from nodeattest_kube.errors import TimedOut, TooLarge, Unreachable
from nodeattest_kube.http1 import Disconnected, Head, HttpConnection, HttpError, Limits
from nodeattest_kube.input_scheduler import ClusterInput
from nodeattest_kube.kubeconfig import ApiEndpoint
from nodeattest_parsing.printable import one_line

__all__ = ["ApiResponse", "Limits", "Transport"]

_CONNECTIONS: Final = 100
"""At most this many at once to one API server; who needs another waits."""
_KEEP_ALIVE: Final = 60.0
"""Seconds an idle connection is kept: below kube-apiserver's idle limit of 90 s (Go's http.DefaultTransport)."""
_REPEATABLE: Final = frozenset({"GET", "PUT", "DELETE"})
"""RFC 9110 §9.2.2, of the methods that we send."""
_TARGET: Final = re.compile(r"/[!-~]*")
_FIELD: Final = re.compile(r"[\t -~]*")
"""What may be on a request's lines: no line ends, and no bytes that two servers could read differently."""
_SUBJECT: Final = 128
"""Characters of a CA's subject that a message shows; whoever wrote the kubeconfig chose it."""
_NAMED_CAS: Final = 2
"""Of a bundle, in a message."""
_GOODBYE: Final = 0.25
"""Seconds in which connections may close in order when the client is closed."""
_GOODBYE_STEPS: Final = 50


class ApiResponse:
    """One HTTP answer whose body has not been read yet; ``release`` it."""

    def __init__(self, pool: _Pool, connection: HttpConnection, head: Head, where: str) -> None:
        self._pool = pool
        self._connection = connection
        self._where = where
        self.status = head.status
        self.phrase = head.phrase
        self.content_type = head.content_type
        self.retry_after = head.retry_after
        self.date = head.date

    async def body(self, limit: int) -> bytes:
        """Read the whole body; ``Unreachable`` when it is cut, ``TooLarge`` as soon as it is over ``limit`` bytes."""
        parts: list[bytes] = []
        size = 0
        while chunk := await self.chunk():
            size += len(chunk)
            if size > limit:
                raise TooLarge(self.status, f"{self._where}: the answer is larger than {limit} bytes")
            parts.append(chunk)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def chunk(self) -> bytes:
        """Wait for the next bytes of the body; empty at its end."""
        try:
            return await self._connection.read()
        except TimeoutError as error:
            raise TimedOut(f"{self._where}: {_explain(error)}") from None
        except (HttpError, OSError) as error:
            raise Unreachable(f"{self._where}: {_explain(error)}") from None

    def release(self) -> None:
        """Give the connection back, or close it where the answer was not read to its end."""
        self._pool.release(self._connection)


class _Pool:
    """The connections to one server."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._free = asyncio.Semaphore(_CONNECTIONS)
        self._used: set[HttpConnection] = set()
        self._idle: list[tuple[float, HttpConnection]] = []
        """Since when each is idle, on the loop's clock; the last one is used next."""
        self._sweeper: asyncio.TimerHandle | None = None

    async def take(self, limits: Limits, deadline: float, *, fresh: bool) -> HttpConnection:
        """Return a connection of which nobody else has the use; ``fresh``: one that nobody used before."""
        if not fresh and not self._free.locked():
            await self._free.acquire()  # does not wait
            kept = self._pop()
            if kept is not None:
                return kept
            self._free.release()
        async with asyncio.timeout_at(None if deadline == math.inf else deadline):
            await self._free.acquire()
            try:
                made = (None if fresh else self._pop()) or await self._dialer.dial(limits.connect)
            except BaseException:
                self._free.release()
                raise
        self._used.add(made)
        return made

    def _pop(self) -> HttpConnection | None:
        """Take the connection that was used last, if it still is good."""
        oldest = asyncio.get_running_loop().time() - _KEEP_ALIVE
        while self._idle:
            since, kept = self._idle.pop()
            if since > oldest and kept.is_reusable:
                self._used.add(kept)
                return kept
            kept.close()
        return None

    def release(self, connection: HttpConnection) -> None:
        """Take a connection back."""
        if connection not in self._used:
            return
        self._used.remove(connection)
        self._free.release()
        if not connection.is_reusable:
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        self._idle.append((loop.time(), connection))
        if self._sweeper is None:
            self._sweeper = loop.call_later(_KEEP_ALIVE, self._sweep)

    def _sweep(self) -> None:
        """Close what nobody uses."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - _KEEP_ALIVE
        for since, kept in self._idle:
            if since <= oldest or not kept.is_reusable:
                kept.close()
        self._idle = [each for each in self._idle if each[0] > oldest and each[1].is_reusable]
        self._sweeper = loop.call_later(_KEEP_ALIVE, self._sweep) if self._idle else None

    async def close(self) -> None:
        """Close every connection, and see that every socket is closed."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in (*self._used, *(kept for _since, kept in self._idle)):
            connection.close()
        self._idle.clear()
        if not await self._are_closed():
            for left in self._dialer.sockets:
                with suppress(OSError):
                    left.shutdown(socket.SHUT_RDWR)
            await self._are_closed()

    async def _are_closed(self) -> bool:
        """Give open sockets a moment to close."""
        for _ in range(_GOODBYE_STEPS):
            if all(each.fileno() == -1 for each in self._dialer.sockets):
                return True
            await asyncio.sleep(_GOODBYE / _GOODBYE_STEPS)
        return False


class Transport:
    """Requests to one endpoint; no state but the connection pool."""

    def __init__(self, endpoint: ApiEndpoint) -> None:
        self._server = endpoint.server
        self._server_name = endpoint.tls_server_name
        self._dialer = Dialer(endpoint)
        self._prefix = urlsplit(self._server).path
        self._pool = _Pool(self._dialer)
        self._ca_pem = endpoint.ca_pem
        self._closed = False

    def schedule_input(self, turns: ClusterInput) -> None:
        """Let connections that are made from now on receive in turns."""
        self._dialer.turns = turns

    async def request(
        self, method: str, target: str, *, headers: Mapping[str, str], data: bytes | None, limits: Limits
    ) -> ApiResponse:
        """Send a request and return its answer, which the caller releases."""
        if self._closed:
            raise Unreachable("the client is closed")
        where = f"{method} {self._server}{target.partition('?')[0]}"
        deadline = math.inf if limits.total is None else asyncio.get_running_loop().time() + limits.total
        try:
            request = self._encoded(method, target, headers, data)
            connection, head = await self._send(method, request, limits, deadline)
        # ValueError: a host name that IDNA or TLS cannot take, such as one with a label of 64 characters.
        except (TimeoutError, HttpError, ProxyFailed, OSError, ValueError) as error:
            raise Unreachable(f"{where}: {self._of_certificate(error)}{_explain(error)}") from None
        self._dialer.refused = ""  # another address of the name may have been refused meanwhile
        return ApiResponse(self._pool, connection, head, where)

    def _encoded(self, method: str, target: str, headers: Mapping[str, str], data: bytes | None) -> bytes:
        """Write a request's head, and its body behind it."""
        path = self._prefix + target
        if not _TARGET.fullmatch(path) or not all(map(_FIELD.fullmatch, headers.values())):
            raise ValueError("a path or a header of other characters than visible ASCII")
        fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        length = "" if data is None else f"Content-Length: {len(data)}\r\n"
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._dialer.authority}\r\n{fields}{length}\r\n".encode("ascii")
        return head if data is None else head + data

    async def _send(self, method: str, request: bytes, limits: Limits, deadline: float) -> tuple[HttpConnection, Head]:
        """Send on a kept connection or a new one; on a new one once more where a kept one was closed meanwhile."""
        fresh = False
        while True:
            connection = await self._pool.take(limits, deadline, fresh=fresh)
            try:
                return connection, await connection.send(request, deadline=deadline, silence=limits.silence)
            except BaseException as error:
                self._pool.release(connection)
                gone = isinstance(error, Disconnected | ConnectionError) and not connection.has_begun
                if fresh or not gone or not connection.answers or method not in _REPEATABLE:
                    raise
                fresh = True

    def _of_certificate(self, error: BaseException) -> str:
        """Name what was expected of the server's certificate, where that was not met."""
        if not isinstance(error, ssl.SSLCertVerificationError):
            return ""
        name = self._server_name or self._dialer.host
        return f"expected a certificate for {name} by {_title_of_cas(self._ca_pem)}; got another: "

    @property
    def refused_address(self) -> str:
        """Say why the last connection was not begun, because of its address; empty where the server answered since."""
        return self._dialer.refused

    def use_resolver(self, resolver: Resolver) -> None:
        """Have host names looked up by this, from the first request on."""
        self._dialer.resolver = resolver

    async def close(self) -> None:
        """Close every connection and let their TLS goodbyes leave."""
        self._closed = True
        await self._pool.close()


def _title_of_cas(ca_pem: str | None) -> str:
    """Name the CAs that an endpoint trusts: subject and fingerprint of the first ones."""
    if ca_pem is None:
        return "a CA of this machine"
    try:
        found = x509.load_pem_x509_certificates(ca_pem.encode())
    except ValueError:
        return "a CA of the kubeconfig"
    named = [f"CA {_subject(one)} (sha256:{one.fingerprint(hashes.SHA256()).hex()})" for one in found[:_NAMED_CAS]]
    more = [f"{len(found) - _NAMED_CAS} more"] if len(found) > _NAMED_CAS else []
    return " or ".join([*named, *more])


def _subject(certificate: x509.Certificate) -> str:
    try:
        subject = certificate.subject.rfc4514_string()
    except ValueError:
        return "(no subject)"
    return one_line(subject, _SUBJECT) or "(no subject)"


def _explain(error: BaseException) -> str:
    """Say what went wrong below the API; the libraries' texts name hosts and system errors, never credentials."""
    if isinstance(error, TimeoutError):
        return "no answer within the time limit"
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        named = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
        return named or type(error).__name__
    return str(error) if isinstance(error, HttpError | ProxyFailed) else f"{type(error).__name__}: {error}"
