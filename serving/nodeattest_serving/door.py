"""Who may connect: connections are counted before their handshake, of each client and in all.

Promises: at most so many connections, in all and of one client; where all are taken, a newcomer gets the place of
whoever holds most. A handshake that takes too long ends.
Leaves to others: what is spoken (``make``), for how long, and to tell when a connection has ended (``ended``).
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import ssl
from collections.abc import Callable
from typing import Final, cast

from nodeattest_kube.buckets import Buckets
from nodeattest_serving.settings import Address, ConnectionLimits, SettingsError

__all__ = ["Door", "client_of"]

_HANDSHAKE: Final = 5.0
"""Seconds for a TLS handshake."""
_BACKLOG: Final = 128
_IPV6_CLIENT: Final = 64
"""Bits of an IPv6 address that a client cannot choose (RFC 6177)."""


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
    ) -> None:
        """``tls``: None for plain HTTP, behind something of ours or where the network is trusted.

        ``arrivals``: connections of a client in time. A handshake costs far more than closing a connection does, so
        whoever is far over his limit gets none.
        """
        self.port = 0
        """Where it listens; the chosen one where 0 was asked for."""
        self.turned_away = 0
        """Connections that were closed because there were too many, for metrics."""
        self._make = make
        self._address = address
        self._tls = tls
        self._limits = limits
        self._arrivals = arrivals
        self._count = 0
        self._clients: dict[str, dict[asyncio.Transport, None]] = {}
        """Connections of each client that has any, the oldest first."""
        self._inside: dict[asyncio.BaseProtocol, tuple[str, asyncio.Transport]] = {}
        self._handshakes: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Server | None = None

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
            self._leave(*held)

    def _arrived(self, transport: asyncio.Transport) -> None:
        """Take a connection in, or turn it away."""
        client = client_of(transport.get_extra_info("peername"))
        if not self._has_place(client):
            self.turned_away += 1
            transport.abort()
            return
        self._clients.setdefault(client, {})[transport] = None
        self._count += 1
        if self._tls is None:
            protocol = self._make()
            transport.set_protocol(protocol)
            self._let_in(protocol, transport, client, transport)
            return
        transport.pause_reading()
        task = asyncio.get_running_loop().create_task(self._shake_hands(transport, client, self._tls))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    def _has_place(self, client: str) -> bool:
        """Tell whether a client may have one more connection; where all are taken, at the cost of whoever has most.

        So a few clients that hold all they may do not keep others out: they lose their oldest.
        """
        own = len(self._clients.get(client, ()))
        if own >= self._limits.connections_of_client:
            return False
        if self._arrivals is not None and not self._arrivals.take(client):
            return False
        if self._count < self._limits.connections:
            return True
        greediest = max(self._clients, key=lambda each: len(self._clients[each]))
        if len(self._clients[greediest]) <= own:
            return False
        self.turned_away += 1
        oldest = next(iter(self._clients[greediest]))
        self._leave(greediest, oldest)
        oldest.abort()
        return True

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
            self._leave(client, transport)
            if isinstance(error, OSError):  # ssl.SSLError, a reset and a time limit are OSErrors
                error.__traceback__ = None  # its frames hold TLS's buffers (256 KiB) in a cycle, until gc has time
                return
            raise
        if secured is None:
            self._leave(client, transport)
            return
        self._let_in(protocol, secured, client, transport)

    def _let_in(
        self, protocol: asyncio.Protocol, spoken: asyncio.Transport, client: str, transport: asyncio.Transport
    ) -> None:
        self._inside[protocol] = client, transport
        protocol.connection_made(spoken)

    def _leave(self, client: str, transport: asyncio.Transport) -> None:
        held = self._clients.get(client, {})
        if transport in held:
            del held[transport]
            self._count -= 1
        if not held:
            self._clients.pop(client, None)


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
