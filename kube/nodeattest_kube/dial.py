"""Connections to one API server: its addresses, sockets whose dead peer the kernel notices, TLS, and a proxy before it.

Promises: one verified TLS context an endpoint; a client key touches no disk; an address that is refused is never
connected to, whatever name led there; a proxy's password is in no message.
Leaves to others: HTTP (``http1``), and how long a connection is kept (``transport``).
Source: RFC 8305 (several addresses), RFC 9110 §9.3.6 (CONNECT).
"""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import ssl
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from typing import IO, Any, Final
from urllib.parse import SplitResult, unquote, urlsplit
from weakref import WeakSet

import aiohappyeyeballs

from nodeattest_kube.addresses import AddressRefused
from nodeattest_kube.errors import KubeconfigError
from nodeattest_kube.http1 import HttpConnection, HttpError
from nodeattest_kube.input_scheduler import ClusterInput
from nodeattest_kube.kubeconfig import ApiEndpoint
from nodeattest_kube.scheduled_input import ScheduledInput

__all__ = ["AddressInfos", "Dialer", "ProxyFailed", "Resolver"]

AddressInfos = Sequence[tuple[int, int, int, str, Any]]
"""What ``getaddrinfo`` returns: family, type, protocol, canonical name, address."""
Resolver = Callable[[str, int], Awaitable[AddressInfos]]
"""Looks a host name up; raises OSError."""

_GOODBYE: Final = 0.25
"""Seconds in which a peer may answer a TLS goodbye."""
_NEXT_ADDRESS: Final = 0.25
"""Seconds after which the next address is tried beside the last one (RFC 8305 §8)."""
_DEAD_PEER: Final = 30
"""Seconds without any TCP acknowledgement until a connection counts as dead (client-go: HTTP/2 ping after 30 s)."""
_PORTS: Final = {"https": 443, "http": 80}
_GRANTED: Final = range(200, 300)


class ProxyFailed(Exception):
    """The proxy was not reached, or does not connect us; the text says why."""


class Dialer:
    """Knows its sockets, to see them closed."""

    def __init__(self, endpoint: ApiEndpoint) -> None:
        server = urlsplit(endpoint.server)
        self.host, self._port = _host_and_port(server)
        self.authority = server.netloc
        self._server_name = endpoint.tls_server_name or self.host.rstrip(".")
        self._context = _tls_context(endpoint)
        self._addresses = endpoint.addresses
        self._proxy = None if endpoint.proxy_url is None else urlsplit(endpoint.proxy_url)
        self.resolver: Resolver | None = None
        self.turns: ClusterInput | None = None
        """In which what is received is decrypted; None: as it comes."""
        self.sockets: WeakSet[socket.socket] = WeakSet()
        self.refused = ""
        """Why the last connection was not begun; empty where it was, and once the server answered."""

    async def dial(self, limit: float | None) -> HttpConnection:
        """Connect, through the proxy if there is one; ``limit`` in seconds is for each address.

        Raises OSError, TimeoutError, ValueError for a name that cannot be looked up, and ``ProxyFailed``.
        """
        if self._proxy is None:
            return await self._connect(self.host, self._port, limit, tls=True)
        async with asyncio.timeout(limit):
            return await self._tunnel(self._proxy, limit)

    async def _tunnel(self, proxy: SplitResult, limit: float | None) -> HttpConnection:
        """Have the proxy connect us to the server, then speak TLS with the server."""
        host, port = _host_and_port(proxy)
        try:
            outer = await self._connect(host, port, limit, tls=False)
        except OSError as error:
            raise ProxyFailed(f"the proxy {_authority(host, port)}: {_of_system(error)}") from None
        try:
            transport = await self._ask(outer, proxy)
        except HttpError as error:
            outer.abort()
            raise ProxyFailed(f"the proxy {_authority(host, port)}: {error}") from None
        except BaseException:
            outer.abort()
            raise
        return await self._secure(transport)

    async def _secure(self, transport: asyncio.Transport) -> HttpConnection:
        """Speak TLS with the server from now on."""
        inner, loop = HttpConnection(), asyncio.get_running_loop()
        # Runs when start_tls has set the transport's protocol, and before anything is read.
        scheduled = None if self.turns is None else loop.call_soon(ScheduledInput, transport, inner, self.turns)
        try:
            secured = await loop.start_tls(
                transport, inner, self._context, server_hostname=self._server_name, ssl_shutdown_timeout=_GOODBYE
            )
        except BaseException:  # of a server name that is none, too, which start_tls does not close for
            if scheduled is not None:
                scheduled.cancel()
            if not transport.is_closing():
                transport.abort()
            raise
        if secured is None:  # closed meanwhile, says typeshed
            raise ConnectionResetError
        inner.connection_made(secured)
        return inner

    async def _ask(self, outer: HttpConnection, proxy: SplitResult) -> asyncio.Transport:
        """Ask the proxy to connect us; from then on its connection leads to the server."""
        target = _authority(self.host, self._port)
        lines = (f"CONNECT {target} HTTP/1.1", f"Host: {target}", *_proxy_authorization(proxy), "", "")
        head = await outer.send("\r\n".join(lines).encode("ascii"))
        if head.status not in _GRANTED:
            raise HttpError(f"HTTP {head.status} {head.phrase}")
        return outer.detach()

    async def _connect(self, host: str, port: int, limit: float | None, *, tls: bool) -> HttpConnection:
        """Connect to the first address that answers, and whose server has the right certificate."""
        infos = list(await self._find(host, port))
        failure: Exception = OSError(f"no address of {host}")
        while infos:
            try:
                async with asyncio.timeout(limit):
                    return await self._connect_to(infos, tls=tls)
            except OSError as error:  # TimeoutError, too
                failure = error
                aiohappyeyeballs.pop_addr_infos_interleave(infos, 1)  # pyright: ignore[reportUnknownMemberType] - tuples
        raise failure

    async def _connect_to(self, infos: list[Any], *, tls: bool) -> HttpConnection:
        loop = asyncio.get_running_loop()
        opened = await aiohappyeyeballs.start_connection(  # pyright: ignore[reportUnknownMemberType] - of any address
            infos, happy_eyeballs_delay=_NEXT_ADDRESS, interleave=1, socket_factory=self._socket
        )
        _transport, connection = await loop.create_connection(HttpConnection, sock=opened)
        if not tls:
            return connection
        try:
            transport = connection.detach()
        except HttpError:  # it ended, or the server spoke first
            raise ConnectionResetError from None
        return await self._secure(transport)

    async def _find(self, host: str, port: int) -> AddressInfos:
        if self.resolver is not None and not _is_address(host):
            return await self.resolver(host, port)
        return await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
        )

    def _socket(self, address: tuple[Any, ...]) -> socket.socket:
        """Open a socket that is known here, for what ``connect`` gets next; raises OSError for a refused address."""
        if self._addresses is not None:
            try:
                self._addresses.check(str(address[4][0]))
            except AddressRefused as refused:
                self.refused = str(refused)
                raise
            self.refused = ""
        opened = _socket(address[0], address[1], address[2])
        self.sockets.add(opened)
        return opened


