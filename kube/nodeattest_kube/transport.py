"""HTTPS to one API server: aiohttp's connection pool, without retries, redirects, cookies or settings of the machine.

Promises: one verified TLS context an endpoint; a client key touches no disk; dead peers are noticed by the kernel;
every foreign exception becomes ``Unreachable``; a redirect is an answer, never followed (a hostile API server must not
aim our requests at something else). Leaves to others: what the bytes mean.
This is the only module that imports the aiohttp client (docs/adr/0042).
"""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import ssl
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import IO, Final
from urllib.parse import unquote, urlsplit
from weakref import WeakSet

import aiohttp
from aiohttp.abc import AbstractResolver
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from yarl import URL

from nodeattest_kube.addresses import AddressRefused, AddressRules
from nodeattest_kube.errors import KubeconfigError, TimedOut, TooLarge, Unreachable
from nodeattest_kube.kubeconfig import ApiEndpoint
from nodeattest_kube.read_pace import Pace
from nodeattest_parsing.printable import one_line

__all__ = ["ApiResponse", "Transport"]

_OTHER_PEERS: Final = (aiohttp.ClientSSLError, aiohttp.ClientProxyConnectionError)
"""Troubles of connecting whose texts say more than the system's error."""
_CONNECTIONS: Final = 100
"""At most this many at once to one API server (the library's own default)."""
_KEEP_ALIVE: Final = 60.0
"""Seconds an idle connection is kept: below kube-apiserver's idle limit of 90 s (Go's http.DefaultTransport)."""
_READ_BUFFER: Final = 1 << 18
"""Bytes read ahead of us from one connection before the peer is slowed down."""
_SUBJECT: Final = 128
"""Characters of a CA's subject that a message shows; whoever wrote the kubeconfig chose it."""
_NAMED_CAS: Final = 2
"""Of a bundle, in a message."""
_GOODBYE: Final = 0.25
"""Seconds in which connections may close in order when the client is closed."""
_GOODBYE_STEPS: Final = 50
_DEAD_PEER: Final = 30
"""Seconds without any TCP acknowledgement until a connection counts as dead (client-go: HTTP/2 ping after 30 s)."""


class ApiResponse:
    """One HTTP answer whose body has not been read yet."""

    def __init__(self, response: aiohttp.ClientResponse, where: str) -> None:
        self._response = response
        self._where = where
        self.status = response.status
        self.phrase = response.reason or ""
        self.content_type = response.content_type
        self.retry_after = response.headers.get("Retry-After", "")
        self.date = response.headers.get("Date", "")
        self.pace: Pace | None = None
        """Awaited after each piece of the body."""

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
            chunk = await self._response.content.readany()
        except TimeoutError as error:
            raise TimedOut(f"{self._where}: {_explain(error)}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{self._where}: {_explain(error)}") from None
        if self.pace is not None and chunk:
            await self.pace(len(chunk))
        return chunk


class _Pool:
    """The session that an API client needs; knows its sockets, to see them closed."""

    def __init__(self, context: ssl.SSLContext, addresses: AddressRules | None) -> None:
        self._context = context
        self._addresses = addresses
        self._session: aiohttp.ClientSession | None = None
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self.resolver: AbstractResolver | None = None
        self.refused = ""
        """Why the last connection was not begun; empty where it was, and once the server answered."""

    def _open(self) -> aiohttp.ClientSession:
        """Build the session: no cookies, no decompression bombs, no environment (aiohttp would also read ~/.netrc)."""
        connector = aiohttp.TCPConnector(
            limit=_CONNECTIONS,
            ssl=self._context,
            keepalive_timeout=_KEEP_ALIVE,
            socket_factory=self._socket,
            resolver=self.resolver,
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            read_bufsize=_READ_BUFFER,
        )

    def session(self) -> aiohttp.ClientSession:
        """Return the session, made on first use because it belongs to the running loop."""
        if self._session is None:
            self._session = self._open()
        return self._session

    async def close(self) -> None:
        """Close the session and every socket of it.

        aiohttp waits for pooled connections only: one that a server asked to close may still be saying its TLS goodbye.
        """
        if self._session is not None:
            await self._session.close()
        if not await self._are_closed():
            for left in self._sockets:
                with suppress(OSError):
                    left.shutdown(socket.SHUT_RDWR)
            await self._are_closed()

    async def _are_closed(self) -> bool:
        """Give open sockets a moment to close."""
        for _ in range(_GOODBYE_STEPS):
            if all(each.fileno() == -1 for each in self._sockets):
                return True
            await asyncio.sleep(_GOODBYE / _GOODBYE_STEPS)
        return False

    def _socket(self, address: tuple[object, ...]) -> socket.socket:
        """Open a socket that is known here, for what ``connect`` gets next; raises OSError for a refused address."""
        if self._addresses is not None:
            try:
                self._addresses.check(_host_of(address))
            except AddressRefused as refused:
                self.refused = str(refused)
                raise
            self.refused = ""
        opened = _socket(address)
        self._sockets.add(opened)
        return opened


