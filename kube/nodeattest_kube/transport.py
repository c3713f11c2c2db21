"""Requests to one API server by aiohttp's client: kept connections, without redirects, cookies or the environment.

Promises: a request is sent once, and once more where a connection was closed without an answer, if doing it twice is as
doing it once (GET, PUT, DELETE). The server may have seen the first one, so the second one's Conflict or NotFound may
be about our own write. Every foreign exception becomes ``Unreachable``, in words without answers or credentials.
A redirect is an answer, never followed (a hostile API server must not aim our requests at something else); no body is
unpacked. An answer that grants something says itself where it ends: anybody on the way can end a connection.
Leaves to others: addresses and pieces (``sockets``), what the bytes mean (``client``).
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, cast
from weakref import WeakValueDictionary

from aiohttp import StreamReader
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import Connection

from nodeattest_kube.addresses import AddressRefused, AddressRules
from nodeattest_kube.input_scheduler import ClusterInput

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
import math
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

import aiohttp
from yarl import URL

from nodeattest_kube.errors import TimedOut, TooLarge, Unreachable, WatchHung
from nodeattest_kube.kubeconfig import ApiEndpoint, tls_context

AddressInfos = Sequence[tuple[int, int, int, str, Any]]
"""What ``getaddrinfo`` returns: family, type, protocol, canonical name, address."""
Resolver = Callable[[str, int], Awaitable[AddressInfos]]
"""Looks a host name up; raises OSError."""

_READ: Final = 1 << 14
"""Bytes of one read; asyncio would take 256 KiB."""
_BEFORE_ANSWER: Final = 1 << 16
"""Bytes, encrypted, that may come before the head of an answer was read. Go writes some hundreds, after a handshake of
some thousands."""
_HONEST: Final = 1 << 13
"""Bytes that a handshake takes, or a small answer."""
_SECONDS_A_READ: Final = 50e-6
_SECONDS_A_BYTE: Final = 0.25e-6
"""What is charged before an answer, for bytes beyond the honest ones: records of one byte take 5 µs for 23 bytes."""
MOST_ADDRESSES: Final = 4
"""Addresses of one family that a name may lead to."""
_DEAD_PEER: Final = 30
"""Seconds without any TCP acknowledgement until a connection counts as dead (client-go: HTTP/2 ping after 30 s)."""


class ApiSocket(socket.socket):
    """A socket whose dead peer the kernel notices, idle or not (RFC 1122 §4.2.3.6, RFC 5482)."""

    def __init__(self, family: int, kind: int, protocol: int, turns: ClusterInput | None) -> None:
        super().__init__(family, kind, protocol)
        self.turns = turns
        self.expect_answer()
        self.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if sys.platform == "linux":
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _DEAD_PEER // 2)
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _DEAD_PEER // 6)
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_PEER * 1000)

    def expect_answer(self) -> None:
        """Let the head of another answer come."""
        self._room = _BEFORE_ANSWER
        self.on_input: Callable[[], None] | None = None
        """Called after each read, once the head of an answer was read."""

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """Receive some bytes; raises OSError where too many came before an answer."""
        data = super().recv(min(bufsize, _READ), flags)
        self._count(len(data))
        return data

    def recv_into(self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0) -> int:
        """Receive some bytes; raises OSError where too many came before an answer."""
        count = super().recv_into(memoryview(buffer)[:_READ], nbytes, flags)
        self._count(count)
        return count

    def _count(self, count: int) -> None:
        if self.on_input is not None:
            self.on_input()
            return
        self._room -= count
        if self.turns is not None:
            beyond = max(0, min(count, _BEFORE_ANSWER - _HONEST - self._room))
            self.turns.charge(_SECONDS_A_READ + beyond * _SECONDS_A_BYTE)
        if self._room < 0:
            raise ConnectionAbortedError(f"more than {_BEFORE_ANSWER} bytes before an answer")


class SocketFactory:
    """Opens the sockets to one server, or to its proxy."""

    def __init__(self, addresses: AddressRules | None) -> None:
        self._addresses = addresses
        self.turns: ClusterInput | None = None
        """In which what is received is decrypted; None: as it comes."""
        self.refused = ""
        """Why the last connection was not begun; empty where it was, and once the server answered."""
        self._by_number: WeakValueDictionary[int, ApiSocket] = WeakValueDictionary()

    def __call__(self, address: tuple[Any, ...]) -> ApiSocket:
        """Open a socket for what ``connect`` gets next; raises OSError for a refused address."""
        if self._addresses is not None:
            try:
                self._addresses.check(str(address[4][0]))
            except AddressRefused as refused:
                self.refused = str(refused)
                raise
            self.refused = ""
        opened = ApiSocket(address[0], address[1], address[2], self.turns)
        self._by_number[opened.fileno()] = opened
        return opened

    def of(self, connection: Connection) -> ApiSocket:
        """Return the socket of a connection; raises ConnectionError if it is closed."""
        transport = connection.transport
        number = -1 if transport is None else transport.get_extra_info("socket").fileno()
        if number == -1:
            raise ConnectionResetError
        return self._by_number[number]


class _Limited(Protocol):
    """What a TLS transport has besides what typeshed knows of transports."""

    def set_read_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Stop reading the socket at so many bytes that are not decrypted."""
        ...


