"""A TCP or TLS server with connection limits that hold before the handshake, per client and in total.

At a limit, a new connection replaces another one (``ConnectionSlots``). Handshakes begin at a bounded rate, round robin
among clients. Clients that their handshake authenticates have slots of their own.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, cast

from nodeattest_kube.addresses import IPNetwork
from nodeattest_kube.periodic import RateLimiter
from nodeattest_providers.errors import Unavailable
from nodeattest_serving.connection_slots import ConnectionSlots
from nodeattest_serving.fair_semaphore import FairSemaphore

_MAX_PORT: Final = 65_535
_HANDSHAKE: Final = 5.0
"""Seconds for a TLS handshake."""
_HANDSHAKES: Final = 256.0
"""A second: each costs some 2 ms."""
_UNSENT: Final = 32 * 1024
"""Encrypted bytes that wait for a slow client before those that are not encrypted yet wait, too."""
RECEIVE_BUFFER: Final = 24 * 1024
"""Bytes of a connection in the kernel. asyncio reads all of them at once, and TLS holds them three times."""
_BACKLOG: Final = 1024
"""Connections that wait to be accepted: above, the kernel drops a client's packet, which comes again after a second."""
_LOG_PERIOD: Final = 60.0
"""Seconds between two log lines about connections from outside the allowed networks."""
_IPV6_CLIENT: Final = 64
"""Bits of an IPv6 address that a client cannot choose (RFC 6177)."""

log = logging.getLogger(__name__)


class SettingsError(ValueError):
    """A setting cannot be used; the message names the expected and the given value."""


@dataclass(frozen=True, slots=True)
class BindAddress:
    """A listen address."""

    host: str
    """Empty: every interface."""
    port: int
    """0: any free one."""

    @property
    def is_loopback(self) -> bool:
        return self.host in {"127.0.0.1", "::1"}

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_bind_address(text: str, flag: str) -> BindAddress:
    """Read ``host:port``, ``[IPv6]:port`` or ``:port``; raises ``SettingsError``, which names the flag."""
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not port.isascii() or not port.isdigit() or int(port) > _MAX_PORT or (":" in bare and bare == host):
        raise SettingsError(f"{flag}: expected host:port, got {text!a}")
    return BindAddress(bare, int(port))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of a listener, per client and in total."""

    connections: int = 256
    """In total; each costs some 300 KiB, most of it TLS buffers, before any authentication."""
    connections_of_client: int = 64
    connection_seconds: float = 15.0
    """Lifetime of a connection after its handshake; a kept connection ends with the first response after it."""
    idle_seconds: float | None = None
    """Between two requests of a kept connection; None: a connection ends after one response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnauthenticatedLimits:
    """Limits of connections that their handshake does not authenticate, in addition to those of the others."""

    is_unauthenticated: Callable[[asyncio.BaseTransport], bool]
    connections: int
    handshakes: float = _HANDSHAKES
    """A second; ``connections`` divided by it are the seconds that each handshake has at least."""


class _PendingConnection(asyncio.Protocol):
    def __init__(self, on_connect: Callable[[asyncio.BaseTransport], None]) -> None:
        self._on_connect = on_connect

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._on_connect(transport)


