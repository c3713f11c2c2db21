"""Bounded HTTPS exchanges: the node's only HTTPS client.

The server is verified by the caller's CAs, or not at all if its response is signed. A verified server must not have a
kubelet's certificate, which the same CA signs. There are no proxies, redirects or settings from the environment. One
deadline and one size limit hold for a whole exchange, regardless of how slowly the server sends (name resolution has
the resolver's limits). A truncated or ambiguous body is refused. Other exceptions become ``HttpsError``.
Source: standard-library http.client and ssl; kubeadm app/util/kubeconfig.ToClientSet (ten seconds a request).
"""

from __future__ import annotations

import http
import http.client
import re
import socket
import ssl
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, cast

from nodeattest_discovery import tls
from nodeattest_discovery.node.clock import Deadline
from nodeattest_discovery.tls import ClientCertificate
from nodeattest_parsing.endpoint import Endpoint

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


SECONDS: Final = 10.0
"""Limit of one exchange, from connecting to the last byte."""
LIMIT: Final = 1 << 20
"""Default limit of a body in bytes; etcd limits an object to 1.5 MiB."""
_STREAM_LIMIT: Final = 64 << 20
"""Bytes of all lines of one stream."""
_HEADERS_LIMIT: Final = 64 * 1024
"""Bytes of a response besides its body."""
_HTTPS_PORT: Final = 443
_MAX_LABEL: Final = 63
"""Characters between two dots of a name (RFC 1035 §2.3.4)."""
_LENGTH: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """How to verify the server."""

    ca_pem: bytes | None = field(repr=False)
    """Trust anchors, which need not be self-signed, as in Go. None: this machine's CAs."""
    server_name: str | None = None
    """The name in its certificate, if it is not the address's host."""
    client: ClientCertificate | None = None


UNVERIFIED: Final = None
"""Any server may answer: for signed responses to requests without secrets."""


@dataclass(frozen=True, slots=True)
class Response:
    """A response with any status."""

    status: int
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    """In the order received, with names in lower case."""
    body: bytes = field(repr=False)

    def header(self, name: str) -> str | None:
        """Return the first value of a header. ``name``: in lower case."""
        return next((value for found, value in self.headers if found == name), None)


@dataclass(frozen=True, slots=True)
class Stream:
    """A response that is read line by line. ``lines`` and ``whole`` raise ``HttpsError``."""

    status: int
    lines: Generator[bytes]
    """The lines until the server ends the response."""
    whole: Callable[[], Response]
    """Reads the whole response instead."""


class HttpsError(Exception):
    """The exchange failed; another attempt may succeed."""


class UntrustedServerError(HttpsError):
    """The server's certificate is not trusted. No request was sent."""


class HttpsClient:
    """A client of one server, over one connection if the server keeps it open."""

    def __init__(
        self, server: Endpoint, trust: Verified | None, deadline: Deadline, *, headers: Mapping[str, str] = _NO_HEADERS
    ) -> None:
        self._server, self._trust, self._deadline = server, trust, deadline
        host = f"[{server.host}]" if ":" in server.host else server.host
        authority = host if server.port == _HTTPS_PORT else f"{host}:{server.port}"
        self._headers = {"Host": authority, "Accept": "application/json", "User-Agent": "nodeattest", **headers}
        self._connection = http.client.HTTPConnection(server.host, server.port)
        self._connection.auto_open = 0  # it would connect without TLS
        self._response: http.client.HTTPResponse | None = None

    def request(self, method: str, path: str, *, body: bytes | None = None, limit: int = LIMIT) -> Response:
        """Connect, verify the server, send the request and read the whole response. Raises ``HttpsError``."""
        with self._errors():
            return self._whole(self._send(_Exchange(self._deadline.within(SECONDS), limit), method, path, body), limit)

    @contextmanager
    def stream(self, path: str, *, seconds: float, line_limit: int = LIMIT) -> Generator[Stream]:
        """Make an exchange of at most ``seconds`` whose body is read line by line. Raises ``HttpsError``.

        The connection is closed if the response is not read to its end.
        """
        with self._errors():
            response = self._send(_Exchange(self._deadline.within(seconds), _STREAM_LIMIT), "GET", path, None)
        try:
            yield Stream(response.status, self._lines(response, line_limit), lambda: self._rest(response, line_limit))
        finally:
            self._keep_after(response)

    def server_certificate(self) -> bytes | None:
        """Return the server's certificate in DER. Connect first if necessary. Raises ``HttpsError``."""
        with self._errors():
            return self._begin(_Exchange(self._deadline.within(SECONDS), LIMIT)).getpeercert(binary_form=True)

    def close(self) -> None:
        """Close the connection."""
        if self._response is not None:  # the last response owns the connection
            self._response.close()
        self._connection.close()

    def _begin(self, exchange: _Exchange) -> _Socket:
        if self._connection.sock is None:
            self._connection.sock = self._connect(exchange)
        peer = cast("_Socket", self._connection.sock)
        peer.exchange = exchange
        return peer

    def _connect(self, exchange: _Exchange) -> ssl.SSLSocket:
        name, trust = _server_name(self._server, self._trust), self._trust
        context = tls.unverified_context() if trust is None else tls.client_context(trust.ca_pem, trust.client)
        context.sslsocket_class = _Socket
        plain = _dial(self._server, exchange)
        try:
            plain.settimeout(exchange.left())
            # A response that ends with the connection is whole only if TLS says so.
            peer = context.wrap_socket(plain, server_hostname=name.encode(), suppress_ragged_eofs=False)
        except BaseException:  # also the watchdog's
            plain.close()
            raise
        if trust is not None and tls.is_kubelet_certificate(peer):
            peer.close()
            raise UntrustedServerError("it is a kubelet's, not an API server's")
        return peer

    def _send(self, exchange: _Exchange, method: str, path: str, body: bytes | None) -> http.client.HTTPResponse:
        content = {} if body is None else {"Content-Type": "application/json"}
        self._begin(exchange)
        self._connection.request(method, path, body, self._headers | content)
        self._response = response = self._connection.getresponse()
        _check_head(response)
        return response

    def _lines(self, response: http.client.HTTPResponse, limit: int) -> Generator[bytes]:
        while True:
            with self._errors():
                line = response.readline(limit)
                if line and not line.endswith(b"\n"):
                    raise HttpsError("a line of its answer was cut off")
            if not line:
                return
            yield line

    def _rest(self, response: http.client.HTTPResponse, limit: int) -> Response:
        with self._errors():
            return self._whole(response, limit)

    def _whole(self, response: http.client.HTTPResponse, limit: int) -> Response:
        body = response.read(limit + 1)
        if len(body) > limit:
            raise _too_large(limit)
        if response.read(1) or response.length:
            raise HttpsError("its answer was cut off")
        self._keep_after(response)
        headers = tuple((name.lower(), value.strip(" \t")) for name, value in response.headers.items())
        return Response(response.status, headers, body)

    def _keep_after(self, response: http.client.HTTPResponse) -> None:
        if not response.isclosed() or response.will_close:
            self.close()

    @contextmanager
    def _errors(self) -> Generator[None]:
        """Convert other exceptions, and close the connection after any of them."""
        try:
            yield
        except BaseException as error:
            self.close()
            found = _translated(error)
            if found is error:
                raise
            raise found from None