class PacedInput:
    """The body of one answer, as it is decrypted: a piece in each turn, while somebody waits for it."""

    def __init__(
        self, received: ApiSocket, turns: ClusterInput, transport: asyncio.Transport, body: StreamReader
    ) -> None:
        self._socket, self._turns, self._transport, self._body = received, turns, transport, body
        self._is_wanted = False
        self._has_come = True
        """Whether bytes may wait that are not decrypted."""
        self.waits = False
        """Whether a turn is waited for: it is not the peer who is silent."""
        cast("_Limited", transport).set_read_buffer_limits(_READ)
        transport.pause_reading()
        received.on_input = self._come

    def want(self) -> None:
        """Decrypt a piece in the next turn, or in the first one after bytes came."""
        if self._is_over():
            return
        self._transport.pause_reading()  # aiohttp may have started it
        self._is_wanted = True
        self._wait_for_turn()

    def got(self) -> None:
        """Decrypt nothing more until somebody wants it."""
        self._is_wanted = False

    def _come(self) -> None:
        self._has_come = True
        self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        if self._is_wanted and self._has_come and not self.waits:
            self.waits = True
            self._turns.call_in_turn(self._grant)

    def _grant(self) -> bool:
        """Have the loop decrypt what came, and then stop."""
        self.waits = self._has_come = False
        if self._is_over():
            return False
        self._transport.resume_reading()  # has the loop call what decrypts
        asyncio.get_running_loop().call_soon(self._stop)
        return True

    def _stop(self) -> None:
        if self._is_over():
            self._socket.expect_answer()
        else:
            self._transport.pause_reading()

    def _is_over(self) -> bool:
        """Whether the answer is read: its connection may serve another request already."""
        return self._body.is_eof() or self._transport.is_closing()


def _first_of_each_family(infos: AddressInfos) -> Iterator[tuple[int, int, tuple[Any, ...]]]:
    """Yield a few addresses: aiohttp tries all of them, again and again, and a tenant's name may have thousands."""
    count = Counter[int]()
    for family, _kind, protocol, _name, address in infos:
        count[family] += 1
        if count[family] <= MOST_ADDRESSES:
            yield family, protocol, address


class TenantResolver(AbstractResolver):
    """Has a tenant's names looked up by somebody else than the loop's threads."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Look a name up; raises OSError."""
        del family
        return [
            ResolveResult(
                hostname=host, host=address[0], port=port, family=found, proto=protocol, flags=socket.AI_NUMERICHOST
            )
            for found, protocol, address in _first_of_each_family(await self._resolver(host, port))
        ]

    async def close(self) -> None:
        """Own nothing."""


_CONNECTIONS: Final = 100
"""At most this many at once to one API server; who needs another waits."""
_KEEP_ALIVE: Final = 60.0
"""Seconds an idle connection is kept: below kube-apiserver's idle limit of 90 s (Go's http.DefaultTransport)."""
_TARGET: Final = re.compile(r"/[!-~]*")
_FIELD: Final = re.compile(r"[\t -~]*")
"""What may be on a request's lines: no line ends, and no bytes that two servers could read differently."""
_FIRST_REFUSAL: Final = 300
_FAILURES: Final = (TimeoutError, aiohttp.ClientError, OSError, ValueError, RuntimeError)
"""ValueError: a host name that IDNA or TLS cannot take, such as one with a label of 64 characters. RuntimeError: the
client is closed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How many seconds a request may take; None: no limit of its own."""

    total: float | None = None
    """From the wait for a connection to the last byte."""
    connect: float | None = None
    """For TCP and TLS to one address."""
    silence: float | None = None
    """Until the answer begins, and between two pieces of it."""