class BoundedServer(ABC):
    """A listener on one address."""

    def __init__(
        self,
        address: BindAddress,
        tls: ssl.SSLContext | None,
        limits: ConnectionLimits,
        *,
        unauthenticated: UnauthenticatedLimits | None = None,
        allowed: Collection[IPNetwork] = (),
    ) -> None:
        """``tls``: None for plain HTTP. ``allowed``: networks that clients may connect from; empty: any.

        ``unauthenticated``: None if no connection is authenticated by its handshake; then ``limits`` hold for all.
        """
        self.port = 0
        """The port that it listens on; the chosen one if 0 was asked for."""
        self.on_reject: Callable[[], None] = lambda: None
        """Called for each connection that is closed because there are too many, for metrics."""
        self._address = address
        self._tls = tls
        self._unauthenticated = unauthenticated
        self._slots = ConnectionSlots(limits.connections, limits.connections_of_client, self._reject)
        self._anonymous = self._slots
        """Slots of unauthenticated connections."""
        self._turns = FairSemaphore(limit=1, timeout=_HANDSHAKE)
        self._handshakes_per_second = _HANDSHAKES
        if unauthenticated is not None:
            most, self._handshakes_per_second = unauthenticated.connections, unauthenticated.handshakes
            self._anonymous = ConnectionSlots(most, most, self._reject)
        self._allowed = allowed
        self._disallowed_log = RateLimiter(burst=1, per_second=1 / _LOG_PERIOD, clock=time.monotonic)
        self._open: dict[asyncio.BaseProtocol, tuple[ConnectionSlots, asyncio.Transport]] = {}
        self._handshakes: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Server | None = None

    @abstractmethod
    def make(self) -> asyncio.Protocol:
        """Make the protocol of an accepted connection."""

    async def open(self) -> None:
        """Listen; raises ``SettingsError`` if the address is not available."""
        loop = asyncio.get_running_loop()
        try:
            self._listening = await loop.create_server(
                lambda: _PendingConnection(self._on_connect),
                self._address.host or None,
                self._address.port,
                backlog=_BACKLOG,
                start_serving=False,
            )
            for listening in self._listening.sockets:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            await self._listening.start_serving()
        except OSError as error:
            why = "another process listens there" if error.errno == errno.EADDRINUSE else error.strerror
            raise SettingsError(f"expected an address to listen on, got {self._address}: {why}") from None
        self.port = int(self._listening.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Accept no more connections; accepted ones stay."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        for task in list(self._handshakes):
            task.cancel()

    def ended(self, protocol: asyncio.BaseProtocol) -> None:
        held = self._open.pop(protocol, None)
        if held is not None:
            slots, transport = held
            slots.leave(transport)

    def keep(self, protocol: asyncio.BaseProtocol, owner: str) -> None:
        """Replace a connection by no other while a request of this authenticated caller is in progress on it."""
        held = self._open.get(protocol)
        if held is not None:
            slots, transport = held
            slots.keep(transport, owner)

    def request_ended(self, protocol: asyncio.BaseProtocol, *, authenticated: bool) -> None:
        """Note the end of a request, and whether it was that of an authenticated caller."""
        held = self._open.get(protocol)
        if held is not None:
            slots, transport = held
            slots.request_ended(transport, authenticated=authenticated)

    def _on_connect(self, accepted: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", accepted)
        peer = transport.get_extra_info("peername")
        client = client_of(peer)
        if not self._is_allowed(peer):
            transport.abort()
        elif self._tls is not None:
            transport.pause_reading()
            task = asyncio.get_running_loop().create_task(self._handshake(transport, client, self._tls))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)
        elif self._anonymous.take(client, transport):
            protocol = self.make()
            transport.set_protocol(protocol)
            self._accept(protocol, transport, client, transport)
        else:
            transport.abort()

    async def _handshake(self, transport: asyncio.Transport, client: str, tls: ssl.SSLContext) -> None:
        secured: asyncio.Transport | None = None
        try:
            if not await self.await_turn(client):
                self.on_reject()
                return
            if not self._anonymous.take(client, transport):
                return
            protocol = self.make()
            transport.set_write_buffer_limits(high=_UNSENT)
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                protocol,
                tls,
                server_side=True,
                ssl_handshake_timeout=_HANDSHAKE,
                ssl_shutdown_timeout=_HANDSHAKE,
            )
            if secured is not None:
                self._accept(protocol, secured, client, transport)
        except OSError as error:  # ssl.SSLError, a reset and a time limit are OSErrors
            error.__traceback__ = None  # its frames hold TLS's buffers in a cycle, until gc has time
        finally:
            if secured is None:
                transport.abort()
                self._anonymous.leave(transport)

    def _reject(self) -> None:
        self.on_reject()

    async def await_turn(self, client: str) -> bool:
        """Wait for a client's turn to begin a handshake; False: too many wait."""
        try:
            async with self._turns.acquire(client):
                await asyncio.sleep(1 / self._handshakes_per_second)
        except Unavailable:
            return False
        return True

    def _is_allowed(self, peer: object) -> bool:
        """Return whether a client may connect; log at most one a minute that may not."""
        address = _address_of(peer)
        if not self._allowed or any(address in network for network in self._allowed if address is not None):
            return True
        if self._disallowed_log.take(""):
            log.warning("closed connections from outside the allowed networks, the last one from %s", address)
        return False

    def _accept(
        self, protocol: asyncio.Protocol, spoken: asyncio.Transport, client: str, transport: asyncio.Transport
    ) -> None:
        slots = self._anonymous
        if transport.is_closing():  # its slot was given away meanwhile
            slots.leave(transport)
            return
        if self._unauthenticated is not None and not self._unauthenticated.is_unauthenticated(spoken):
            slots.leave(transport)
            slots = self._slots
            if not slots.take(client, transport):
                transport.abort()
                return
        self._open[protocol] = slots, transport
        protocol.connection_made(spoken)


def client_of(peer: object) -> str:
    """Name a client by the address that its connection comes from; an IPv6 client by its network."""
    address = _address_of(peer)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, _IPV6_CLIENT), strict=False))
    return "unknown" if address is None else str(address)


def _address_of(peer: object) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    host = cast("tuple[object, ...]", peer)[0] if isinstance(peer, tuple) and peer else ""
    try:
        address = ipaddress.ip_address(str(host).partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
