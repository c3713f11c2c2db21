"""A TCP or TLS server with connection limits that hold before the handshake: per client and in total.

At the total limit, a new connection replaces another one (``ConnectionSlots``). A handshake that takes too long is
aborted, and handshakes begin at a bounded rate, round robin among clients (``HandshakeBudget``). Where clients can be
authenticated by their handshake or their address, the other connections have slots of their own. Connections from
outside the allowed networks are closed at accept.
Out of scope: the protocol (``make``), its time limits, and the report of a connection's end (``ended``).
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
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, cast

from nodeattest_kube.addresses import IPNetwork
from nodeattest_kube.periodic import RateLimiter

_OWNERS: Final = 4
"""Callers that together can keep all slots: two might be one person's accounts."""

_Group = dict[str, dict[asyncio.Transport, None]]
"""Connections by the name of who holds them, the oldest first."""


def share_of_owner(most: int) -> int:
    """Return how many of ``most`` slots one authenticated caller can keep from others."""
    return max(1, most // _OWNERS)


@dataclass(slots=True)
class _Slot:
    client: str
    owner: str | None = None
    """The authenticated caller; None: replaceable."""


class ConnectionSlots:
    """The slots of one kind of connections."""

    def __init__(self, most: int, most_of_client: int, *, replaces_oldest: bool = False) -> None:
        """``replaces_oldest``: at its own limit, a client's new connection replaces its oldest; else it is refused."""
        self.turned_away = 0
        """Connections that got no slot, or lost theirs."""
        self._most = most
        self._most_of_client = most_of_client
        self._replaces_oldest = replaces_oldest
        self._slots: dict[asyncio.Transport, _Slot] = {}
        self._of_client: Counter[str] = Counter()
        self._of_owner: Counter[str] = Counter()
        self._replaceable: _Group = {}
        """By client."""
        self._idle: _Group = {}
        """By owner."""

    def may_come(self, client: str) -> bool:
        """Whether a client is below its own limit, or may replace a connection."""
        if self._replaces_oldest or self._of_client[client] < self._most_of_client:
            return True
        self.turned_away += 1
        return False

    def take(self, client: str, transport: asyncio.Transport) -> bool:
        """Give a connection a slot, if need be that of another; False if there is none."""
        if not self.may_come(client):
            return False
        if self._of_client[client] >= self._most_of_client:
            victim = _oldest(self._replaceable, client) or self._idle_victim()
        elif len(self._slots) >= self._most:
            victim = self._victim(client)
        else:
            victim = transport
        if victim is None:
            self.turned_away += 1
            return False
        if victim is not transport:
            self.turned_away += 1
            self.leave(victim)
            victim.abort()
        self._slots[transport] = _Slot(client)
        self._of_client[client] += 1
        self._replaceable.setdefault(client, {})[transport] = None
        return True

    def keep(self, transport: asyncio.Transport, owner: str) -> None:
        """Note that a request of this authenticated caller is in progress on a connection."""
        slot = self._slots.get(transport)
        if slot is not None:
            self._set_owner(transport, slot, owner)

    def request_ended(self, transport: asyncio.Transport, *, authenticated: bool) -> None:
        """Keep a connection while it is idle if its request was that of an authenticated caller, else no longer."""
        slot = self._slots.get(transport)
        if slot is None or slot.owner is None:
            return
        if authenticated:
            self._idle.setdefault(slot.owner, {})[transport] = None
        else:
            self._set_owner(transport, slot, None)
            self._replaceable.setdefault(slot.client, {})[transport] = None

    def leave(self, transport: asyncio.Transport) -> None:
        """Free a connection's slot, if it has one."""
        slot = self._slots.pop(transport, None)
        if slot is None:
            return
        self._set_owner(transport, slot, None)
        self._of_client -= Counter((slot.client,))

    def _set_owner(self, transport: asyncio.Transport, slot: _Slot, owner: str | None) -> None:
        """Make a connection busy for an owner, or for nobody."""
        _discard(self._replaceable, slot.client, transport)
        if slot.owner is not None:
            _discard(self._idle, slot.owner, transport)
            self._of_owner -= Counter((slot.owner,))
        slot.owner = owner
        if owner is not None:
            self._of_owner[owner] += 1

    def _victim(self, client: str) -> asyncio.Transport | None:
        # 1
        hog = max(self._idle, key=self._of_owner.__getitem__, default=None)
        if hog is not None and self._of_owner[hog] > share_of_owner(self._most):
            return _oldest(self._idle, hog)
        # 2
        loser = max(self._replaceable, key=lambda each: len(self._replaceable[each]), default=None)
        if loser is not None and (
            self._replaces_oldest or len(self._replaceable[loser]) > len(self._replaceable.get(client, ()))
        ):
            return _oldest(self._replaceable, loser)
        return self._idle_victim()

    def _idle_victim(self) -> asyncio.Transport | None:
        # 3
        owner = max(self._idle, key=self._of_owner.__getitem__, default=None)
        return None if owner is None else _oldest(self._idle, owner)


def _oldest(group: _Group, name: str) -> asyncio.Transport | None:
    return next(iter(group.get(name, ())), None)


def _discard(group: _Group, name: str, transport: asyncio.Transport) -> None:
    held = group.get(name, {})
    held.pop(transport, None)
    if not held:
        group.pop(name, None)


_MAX_WAITING: Final = 256


class HandshakeBudget:
    """The budget of one listener.

    If too many wait, a client that already waits gets no further turn, so a flood costs a constant time a connection.
    A client that does not wait yet takes the newest turn of the client that has most.
    """

    def __init__(self, per_second: float) -> None:
        self._pause = 1 / per_second
        self._next = 0.0
        """Loop time of the next handshake."""
        self._timer: asyncio.TimerHandle | None = None
        """Runs while any wait."""
        self._count = 0
        self._waiting: OrderedDict[str, deque[asyncio.Future[bool]]] = OrderedDict()
        """By client; the one that is served next is the first."""

    async def wait(self, client: str) -> bool:
        """Wait until a handshake of a client may begin; False: too many wait."""
        if self._count >= _MAX_WAITING and (client in self._waiting or not self._make_room()):
            return False
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        self._count += 1
        if self._timer is None:
            self._serve()
        return await turn

    def _serve(self) -> None:
        """Begin one: a busy event loop begins one in each pass, and so delays no handshake that has begun."""
        loop = asyncio.get_running_loop()
        now, self._timer = loop.time(), None
        if self._next <= now:
            client = next(iter(self._waiting))
            self._waiting.move_to_end(client)
            self._next = now + self._pause
            self._end(client, self._waiting[client].popleft(), may_begin=True)
        if self._waiting:
            self._timer = loop.call_at(self._next, self._serve)

    def _make_room(self) -> bool:
        """Take the newest turn of the client that has most; False if each has one."""
        client = max(self._waiting, key=lambda each: len(self._waiting[each]))
        if len(self._waiting[client]) < 2:  # noqa: PLR2004 - its only one
            return False
        self._end(client, self._waiting[client].pop(), may_begin=False)
        return True

    def _end(self, client: str, turn: asyncio.Future[bool], *, may_begin: bool) -> None:
        self._count -= 1
        if not self._waiting[client]:
            del self._waiting[client]
        if not turn.done():  # its connection may have ended
            turn.set_result(may_begin)


_MAX_PORT: Final = 65_535


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
        """Whether only this machine can connect."""
        return self.host in {"127.0.0.1", "::1"}

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of a listener, per client and in total."""

    connections: int = 256
    """In total; each costs some 300 KiB, most of it TLS buffers, before any authentication."""
    connections_of_client: int = 64
    replaces_oldest: bool = False
    """A connection over a limit replaces the oldest one, of its own client, too; else it may be refused."""
    connection_seconds: float = 15.0
    """For the whole life of a connection after its handshake, which has five: one request takes milliseconds.

    Where connections are kept, the answer after this is the last one.
    """
    idle_seconds: float | None = None
    """Connections are kept for further requests, and each must be here so long after the answer before it.

    None: a connection ends after one answer.
    """


def parse_bind_address(text: str, flag: str) -> BindAddress:
    """Read ``host:port``, ``[IPv6]:port`` or ``:port``; raises ``SettingsError``, which names the flag."""
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not port.isascii() or not port.isdigit() or int(port) > _MAX_PORT or (":" in bare and bare == host):
        raise SettingsError(f"{flag}: expected host:port, got {text!a}")
    return BindAddress(bare, int(port))


_HANDSHAKE: Final = 5.0
"""Seconds for a TLS handshake."""
_HANDSHAKES: Final = 256.0
"""A second, where no connection is authenticated by its handshake: each costs some 2 ms."""
_UNSENT: Final = 32 * 1024
"""Encrypted bytes that wait for a slow client before those that are not encrypted yet wait, too."""
RECEIVE_BUFFER: Final = 24 * 1024
"""Bytes of a connection in the kernel, which takes twice as many. asyncio reads all of them at once, and with TLS holds
them three times, so they are most of what a connection costs whose other side does not read."""
_BACKLOG: Final = 1024
"""Connections that the kernel has accepted: above, it drops a client's packet, which comes again after a second."""
_LOG_PERIOD: Final = 60.0
"""Seconds between two log lines about connections from outside the allowed networks."""
_IPV6_CLIENT: Final = 64
"""Bits of an IPv6 address that a client cannot choose (RFC 6177)."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnauthenticatedLimits:
    """Limits of unauthenticated connections, in addition to those of authenticated ones.

    Before its handshake every connection is unauthenticated.
    """

    is_unauthenticated: Callable[[asyncio.BaseTransport], bool]
    connections: int
    handshakes: float
    """A second: ``connections`` divided by it are the seconds that each handshake has at least."""


class _PendingConnection(asyncio.Protocol):
    """A connection before its handshake."""

    def __init__(self, on_connect: Callable[[asyncio.BaseTransport], None]) -> None:
        self._on_connect = on_connect

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand the connection over."""
        self._on_connect(transport)


class BoundedServer(ABC):
    """A listener on one address."""

    def __init__(
        self,
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
        self._address = address
        self._tls = tls
        self._arrivals = arrivals
        self._unauthenticated = unauthenticated
        self._slots = ConnectionSlots(
            limits.connections, limits.connections_of_client, replaces_oldest=limits.replaces_oldest
        )
        self._anonymous = self._slots
        """Slots of unauthenticated connections."""
        self._budget = HandshakeBudget(_HANDSHAKES if unauthenticated is None else unauthenticated.handshakes)
        if unauthenticated is not None:
            most = unauthenticated.connections
            self._anonymous = ConnectionSlots(most, most, replaces_oldest=True)
        self._allowed = allowed
        self._disallowed_log = RateLimiter(burst=1, per_second=1 / _LOG_PERIOD, clock=time.monotonic)
        self._over = 0
        """Connections over the rate limit, or the limit of those that wait."""
        self._open: dict[asyncio.BaseProtocol, tuple[ConnectionSlots, asyncio.Transport]] = {}
        self._handshakes: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Server | None = None

    @abstractmethod
    def make(self) -> asyncio.Protocol:
        """Make the protocol of an accepted connection."""

    @property
    def turned_away(self) -> int:
        """Connections that were closed because there were too many, for metrics."""
        return self._over + sum(slots.turned_away for slots in {self._slots, self._anonymous})

    async def open(self) -> None:
        """Listen; raises ``SettingsError`` when the address cannot be had."""
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
            raise cannot_listen(self._address, error) from None
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
        """Accept a connection, or abort it."""
        transport = cast("asyncio.Transport", accepted)
        peer = transport.get_extra_info("peername")
        client = client_of(peer)
        if not self._is_allowed(peer) or not self._anonymous.may_come(client):
            transport.abort()
        elif self._arrivals is not None and not self._arrivals.take(client):
            self._over += 1
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
        """Do the TLS handshake; any failure ends the connection."""
        secured: asyncio.Transport | None = None
        try:
            if not await self._budget.wait(client):
                self._over += 1
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


def cannot_listen(address: BindAddress, error: OSError) -> SettingsError:
    """Return the error of an address that cannot be had."""
    why = "another process listens there" if error.errno == errno.EADDRINUSE else error.strerror
    return SettingsError(f"expected an address to listen on, got {address}: {why}")


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