class AskedResponse(aiohttp.ClientResponse):
    """An answer to the request that was sent: one that came before it belongs to nobody."""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        """Read the head; raises ``ServerDisconnectedError`` where the kept connection had bytes already."""
        protocol, transport = connection.protocol, connection.transport
        if protocol is None or transport is None:
            raise aiohttp.ServerDisconnectedError
        if protocol.should_close:
            transport.abort()
            raise aiohttp.ServerDisconnectedError
        try:
            return await super().start(connection)
        except BaseException:
            transport.abort()  # aiohttp would wait half a minute for the other side
            raise


class ApiResponse:
    """One HTTP answer whose body has not been read yet; ``release`` it."""

    def __init__(
        self, response: aiohttp.ClientResponse, paced: PacedInput | None, where: str, deadline: float, limits: Limits
    ) -> None:
        self._response, self._paced, self._where = response, paced, where
        self._deadline, self._silence = deadline, math.inf if limits.silence is None else limits.silence
        self.status = response.status
        self.phrase = response.reason or ""
        self.content_type = response.headers.get("Content-Type", "").partition(";")[0].strip()
        self.retry_after = response.headers.get("Retry-After", "")
        self.date = response.headers.get("Date", "")

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
        if self._paced is not None:
            self._paced.want()
        try:
            return await self._next()
        except TimeoutError as error:
            raise TimedOut(f"{self._where}: {_explain(error)}") from None
        except _FAILURES as error:
            raise Unreachable(f"{self._where}: {_explain(error)}") from None
        finally:
            if self._paced is not None:
                self._paced.got()

    async def watch_chunk(self, deadline: float) -> bytes:
        """Wait for a watch's next bytes, until ``deadline`` on the loop's clock; raises ``WatchHung``."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self.chunk()
        except (TimedOut, TimeoutError):
            raise WatchHung(f"{self._where}: the server did not end the watch in its time") from None

    async def _next(self) -> bytes:
        loop = asyncio.get_running_loop()
        while True:
            until = min(self._deadline, loop.time() + self._silence)
            try:
                async with asyncio.timeout_at(None if until == math.inf else until):
                    return await self._response.content.readany()
            except TimeoutError:
                if self._paced is None or not self._paced.waits or loop.time() >= self._deadline:
                    raise

    def release(self) -> None:
        """Close the connection if the answer was not read to its end; else it is kept."""
        connection = self._response.connection
        if connection is not None and connection.transport is not None:
            connection.transport.abort()
        self._response.close()


class Transport:
    """Requests to one endpoint; no state but the connections."""

    def __init__(self, endpoint: ApiEndpoint) -> None:
        self._server = endpoint.server
        self._ca_pem = endpoint.ca_pem
        self._server_name = endpoint.tls_server_name
        self._tls = tls_context(endpoint)
        proxy = None if endpoint.proxy_url is None else urlsplit(endpoint.proxy_url)
        self._proxy_url = None if proxy is None else f"http://{_authority(proxy)}"
        self._proxy_headers = {} if proxy is None else _authorization(proxy)
        self._through = "" if proxy is None else f"through the proxy {_authority(proxy)}: "
        self._sockets = SocketFactory(endpoint.addresses)
        self._resolver: Resolver | None = None
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    def schedule_input(self, turns: ClusterInput) -> None:
        """Let connections that are made from now on receive in turns."""
        self._sockets.turns = turns

    def use_resolver(self, resolver: Resolver) -> None:
        """Have host names looked up by this, from the first request on."""
        self._resolver = resolver

    @property
    def refused_address(self) -> str:
        """Say why the last connection was not begun, because of its address; empty where the server answered since."""
        return self._sockets.refused

    async def request(
        self, method: str, target: str, *, headers: Mapping[str, str], data: bytes | None, limits: Limits
    ) -> ApiResponse:
        """Send a request and return its answer, which the caller releases."""
        where = f"{method} {self._server}{target.partition('?')[0]}"
        if self._is_closed:
            raise Unreachable("the client is closed")
        deadline = asyncio.get_running_loop().time() + (math.inf if limits.total is None else limits.total)
        try:
            response = await self._send(method, target, headers, data, limits)
        except _FAILURES as error:
            if self._sockets.turns is not None:
                await self._sockets.turns.turn()  # no attempt follows before what came for this one was charged
            raise Unreachable(f"{where}: {self._through}{self._of_certificate(error)}{_explain(error)}") from None
        answer = ApiResponse(response, self._pace(response), where, deadline, limits)
        if answer.status < _FIRST_REFUSAL and not _is_framed(response):
            answer.release()
            raise Unreachable(f"{where}: an answer that does not say where it ends")
        self._sockets.refused = ""  # another address of the name may have been refused meanwhile
        return answer

    async def _send(
        self, method: str, target: str, headers: Mapping[str, str], data: bytes | None, limits: Limits
    ) -> aiohttp.ClientResponse:
        if not _TARGET.fullmatch(target) or not all(map(_FIELD.fullmatch, headers.values())):
            raise ValueError("a path or a header of other characters than visible ASCII")
        if self._session is None:
            self._session = self._open()
        async with asyncio.timeout(min((each for each in (limits.total, limits.silence) if each), default=None)):
            return await self._session.request(
                method,
                URL(self._server + target, encoded=True),
                headers=headers,
                data=data,
                allow_redirects=False,
                server_hostname=self._server_name,
                proxy=self._proxy_url,
                proxy_headers=self._proxy_headers,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.connect),
            )

    def _open(self) -> aiohttp.ClientSession:
        """Make aiohttp's client; it belongs to the running loop. Raises ValueError for an invalid server name."""
        name = self._server_name or (urlsplit(self._server).hostname or "").rstrip(".")
        self._tls.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname=name)  # else a socket would stay open
        sockets = self._sockets

        class Response(AskedResponse):
            async def start(self, connection: Connection) -> aiohttp.ClientResponse:
                sockets.of(connection).expect_answer()
                return await super().start(connection)

        connector = aiohttp.TCPConnector(
            ssl=self._tls,
            limit=_CONNECTIONS,
            keepalive_timeout=_KEEP_ALIVE,
            use_dns_cache=False,
            resolver=aiohttp.ThreadedResolver() if self._resolver is None else TenantResolver(self._resolver),
            socket_factory=sockets,
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            response_class=Response,
        )

    def _pace(self, response: aiohttp.ClientResponse) -> PacedInput | None:
        """Read the rest of an answer, if there is more than came with its head, in turns."""
        connection, turns = response.connection, self._sockets.turns
        if connection is None or connection.transport is None:
            return None
        received = self._sockets.of(connection)
        if turns is None:
            received.on_input = _ignore
            return None
        return PacedInput(received, turns, connection.transport, response.content)

    def _of_certificate(self, error: BaseException) -> str:
        """Name what was expected of the server's certificate, where that was not met."""
        if not isinstance(error, aiohttp.ClientConnectorCertificateError):
            return ""
        name = self._server_name or urlsplit(self._server).hostname
        by = "this machine's CAs" if self._ca_pem is None else "the CAs of the kubeconfig"
        return f"expected a certificate for {name} by {by}; got another: "

    async def close(self) -> None:
        """Close every connection."""
        self._is_closed = True
        if self._session is not None:
            await self._session.close()