class _Exchange:
    """The limits of one exchange."""

    def __init__(self, deadline: Deadline, limit: int) -> None:
        self._deadline = deadline
        self._room = limit + _HEADERS_LIMIT
        self._limit = limit

    def left(self) -> float:
        """Return the seconds left. Raises TimeoutError if there are none."""
        if self._deadline.passed:
            raise TimeoutError
        return self._deadline.left

    def take(self, count: int) -> None:
        """Count received bytes. Raises ``HttpsError``."""
        self._room -= count
        if self._room < 0:
            raise _too_large(self._limit)


class _Socket(ssl.SSLSocket):
    """A connection with the limits of the current exchange."""

    exchange: _Exchange

    def recv_into(self, buffer: WriteableBuffer, nbytes: int | None = None, flags: int = 0) -> int:
        self.settimeout(self.exchange.left())
        count = super().recv_into(buffer, nbytes, flags)
        self.exchange.take(count)
        return count

    def send(self, data: ReadableBuffer, flags: int = 0) -> int:
        # sendall would give each part the whole time.
        self.settimeout(self.exchange.left())
        return super().send(data, flags)


def _too_large(limit: int) -> HttpsError:
    return HttpsError(f"its answer has more than {limit} bytes")


def _check_head(response: http.client.HTTPResponse) -> None:
    """Refuse other protocols, an ambiguous end of the response, and encodings."""
    lengths = response.headers.get_all("Content-Length", [])
    codings = [value.lower() for value in response.headers.get_all("Transfer-Encoding", [])]
    if response.status < http.HTTPStatus.OK:
        raise HttpsError("it answered with an unexpected interim response")
    if len(lengths + codings) > 1 or not {*codings} <= {"chunked"} or not all(map(_LENGTH.fullmatch, lengths)):
        raise HttpsError("its answer does not say where it ends")
    if any(value.lower() != "identity" for value in response.headers.get_all("Content-Encoding", [])):
        raise HttpsError("its answer is compressed, which was not requested")


def _server_name(server: Endpoint, trust: Verified | None) -> str:
    name = (trust.server_name if trust else None) or server.host
    labels = name.split(".")
    if not name.isascii() or not name.isprintable() or not all(0 < len(label) <= _MAX_LABEL for label in labels):
        raise HttpsError("the server name is invalid")
    return name


def _dial(server: Endpoint, exchange: _Exchange) -> socket.socket:
    """Connect to the first address of the host that listens. Each address gets its share of the time."""
    failed: OSError = OSError("the name has no address")
    found = socket.getaddrinfo(server.host.encode("ascii"), server.port, type=socket.SOCK_STREAM)
    for number, (family, kind, protocol, _, address) in enumerate(found):
        plain = socket.socket(family, kind, protocol)
        try:
            plain.settimeout(exchange.left() / (len(found) - number))
            plain.connect(address)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            plain.close()
            failed = error
        else:
            return plain
    raise failed


def _translated(error: BaseException) -> BaseException:
    """Return the ``HttpsError`` for an exception, or the same exception if it is not converted."""
    match error:
        case ssl.SSLCertVerificationError():
            return UntrustedServerError(error.verify_message)
        case TimeoutError():
            return HttpsError("gave no whole answer in time")
        case ssl.SSLError():
            return HttpsError(f"TLS failed: {error.reason or 'no reason given'}")
        case OSError():
            return HttpsError(error.strerror or type(error).__name__)
        case http.client.HTTPException() | ValueError():
            return HttpsError(f"it cannot be asked, or its answer is no HTTP ({type(error).__name__})")
        case _:
            return error
