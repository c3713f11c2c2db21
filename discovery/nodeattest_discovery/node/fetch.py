"""One bounded question over HTTPS: the only way out of the node half.

Promises: TLS 1.2 or newer, verified by the CAs that the caller names, or by none for a first look; a verified server is
no kubelet, whose certificate the same CA signs; no proxy, redirect, credential or setting from the environment; no
header but Host, Accept, User-Agent and what the caller adds. The whole exchange takes at most ``SECONDS`` (but for the
look-up of a name, which has the resolver's own limits) and brings at most ``LIMIT`` bytes, however the other side drips
them. Every foreign exception ends here, as ``Unavailable``.
Leaves to others: what an answer means, when to ask again.
Source: standard-library ssl and http.client; kubeadm app/util/kubeconfig.ToClientSet (ten seconds a request).
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, cast

from nodeattest_discovery import tls
from nodeattest_discovery.node.address import Address
from nodeattest_discovery.node.surroundings import Patience
from nodeattest_discovery.tls import ClientCertificate
from nodeattest_providers.errors import Reason, Unavailable

__all__ = ["LIMIT", "SECONDS", "UNVERIFIED", "Answer", "Verified", "get"]

SECONDS: Final = 10.0
"""For one exchange, from connecting to the last byte."""
LIMIT: Final = 1 << 20
"""Bytes of a body; etcd's limit of an object is 1.5 MiB, and cluster-info has some thousands."""
_HEADERS_LIMIT: Final = 64 * 1024
"""Bytes that an answer may have besides its body."""
_LABEL: Final = 63
"""Characters between two dots of a name (RFC 1035 §2.3.4)."""
_AGENT: Final = "nodeattest"
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A server whose certificate must pass."""

    ca_pem: bytes | None = field(repr=False)
    """Who may have issued it: each an anchor, self-signed or not, as in Go. None: whom this machine trusts."""
    server_name: str | None = None
    """The name in it, where that is not the address's host."""
    client: ClientCertificate | None = None


UNVERIFIED: Final = None
"""Anybody may answer: only for what proves itself, and with nothing secret in the question."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, whatever the status."""

    status: int
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    """Names in lower case, in the order in which they came."""
    body: bytes = field(repr=False)


def get(
    address: Address,
    path: str,
    trust: Verified | None,
    patience: Patience,
    *,
    accept: str = "application/json",
    headers: Mapping[str, str] = _NO_HEADERS,
) -> Answer:
    """Ask once; raises ``Unavailable``, with the reason ``ServerNotTrusted`` if its certificate does not pass.

    1. Connect, and verify the server. 2. Ask. 3. Read a bounded answer in plain encoding, all of it.
    """
    moment = _Moment(patience)
    with _guard(address):
        # 1
        peer = _connect(address, trust, moment)
        try:
            if trust is not None and tls.is_kubelet_certificate(peer):
                raise _NodeError
            connection = _connection(address, peer, moment)
            # 2
            connection.putrequest("GET", path, skip_accept_encoding=True)
            for name, value in {"Accept": accept, "User-Agent": _AGENT, **headers}.items():
                connection.putheader(name, value)
            connection.endheaders()
            # 3
            response = connection.getresponse()
            return _read(response)
        finally:
            peer.close()


class _Moment:
    """The end of one exchange."""

    def __init__(self, patience: Patience) -> None:
        self._clock: Callable[[], float] = patience.around.monotonic
        self._end = self._clock() + min(SECONDS, patience.left)

    def left(self) -> float:
        """Seconds; raises TimeoutError when none are."""
        left = self._end - self._clock()
        if left <= 0:
            raise TimeoutError
        return left


class _Bytes(io.RawIOBase):
    """What comes from a connection, until its time or its size is over."""

    def __init__(self, peer: ssl.SSLSocket, moment: _Moment) -> None:
        super().__init__()
        self._peer, self._moment, self._room = peer, moment, LIMIT + _HEADERS_LIMIT

    def readable(self) -> bool:
        """Say that one can read here."""
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride] - BufferedReader hands in a memoryview; Buffer is Python 3.12's
        """Read some bytes."""
        self._peer.settimeout(self._moment.left())
        count = self._peer.recv_into(buffer)
        self._room -= count
        if self._room < 0:
            raise _TooLargeError
        return count