def _host_and_port(url: SplitResult) -> tuple[str, int]:
    return url.hostname or "", url.port or _PORTS[url.scheme]


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_address(host: str) -> bool:
    """Whether a host is an IP address as it is written, of which nobody is asked."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return True
    return False


def _of_system(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer within the time limit"
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)


def _proxy_authorization(proxy: SplitResult) -> list[str]:
    """Write the user and password of the proxy's URL as the proxy wants them."""
    if proxy.username is None:
        return []
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return ["Proxy-Authorization: Basic " + base64.b64encode(pair.encode()).decode()]


def _tls_context(endpoint: ApiEndpoint) -> ssl.SSLContext:
    """Make the TLS context; bad certificates and keys are the kubeconfig's fault."""
    try:
        context = ssl.create_default_context(cadata=endpoint.ca_pem)
    except (ssl.SSLError, ValueError) as error:
        raise KubeconfigError(
            expected="CA certificates in PEM",
            got=type(error).__name__,
            remedy="check certificate-authority-data: base64 of one or more CERTIFICATE blocks",
        ) from None
    # VERIFY_X509_STRICT, new in Python 3.13's default context, refuses CAs without a subject key identifier, which
    # clusters of many years have. client-go accepts them; the chain to the given CA is verified all the same.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    # As in Go, each CA that is given is an anchor, self-signed or not: a cluster's CA may be an intermediate one.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    # Without DHE, where the server chooses a group of any size, and we compute with it; ECDHE and TLS 1.3 name theirs.
    names = (cipher["name"] for cipher in context.get_ciphers())
    context.set_ciphers(":".join(name for name in names if not name.startswith("DHE-")))
    if endpoint.client_certificate_pem is not None and endpoint.client_key_pem is not None:
        _load_client_certificate(context, endpoint.client_certificate_pem, endpoint.client_key_pem)
    return context


def _load_client_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load the pair; Python's ssl reads files only, so it gets a file in memory."""
    with _unwritten_file() as file:
        file.write(certificate + b"\n" + key)
        file.flush()
        name = f"/proc/self/fd/{file.fileno()}" if sys.platform == "linux" else file.name
        try:
            # The password keeps OpenSSL from asking on the terminal when the key is encrypted.
            context.load_cert_chain(name, password="")
        except (ssl.SSLError, ValueError, OSError) as error:
            raise KubeconfigError(
                expected="a client certificate and its own, unencrypted key in PEM",
                got=type(error).__name__,
                remedy="check client-certificate-data and client-key-data",
            ) from None


def _unwritten_file() -> IO[bytes]:
    """Open a file that lives in memory on Linux, and elsewhere one that only we can read."""
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("client-certificate", os.MFD_CLOEXEC), "wb")
    return tempfile.NamedTemporaryFile()


def _socket(family: int, kind: int, protocol: int) -> socket.socket:
    """Open a socket whose dead peer the kernel notices, idle or not (RFC 1122 §4.2.3.6, RFC 5482)."""
    opened = socket.socket(family, kind, protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _DEAD_PEER // 2)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _DEAD_PEER // 6)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_PEER * 1000)
    return opened