def _ignore() -> None:
    """Let a trusted server send as it likes."""


def _is_framed(response: aiohttp.ClientResponse) -> bool:
    coding = response.headers.get("Transfer-Encoding")
    return "Content-Length" in response.headers if coding is None else coding.strip().lower() == "chunked"


def _authority(proxy: SplitResult) -> str:
    return proxy.netloc.rpartition("@")[2]


def _authorization(proxy: SplitResult) -> dict[str, str]:
    """Write the user and password of the proxy's URL as the proxy wants them."""
    if proxy.username is None:
        return {}
    pair = unquote(proxy.username), unquote(proxy.password or "")
    return {"Proxy-Authorization": aiohttp.encode_basic_auth(*pair)}


def _explain(error: BaseException) -> str:
    """Say what went wrong below the API, and of an answer a proxy's status line only; nothing names credentials."""
    match error:
        case TimeoutError():
            text = "no answer within the time limit"
        case aiohttp.ClientHttpProxyError():
            text = f"HTTP {error.status} {error.message}"
        case aiohttp.ClientConnectorCertificateError():
            text = str(error.certificate_error)
        case aiohttp.ClientConnectorError():
            text = _explain(error.os_error)
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError():
            text = "the connection ended before the answer"
        case ssl.SSLError():
            text = f"TLS failed: {error.reason or type(error).__name__}"
        case OSError() if error.errno and error.errno > 0:
            text = os.strerror(error.errno)
        case OSError():
            text = error.strerror or str(error) or type(error).__name__
        case aiohttp.ClientError():
            text = f"no HTTP/1.1 ({type(error).__name__})"
        case _:
            text = f"{type(error).__name__}: {error}"
    return text
