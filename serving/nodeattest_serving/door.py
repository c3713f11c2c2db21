"""Who may connect: connections are counted before their handshake, of each client and in all.

Promises: at most so many connections, in all and of one client; where all are taken, a newcomer gets the place of
whoever holds most. A handshake that takes too long ends. Where some can be told from strangers, strangers have few
places of their own and take none of theirs.
Leaves to others: what is spoken (``make``), for how long, and to tell when a connection has ended (``ended``).
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from nodeattest_kube.buckets import Buckets
from nodeattest_serving.places import Places
from nodeattest_serving.settings import Address, ConnectionLimits, SettingsError

__all__ = ["Door", "Strangers", "client_of"]

_HANDSHAKE: Final = 5.0
"""Seconds for a TLS handshake."""
_BACKLOG: Final = 128
_IPV6_CLIENT: Final = 64
"""Bits of an IPv6 address that a client cannot choose (RFC 6177)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strangers:
    """Who is a stranger after his handshake, and how many of them there may be besides those who are known.

    Before its handshake everybody is one. A newcomer gets the place of the oldest, of his own first: so whoever shares
    an address with many strangers still comes through his handshake.
    """

    is_one: Callable[[asyncio.BaseTransport], bool]
    connections: int
    connections_of_client: int


class _Arrival(asyncio.Protocol):
    """A connection before its handshake."""

    def __init__(self, arrived: Callable[[asyncio.Transport], None]) -> None:
        self._arrived = arrived

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand the connection over."""
        self._arrived(cast("asyncio.Transport", transport))


class Door:
    """One address; ``make`` makes the protocol of a connection that got in."""

    def __init__(
        self,
        make: Callable[[], asyncio.Protocol],
        address: Address,
        tls: ssl.SSLContext | None,
        limits: ConnectionLimits,
        *,
        arrivals: Buckets | None = None,
        strangers: Strangers | None = None,
    ) -> None:
        """``tls``: None for plain HTTP, behind something of ours or where the network is trusted.

        ``arrivals``: connections of a client in time. A handshake costs far more than closing a connection does, so
        whoever is far over his limit gets none. ``strangers``: None where everybody is one, and ``limits`` are for all.
        """
        self.port = 0
        """Where it listens; the chosen one where 0 was asked for."""
        self._make = make
        self._address = address
        self._tls = tls
        self._arrivals = arrivals
        self._strangers = strangers
        self._known = Places(limits.connections, limits.connections_of_client)
        self._arriving = self._known
        if strangers is not None:
            self._arriving = Places(strangers.connections, strangers.connections_of_client, renews=True)
        self._over = 0
        """Connections that came too fast."""
        self._inside: dict[asyncio.BaseProtocol, tuple[Places, str, asyncio.Transport]] = {}
        self._handshakes: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Server | None = None

    @property
    def turned_away(self) -> int:
        """Connections that were closed because there were too many, for metrics."""
        return self._over + sum(places.turned_away for places in {self._known, self._arriving})

    async def open(self) -> None:
        """Listen; raises ``SettingsError`` when the address cannot be had."""
        loop = asyncio.get_running_loop()
        try:
            self._listening = await loop.create_server(
                lambda: _Arrival(self._arrived), self._address.host or None, self._address.port, backlog=_BACKLOG
            )
        except OSError as error:
            why = "another process listens there" if error.errno == errno.EADDRINUSE else error.strerror
            raise SettingsError(f"expected an address to listen on, got {self._address}: {why}") from None
        self.port = int(self._listening.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Let nobody in any more; who is inside stays."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        for task in list(self._handshakes):
            task.cancel()

    def ended(self, protocol: asyncio.BaseProtocol) -> None:
        """Note that a connection has ended."""
        held = self._inside.pop(protocol, None)
        if held is not None:
            places, client, transport = held
            places.leave(client, transport)

    def _arrived(self, transport: asyncio.Transport) -> None:
        """Take a connection in, or turn it away."""
        client = client_of(transport.get_extra_info("peername"))
        if not self._arriving.may_come(client):
            transport.abort()
            return
        if self._arrivals is not None and not self._arrivals.take(client):
            self._over += 1
            transport.abort()
            return
        if not self._arriving.take(client, transport):
            transport.abort()
            return
        if self._tls is None:
            protocol = self._make()
            transport.set_protocol(protocol)
            self._let_in(protocol, transport, client, transport)
            return
        transport.pause_reading()
        task = asyncio.get_running_loop().create_task(self._shake_hands(transport, client, self._tls))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, transport: asyncio.Transport, client: str, tls: ssl.SSLContext) -> None:
        """Put TLS on a connection and HTTP on that; whatever fails ends it."""
        protocol = self._make()
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                protocol,
                tls,
                server_side=True,
                ssl_handshake_timeout=_HANDSHAKE,
                ssl_shutdown_timeout=_HANDSHAKE,
            )
        except BaseException as error:
            transport.abort()
            self._arriving.leave(client, transport)
            if isinstance(error, OSError):  # ssl.SSLError, a reset and a time limit are OSErrors
                error.__traceback__ = None  # its frames hold TLS's buffers (256 KiB) in a cycle, until gc has time
                return
            raise
        if secured is None:
            self._arriving.leave(client, transport)
            return
        self._let_in(protocol, secured, client, transport)

    def _let_in(
        self, protocol: asyncio.Protocol, spoken: asyncio.Transport, client: str, transport: asyncio.Transport
    ) -> None:
        places = self._arriving
        if transport.is_closing():  # it lost its place in this very moment
            places.leave(client, transport)
            return
        if self._strangers is not None and not self._strangers.is_one(spoken):
            places.leave(client, transport)
            places = self._known
            if not places.may_come(client) or not places.take(client, transport):
                transport.abort()
                return
        self._inside[protocol] = places, client, transport
        protocol.connection_made(spoken)


def client_of(peer: object) -> str:
    """Name a client by the address that its connection comes from; an IPv6 client by its network."""
    host = cast("tuple[object, ...]", peer)[0] if isinstance(peer, tuple) and peer else ""
    try:
        address = ipaddress.ip_address(str(host).partition("%")[0])
    except ValueError:
        return "unknown"
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, _IPV6_CLIENT), strict=False))
    return str(address)
