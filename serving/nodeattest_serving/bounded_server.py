"""A TCP or TLS server with connection limits that hold before the handshake: per client and in total.

At the total limit, a new connection replaces the oldest one of the client that holds most, but none with a request of
an authenticated caller in progress (``keep``). Handshakes are scheduled fairly among clients: a connection that only
waits for its handshake takes no slot, and loses none. A handshake that takes too long is aborted. Where clients can be
authenticated by their handshake or their address, unauthenticated connections have limits of their own and take no slot
of authenticated ones. Connections from outside the allowed networks are closed at accept.
Leaves to others: the protocol (``make``), its time limits, and the report of a connection's end (``ended``).
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import ssl
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, cast

from nodeattest_kube.addresses import IPNetwork
from nodeattest_kube.rate_limiter import RateLimiter
from nodeattest_serving.connection_slots import ConnectionSlots
from nodeattest_serving.fair_scheduler import FairScheduler, ScheduleKey
from nodeattest_serving.free_memory import FreeMemory, reuse_freed
from nodeattest_serving.handshake_budget import HandshakeBudget
from nodeattest_serving.pending_slots import PROTECTED, PendingSlots
from nodeattest_serving.proven_clients import ProvenClients
from nodeattest_serving.read_buffers import use_small_buffers
from nodeattest_serving.settings import BindAddress, ConnectionLimits, SettingsError

__all__ = ["BoundedServer", "UnauthenticatedLimits", "client_of"]

_HANDSHAKE: Final = 5.0
"""Seconds for a TLS handshake."""
_UNSENT: Final = 32 * 1024
"""Encrypted bytes that wait for a slow client before those that are not encrypted yet wait, too."""
_BACKLOG: Final = 1024
"""Connections that the kernel has accepted: above, it drops a client's packet, which comes again after a second."""
_WAITING: Final = 256
"""Connections that wait for their handshake: some KiB each. With requests that wait (``connection``), 1,024 in all."""
_LOG_PERIOD: Final = 60.0
"""Seconds between two log lines about connections from outside the allowed networks."""
_IPV6_CLIENT: Final = 64
"""Bits of an IPv6 address that a client cannot choose (RFC 6177)."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnauthenticatedLimits:
    """Limits of unauthenticated connections, in addition to those of authenticated ones.

    Before its handshake every connection is unauthenticated. A new one replaces an older one (``PendingSlots``), so
    a client that shares its address with many unauthenticated ones can still complete its handshake.
    """

    is_unauthenticated: Callable[[asyncio.BaseTransport], bool]
    connections: int
    connections_of_client: int
    proven: ProvenClients | None = None
    """Addresses whose connections have slots of their own before the handshake, too.

    Other handshakes begin at a rate of ``connections`` in ``PROTECTED`` seconds, so none loses its slot sooner.
    """


@dataclass(frozen=True, slots=True)
class _Unproven:
    """Connections of clients that are not proven."""

    proven: ProvenClients
    slots: PendingSlots
    budget: HandshakeBudget


class _PendingConnection(asyncio.Protocol):
    """A connection before its handshake."""

    def __init__(self, on_connect: Callable[[asyncio.Transport], None]) -> None:
        self._on_connect = on_connect

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand the connection over."""
        self._on_connect(cast("asyncio.Transport", transport))


