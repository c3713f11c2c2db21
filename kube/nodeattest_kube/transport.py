"""Requests to one API server by aiohttp's client: kept connections, without redirects, cookies or the environment.

A refused address is never connected to, whatever name led there. A peer may send a bounded number of bytes before the
head of each answer. A request is sent again only if its connection was closed without an answer and repeating it is
harmless (GET, PUT, DELETE): its Conflict or NotFound may then be about our own write. A successful answer must state
where it ends, because anybody on the way can end a connection. Every exception of a library becomes ``Unreachable``.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, unquote, urlsplit
from weakref import WeakValueDictionary

import aiohttp
from aiohttp.abc import AbstractResolver
from aiohttp.connector import Connection
from yarl import URL

from nodeattest_kube.addresses import AddressRefused, AddressRules
from nodeattest_kube.errors import TimedOut, TooLarge, Unreachable
from nodeattest_kube.input_scheduler import READ, ClusterInput, PacedInput
from nodeattest_kube.kubeconfig import ApiEndpoint, tls_context

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_CONNECTIONS: Final = 100
"""At most this many at once to one API server; further requests wait."""
_KEEP_ALIVE: Final = 60.0
"""Seconds an idle connection is kept: below kube-apiserver's idle limit of 90 s (Go's http.DefaultTransport)."""
_BEFORE_ANSWER: Final = 1 << 16
"""Encrypted bytes that may come before the head of an answer. Go writes some hundreds, after a handshake of some
thousands."""
_HONEST: Final = 1 << 13
"""Bytes that a handshake takes, or a small answer."""
_SECONDS_A_READ: Final = 50e-6
_SECONDS_A_BYTE: Final = 0.25e-6
"""What is charged before an answer, for bytes beyond the honest ones: records of one byte take 5 µs for 23 bytes."""
_DEAD_PEER: Final = 30
"""Seconds without any TCP acknowledgment until a connection counts as dead (client-go: HTTP/2 ping after 30 s)."""
_TARGET: Final = re.compile(r"/[!-~]*")
_FIELD: Final = re.compile(r"[\t -~]*")
"""What may be on a request's lines: no line ends, and no bytes that two servers could read differently."""
_FIRST_REFUSAL: Final = 300
_FAILURES: Final = (TimeoutError, aiohttp.ClientError, OSError, ValueError, RuntimeError)
"""ValueError: a host name that IDNA or TLS cannot take, such as one with a label of 64 characters. RuntimeError: the
client is closed."""


class _ApiSocket(socket.socket):
    """A socket that bounds what comes before an answer, and whose dead peer the kernel notices (RFC 5482)."""

    def __init__(self, family: int, kind: int, protocol: int, turns: ClusterInput | None) -> None:
        super().__init__(family, kind, protocol)
        self._turns = turns
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
        data = super().recv(min(bufsize, READ), flags)
        self._count(len(data))
        return data

    def recv_into(self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0) -> int:
        count = super().recv_into(memoryview(buffer)[:READ], nbytes, flags)
        self._count(count)
        return count

    def _count(self, count: int) -> None:
        """Charge what was received; raises OSError if too much came before an answer."""
        if self.on_input is not None:
            self.on_input()
            return
        self._room -= count
        if self._turns is not None:
            beyond = max(0, min(count, _BEFORE_ANSWER - _HONEST - self._room))
            self._turns.charge(_SECONDS_A_READ + beyond * _SECONDS_A_BYTE)
        if self._room < 0:
            raise ConnectionAbortedError(f"more than {_BEFORE_ANSWER} bytes before an answer")


class _SocketFactory:
    """Opens the sockets to one server, or to its proxy."""

    def __init__(self, addresses: AddressRules | None) -> None:
        self._addresses = addresses
        self.turns: ClusterInput | None = None
        """In which what is received is decrypted; None: as it comes."""
        self.refused = ""
        """Why the last connection was refused; empty if it was not, and once the server answered."""
        self._by_number: WeakValueDictionary[int, _ApiSocket] = WeakValueDictionary()

    def __call__(self, address: tuple[Any, ...]) -> _ApiSocket:
        """Open a socket for what ``connect`` gets next; raises OSError for a refused address."""
        self.refused = ""
        if self._addresses is not None:
            try:
                self._addresses.check(str(address[4][0]))
            except AddressRefused as refused:
                self.refused = str(refused)
                raise
        opened = _ApiSocket(address[0], address[1], address[2], self.turns)
        self._by_number[opened.fileno()] = opened
        return opened

    def of(self, connection: Connection) -> _ApiSocket:
        """Return the socket of a connection; raises ConnectionError if it is closed."""
        transport = connection.transport
        number = -1 if transport is None else transport.get_extra_info("socket").fileno()
        if number == -1:
            raise ConnectionResetError
        return self._by_number[number]