class _Socket:
    """As much of a socket as ``http.client`` uses."""

    def __init__(self, peer: ssl.SSLSocket, moment: _Moment) -> None:
        self._peer, self._moment = peer, moment

    def sendall(self, data: bytes) -> None:
        """Send the question."""
        self._peer.settimeout(self._moment.left())
        self._peer.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        """Open the answer."""
        del mode
        return io.BufferedReader(_Bytes(self._peer, self._moment))

    def close(self) -> None:
        """Stay open: ``http.client`` closes before it reads an answer that ends with the connection."""


class _TooLargeError(Exception):
    """More came than may."""


def _connect(address: Address, trust: Verified | None, moment: _Moment) -> ssl.SSLSocket:
    name, context = _server_name(address, trust), _tls_of(trust)
    plain = _dial(address, moment)
    try:
        plain.settimeout(moment.left())
        # An answer that ends with the connection is whole only if TLS says so.
        return context.wrap_socket(plain, server_hostname=name, suppress_ragged_eofs=False)
    except BaseException:
        plain.close()
        raise


def _connection(address: Address, peer: ssl.SSLSocket, moment: _Moment) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(address.host, address.port)
    connection.auto_open = 0
    connection.default_port = 443  # for the Host header
    connection.sock = cast("socket.socket", _Socket(peer, moment))
    return connection


def _tls_of(trust: Verified | None) -> ssl.SSLContext:
    return tls.unverified_context() if trust is None else tls.client_context(trust.ca_pem, trust.client)


def _server_name(address: Address, trust: Verified | None) -> str:
    name = (trust.server_name if trust else None) or address.host
    labels = name.split(".")
    if not name.isascii() or not name.isprintable() or not all(0 < len(label) <= _LABEL for label in labels):
        raise _RefusedError("no server has such a name")
    return name


def _dial(address: Address, moment: _Moment) -> socket.socket:
    """Connect to the first of the host's addresses that listens."""
    failed: OSError = OSError("the name has no address")
    places = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    for number, (family, kind, protocol, _, where) in enumerate(places):
        plain = socket.socket(family, kind, protocol)
        try:
            plain.settimeout(moment.left() / (len(places) - number))
            plain.connect(where)
        except OSError as error:
            plain.close()
            failed = error
        else:
            return plain
    raise failed


class _NodeError(Exception):
    """The server is a node."""


def _read(response: http.client.HTTPResponse) -> Answer:
    headers = tuple((name.lower(), value) for name, value in response.getheaders())
    if any(name == "content-encoding" and value.lower() != "identity" for name, value in headers):
        raise _RefusedError("its answer is compressed, which nobody asked for")
    body = response.read(LIMIT + 1)
    if len(body) > LIMIT:
        raise _TooLargeError
    if response.length:
        raise http.client.IncompleteRead(body)
    return Answer(response.status, headers, body)


class _RefusedError(Exception):
    """The answer is not what may come."""


@contextmanager
def _guard(address: Address) -> Generator[None]:
    """Translate foreign exceptions: the one place where those of the network end."""
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        raise Unavailable(
            Reason.SERVER_NOT_TRUSTED,
            f"the certificate of {address.url} does not pass: {error.verify_message}",
            remedy="if this machine's clock is right, this is not the cluster's server, or its certificate names it "
            "otherwise",
        ) from None
    except _NodeError:
        raise Unavailable(
            Reason.SERVER_NOT_TRUSTED,
            f"the certificate of {address.url} is a kubelet's, not an API server's",
            remedy="name an API server; if nobody named this one, a node poses as the cluster: look at its machine",
        ) from None
    except TimeoutError:
        raise _unavailable(address, f"gave no whole answer within {SECONDS:g} s") from None
    except (_RefusedError, _TooLargeError) as error:
        raise _unavailable(address, str(error) or f"its answer has more than {LIMIT} bytes") from None
    except ssl.SSLError as error:
        raise _unavailable(address, f"TLS failed: {error.reason or 'no reason given'}") from None
    except OSError as error:
        raise _unavailable(address, error.strerror or type(error).__name__) from None
    except (http.client.HTTPException, ValueError) as error:
        raise _unavailable(address, f"it cannot be asked, or its answer is no HTTP ({type(error).__name__})") from None


def _unavailable(address: Address, what: str) -> Unavailable:
    remedy = "see that the address is right and that this machine can reach it"
    return Unavailable(Reason.API_UNAVAILABLE, f"{address.url}: {what}", remedy=remedy)