class BoundedServer:
    """A listener on one address; ``make`` makes the protocol of an accepted connection."""

    def __init__(
        self,
        make: Callable[[], asyncio.Protocol],
        address: BindAddress,
        tls: ssl.SSLContext | None,
        limits: ConnectionLimits,
        *,
        arrivals: RateLimiter | None = None,
        unauthenticated: UnauthenticatedLimits | None = None,
        allowed: Collection[IPNetwork] = (),
    ) -> None:
        """``tls``: None for plain HTTP, behind a proxy of ours or on a trusted network.

        ``arrivals``: rate limit of a client's new connections. A handshake costs far more than closing a connection, so
        a client over its limit gets none. ``unauthenticated``: None where no connection is authenticated by its
        handshake; then ``limits`` hold for all. ``allowed``: networks that clients may connect from; empty: any.
        """
        self.port = 0
        """Where it listens; the chosen one where 0 was asked for."""
        self._make = make
        self._address = address
        self._tls = tls
        self._arrivals = arrivals
        self._unauthenticated = unauthenticated
        self._known = ConnectionSlots(
            limits.connections, limits.connections_of_client, replaces_oldest=limits.replaces_oldest
        )
        self._allowed = allowed
        self._disallowed_log = RateLimiter(burst=1, per_second=1 / _LOG_PERIOD, clock=time.monotonic)
        self._arriving: ConnectionSlots | PendingSlots = self._known
        self._unproven: _Unproven | None = None
        """None: these are among ``_arriving``."""
        if unauthenticated is not None:
            self._arriving = _pending(unauthenticated)
            if unauthenticated.proven is not None:
                budget = HandshakeBudget(unauthenticated.connections / PROTECTED)
                self._unproven = _Unproven(unauthenticated.proven, _pending(unauthenticated), budget)
                unauthenticated.proven.on_add = self._move
        self._over = 0
        """Connections over the rate limit, or the limit of those that wait."""
        self._inside: dict[asyncio.BaseProtocol, tuple[ConnectionSlots | PendingSlots, str, asyncio.Transport]] = {}
        self._scheduler = FairScheduler(_WAITING, delay=self._arriving.delay)
        """For handshakes, which cost more than most requests."""
        self._handshakes: set[asyncio.Task[None]] = set()
        self._memory = FreeMemory()
        self._listening: asyncio.Server | None = None

    @property
    def turned_away(self) -> int:
        """Connections that were closed because there were too many, for metrics."""
        unproven = self._unproven.slots.turned_away if self._unproven else 0
        return self._over + unproven + sum(slots.turned_away for slots in {self._known, self._arriving})

    async def open(self) -> None:
        """Listen; raises ``SettingsError`` when the address cannot be had."""
        loop = asyncio.get_running_loop()
        use_small_buffers()
        reuse_freed()
        try:
            self._listening = await loop.create_server(
                lambda: _PendingConnection(self._on_connect),
                self._address.host or None,
                self._address.port,
                backlog=_BACKLOG,
            )
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
        """Note that a connection has ended."""
        held = self._inside.pop(protocol, None)
        if held is not None:
            slots, client, transport = held
            self._leave(slots, client, transport)
            self._memory.connections(len(self._inside) + len(self._handshakes))

    def keep(self, protocol: asyncio.BaseProtocol, owner: str) -> None:
        """Replace a connection by no other while a request of this authenticated caller is in progress on it."""
        held = self._inside.get(protocol)
        if held is not None and held[0] is self._known:
            _, client, transport = held
            self._known.keep(client, transport, owner)

    def request_ended(self, protocol: asyncio.BaseProtocol, *, authenticated: bool) -> None:
        """Note the end of a request, and whether it was that of an authenticated caller."""
        held = self._inside.get(protocol)
        if held is not None and held[0] is self._known:
            _, client, transport = held
            self._known.request_ended(client, transport, authenticated=authenticated)

    def _leave(self, slots: ConnectionSlots | PendingSlots, client: str, transport: asyncio.Transport) -> None:
        """Free a connection's slot, which a handshake may wait for."""
        slots.leave(client, transport)
        self._scheduler.resume()

    def _on_connect(self, transport: asyncio.Transport) -> None:
        """Accept a connection, or abort it."""
        peer = transport.get_extra_info("peername")
        client = client_of(peer)
        if not self._is_allowed(peer):
            transport.abort()
            return
        if not self._arriving.may_come(client):
            transport.abort()
            return
        if self._arrivals is not None and not self._arrivals.take(client):
            self._over += 1
            transport.abort()
            return
        if self._tls is None:
            if not self._arriving.take(client, transport):
                transport.abort()
                return
            protocol = self._make()
            transport.set_protocol(protocol)
            self._accept(protocol, transport, client, transport, self._arriving)
            return
        transport.pause_reading()
        task = asyncio.get_running_loop().create_task(self._handshake(transport, client, self._tls))
        self._handshakes.add(task)
        task.add_done_callback(self._handshake_ended)
        self._memory.connections(len(self._inside) + len(self._handshakes))

    def _handshake_ended(self, task: asyncio.Task[None]) -> None:
        self._handshakes.discard(task)
        self._memory.connections(len(self._inside) + len(self._handshakes))

    async def _handshake(self, transport: asyncio.Transport, client: str, tls: ssl.SSLContext) -> None:
        """Do the TLS handshake; any failure ends the connection."""
        unproven = self._unproven if self._unproven and client not in self._unproven.proven else None
        slots = unproven.slots if unproven else self._arriving
        try:
            turn = unproven.budget.wait(client) if unproven else self._scheduler.wait(ScheduleKey(client))
            if not await turn:
                self._over += 1
                transport.abort()
                return
            if not slots.take(client, transport):
                transport.abort()
                return
            protocol = self._make()
            transport.set_write_buffer_limits(high=_UNSENT)
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                protocol,
                tls,
                server_side=True,
                ssl_handshake_timeout=_HANDSHAKE,
                ssl_shutdown_timeout=_HANDSHAKE,
            )
        except BaseException as error:  # the end of the task: whatever ended it, the connection does, too
            transport.abort()
            self._leave(slots, client, transport)
            if isinstance(error, OSError):  # ssl.SSLError, a reset and a time limit are OSErrors
                error.__traceback__ = None  # its frames hold TLS's buffers in a cycle, until gc has time
                return
            raise
        if secured is None:
            self._leave(slots, client, transport)
            return
        self._accept(protocol, secured, client, transport, slots)

    def _move(self, client: str) -> None:
        """Give the connections of a client that has become proven slots of authenticated ones."""
        for protocol, (slots, name, transport) in list(self._inside.items()):
            if name == client and not self._is_unauthenticated(transport) and self._known.take(client, transport):
                self._leave(slots, client, transport)
                self._inside[protocol] = self._known, client, transport

    def _is_unauthenticated(self, transport: asyncio.BaseTransport) -> bool:
        return self._unauthenticated is None or self._unauthenticated.is_unauthenticated(transport)

    def _is_allowed(self, peer: object) -> bool:
        """Return whether a client may connect; log at most one a minute that may not."""
        address = _address_of(peer)
        if not self._allowed or any(address in network for network in self._allowed if address is not None):
            return True
        if self._disallowed_log.take(""):
            log.warning("closed connections from outside the allowed networks, the last one from %s", address)
        return False

    def _accept(
        self,
        protocol: asyncio.Protocol,
        spoken: asyncio.Transport,
        client: str,
        transport: asyncio.Transport,
        slots: ConnectionSlots | PendingSlots,
    ) -> None:
        if transport.is_closing():  # its slot was given away meanwhile
            self._leave(slots, client, transport)
            return
        if self._unauthenticated is not None and not self._unauthenticated.is_unauthenticated(spoken):
            self._leave(slots, client, transport)
            slots = self._known
            if not slots.take(client, transport):
                transport.abort()
                return
        self._inside[protocol] = slots, client, transport
        self._memory.connections(len(self._inside) + len(self._handshakes))
        protocol.connection_made(spoken)


def _pending(limits: UnauthenticatedLimits) -> PendingSlots:
    return PendingSlots(limits.connections, limits.connections_of_client)


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