class AskedResponse(aiohttp.ClientResponse):
    """An answer to the request that was sent: one that came before it belongs to nobody."""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        """Read the head; raises ``ServerDisconnectedError`` if the kept connection had bytes already."""
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

    def __init__(self, response: aiohttp.ClientResponse, paced: PacedInput | None, where: str, deadline: float) -> None:
        self._response, self._paced, self._where, self._deadline = response, paced, where, deadline
        self.status = response.status
        self.phrase = response.reason or ""

    def header(self, name: str) -> str:
        return self._response.headers.get(name, "")

    async def body(self, limit: int) -> bytes:
        """Read the whole body; ``Unreachable`` if it is cut, ``TooLarge`` as soon as it is over ``limit`` bytes."""
        parts: list[bytes] = []
        size = 0
        while chunk := await self.chunk():
            size += len(chunk)
            if size > limit:
                raise TooLarge(self.status, f"{self._where}: the answer is larger than {limit} bytes")
            parts.append(chunk)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def chunk(self) -> bytes:
        """Wait for the next bytes of the body; empty at its end. Raises ``TimedOut`` at the deadline."""
        if self._paced is not None:
            self._paced.want()
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._response.content.readany()
        except _FAILURES as error:
            kind = TimedOut if isinstance(error, TimeoutError) else Unreachable
            raise kind(f"{self._where}: {_explain(error)}") from None
        finally:
            if self._paced is not None:
                self._paced.got()

    def release(self) -> None:
        """Close the connection unless the answer was read to its end."""
        connection = self._response.connection
        if connection is not None and connection.transport is not None:
            connection.transport.abort()
        self._response.close()


class Transport:
    """The connections to one endpoint."""

    def __init__(self, endpoint: ApiEndpoint, head_seconds: float) -> None:
        """``head_seconds``: until the head of an answer is read, the connection included."""
        self._endpoint, self._head_seconds = endpoint, head_seconds
        self._tls = tls_context(endpoint)
        self._host = (urlsplit(endpoint.server).hostname or "").rstrip(".")
        proxy = None if endpoint.proxy_url is None else urlsplit(endpoint.proxy_url)
        authority = "" if proxy is None else proxy.netloc.rpartition("@")[2]
        self._proxy_url = None if proxy is None else f"http://{authority}"
        self._proxy_headers = {} if proxy is None else _authorization(proxy)
        self._through = "" if proxy is None else f"through the proxy {authority}: "
        self._sockets = _SocketFactory(endpoint.addresses)
        self.resolver: AbstractResolver | None = None
        """What looks up host names, from the first request on; None: the event loop's threads."""
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    def schedule_input(self, turns: ClusterInput) -> None:
        self._sockets.turns = turns

    @property
    def refused_address(self) -> str:
        """Why the last connection's address was refused; empty if it was not, or the server answered since."""
        return self._sockets.refused

    async def request(
        self, method: str, target: str, *, headers: Mapping[str, str], data: bytes | None, seconds: float
    ) -> ApiResponse:
        """Send a request and return its answer, which the caller releases; its last byte comes within ``seconds``."""
        where = f"{method} {self._endpoint.server}{target.partition('?')[0]}"
        if self._is_closed:
            raise Unreachable("the client is closed")
        deadline = asyncio.get_running_loop().time() + seconds
        try:
            response = await self._send(method, target, headers, data, seconds)
        except _FAILURES as error:
            if self._sockets.turns is not None:
                await self._sockets.turns.turn()  # no attempt follows before what came for this one was charged
            raise Unreachable(f"{where}: {self._through}{self._of_certificate(error)}{_explain(error)}") from None
        answer = ApiResponse(response, self._pace(response), where, deadline)
        if answer.status < _FIRST_REFUSAL and not _is_framed(answer):
            answer.release()
            raise Unreachable(f"{where}: an answer that does not say where it ends")
        self._sockets.refused = ""  # another address of the name may have been refused meanwhile
        return answer

    async def _send(
        self, method: str, target: str, headers: Mapping[str, str], data: bytes | None, seconds: float
    ) -> aiohttp.ClientResponse:
        if not _TARGET.fullmatch(target) or not all(map(_FIELD.fullmatch, headers.values())):
            raise ValueError("a path or a header of other characters than visible ASCII")
        if self._session is None:
            self._session = self._open()
        async with asyncio.timeout(min(seconds, self._head_seconds)):
            return await self._session.request(
                method,
                URL(self._endpoint.server + target, encoded=True),
                headers=headers,
                data=data,
                allow_redirects=False,
                server_hostname=self._endpoint.tls_server_name,
                proxy=self._proxy_url,
                proxy_headers=self._proxy_headers,
                timeout=aiohttp.ClientTimeout(total=None),
            )

    def _open(self) -> aiohttp.ClientSession:
        """Make aiohttp's client; it belongs to the running loop. Raises ValueError for an invalid server name."""
        name = self._endpoint.tls_server_name or self._host
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
            resolver=self.resolver or aiohttp.ThreadedResolver(),
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
            received.on_input = lambda: None  # a trusted server sends as it likes
            return None
        paced = PacedInput(turns, connection.transport, response.content, received.expect_answer)
        received.on_input = paced.come
        return paced

    def _of_certificate(self, error: BaseException) -> str:
        if not isinstance(error, aiohttp.ClientConnectorCertificateError):
            return ""
        name = self._endpoint.tls_server_name or self._host
        by = "this machine's CAs" if self._endpoint.ca_pem is None else "the CAs of the kubeconfig"
        return f"expected a certificate for {name} by {by}; got another: "

    async def close(self) -> None:
        self._is_closed = True
        if self._session is not None:
            await self._session.close()


def _is_framed(answer: ApiResponse) -> bool:
    coding = answer.header("Transfer-Encoding").strip().lower()
    return coding == "chunked" if coding else answer.header("Content-Length") != ""


def _authorization(proxy: SplitResult) -> dict[str, str]:
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