class Transport:
    """Requests to one endpoint; no state but the connection pool."""

    def __init__(self, endpoint: ApiEndpoint) -> None:
        self._server = endpoint.server
        self._server_name = endpoint.tls_server_name
        self._proxy, self._proxy_headers = _proxy(endpoint.proxy_url)
        self._pool = _Pool(_tls_context(endpoint), endpoint.addresses)
        self._addresses = endpoint.addresses
        self._ca_pem = endpoint.ca_pem
        self._closed = False

    @asynccontextmanager
    async def request(
        self, method: str, target: str, *, headers: Mapping[str, str], data: bytes | None, limits: aiohttp.ClientTimeout
    ) -> AsyncGenerator[ApiResponse]:
        """Send a request and hand out its answer; the connection goes back to the pool, or is closed, on exit."""
        if self._closed:
            raise Unreachable("the client is closed")
        where = f"{method} {self._server}{target.partition('?')[0]}"
        if self._addresses is not None:
            await self._addresses.refresh()
        try:
            response = await self._pool.session().request(
                method,
                URL(self._server + target, encoded=True),
                headers=headers,
                data=data,
                timeout=limits,
                allow_redirects=False,
                server_hostname=self._server_name,
                proxy=self._proxy,
                proxy_headers=self._proxy_headers,
            )
        # ValueError: a host name that IDNA or TLS cannot take, such as one with a label of 64 characters.
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise Unreachable(f"{where}: {self._of_certificate(error)}{_explain(error)}") from None
        self._pool.refused = ""  # another address of the name may have been refused meanwhile
        async with response:
            yield ApiResponse(response, where)

    def _of_certificate(self, error: BaseException) -> str:
        """Name what was expected of the server's certificate, where that was not met."""
        if not isinstance(error, aiohttp.ClientConnectorCertificateError):
            return ""
        name = self._server_name or urlsplit(self._server).hostname
        return f"expected a certificate for {name} by {_title_of_cas(self._ca_pem)}; got another: "

    @property
    def refused_address(self) -> str:
        """Say why the last connection was not begun, because of its address; empty where the server answered since."""
        return self._pool.refused

    def use_resolver(self, resolver: AbstractResolver) -> None:
        """Have host names looked up by this, from the first request on."""
        self._pool.resolver = resolver

    async def close(self) -> None:
        """Close every connection and let their TLS goodbyes leave."""
        self._closed = True
        await self._pool.close()


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
    # VERIFY_X509_STRICT, new in Python 3.13's default context, refuses CAs without a subject key identifier, as made by
    # Kubernetes built with Go before 1.15. client-go accepts them; the chain to the given CA is verified all the same.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
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


def _host_of(address: tuple[object, ...]) -> str:
    """Return the IP address in a row of ``getaddrinfo``, whatever name led there."""
    where = address[4]
    return str(where[0]) if isinstance(where, tuple) and where else ""  # pyright: ignore[reportUnknownArgumentType] - any


def _socket(address: tuple[object, ...]) -> socket.socket:
    """Open a socket whose dead peer the kernel notices, idle or not (RFC 1122 §4.2.3.6, RFC 5482)."""
    family, kind, protocol = address[0], address[1], address[2]
    opened = socket.socket(family, kind, protocol)  # type: ignore[arg-type]
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _DEAD_PEER // 2)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _DEAD_PEER // 6)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_PEER * 1000)
    return opened


def _proxy(url: str | None) -> tuple[str | None, dict[str, str] | None]:
    """Split the proxy's password off its URL, so that no message about the proxy holds it."""
    if url is None:
        return None, None
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    if parts.username is None:
        return f"http://{host}", None
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return f"http://{host}", {"Proxy-Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}


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
    """Say what went wrong below HTTP; the libraries' texts name hosts and system errors, never credentials."""
    if isinstance(error, TimeoutError):
        return "no answer within the time limit"
    if isinstance(error, aiohttp.ClientProxyConnectionError) and error.os_error.errno is None:
        return f"the proxy: {error.os_error}"  # of our own socket; the library's text is for system errors
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, _OTHER_PEERS):
        cause = error.os_error
        return os.strerror(cause.errno) if cause.errno and cause.errno > 0 else cause.strerror or str(cause)
    return f"{type(error).__name__}: {error}"
