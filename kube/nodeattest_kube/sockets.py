"""Sockets to one API server: to which addresses, how much may come before an answer, and answers in turns.

Promises: an address that is refused is never connected to, whatever name led there. A peer sends a bounded number of
bytes for the handshakes and a proxy's answer, and again before the head of an answer. The body of a
tenant's answer is decrypted in its cluster's turns, at most 32 KiB in each; meanwhile the socket is not read.
TLS records of one byte cost a hundred times their bytes, so the time is measured, not the bytes.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, cast
from weakref import WeakValueDictionary

from aiohttp import StreamReader
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import Connection

from nodeattest_kube.addresses import AddressRefused, AddressRules
from nodeattest_kube.input_scheduler import ClusterInput

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


AddressInfos = Sequence[tuple[int, int, int, str, Any]]
"""What ``getaddrinfo`` returns: family, type, protocol, canonical name, address."""
Resolver = Callable[[str, int], Awaitable[AddressInfos]]
"""Looks a host name up; raises OSError."""

_READ: Final = 1 << 14
"""Bytes of one read; asyncio would take 256 KiB."""
_BEFORE_ANSWER: Final = 1 << 16
"""Bytes, encrypted, that may come before the head of an answer was read. Go writes some hundreds, after a handshake of
some thousands."""
_HONEST: Final = 1 << 13
"""Bytes that a handshake takes, or a small answer."""
_SECONDS_A_READ: Final = 50e-6
_SECONDS_A_BYTE: Final = 0.25e-6
"""What is charged before an answer, for bytes beyond the honest ones: records of one byte take 5 µs for 23 bytes."""
MOST_ADDRESSES: Final = 4
"""Addresses of one family that a name may lead to."""
_DEAD_PEER: Final = 30
"""Seconds without any TCP acknowledgement until a connection counts as dead (client-go: HTTP/2 ping after 30 s)."""


class ApiSocket(socket.socket):
    """A socket whose dead peer the kernel notices, idle or not (RFC 1122 §4.2.3.6, RFC 5482)."""

    def __init__(self, family: int, kind: int, protocol: int, turns: ClusterInput | None) -> None:
        super().__init__(family, kind, protocol)
        self.turns = turns
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
        """Receive some bytes; raises OSError where too many came before an answer."""
        data = super().recv(min(bufsize, _READ), flags)
        self._count(len(data))
        return data

    def recv_into(self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0) -> int:
        """Receive some bytes; raises OSError where too many came before an answer."""
        count = super().recv_into(memoryview(buffer)[:_READ], nbytes, flags)
        self._count(count)
        return count

    def _count(self, count: int) -> None:
        if self.on_input is not None:
            self.on_input()
            return
        self._room -= count
        if self.turns is not None:
            beyond = max(0, min(count, _BEFORE_ANSWER - _HONEST - self._room))
            self.turns.charge(_SECONDS_A_READ + beyond * _SECONDS_A_BYTE)
        if self._room < 0:
            raise ConnectionAbortedError(f"more than {_BEFORE_ANSWER} bytes before an answer")


class SocketFactory:
    """Opens the sockets to one server, or to its proxy."""

    def __init__(self, addresses: AddressRules | None) -> None:
        self._addresses = addresses
        self.turns: ClusterInput | None = None
        """In which what is received is decrypted; None: as it comes."""
        self.refused = ""
        """Why the last connection was not begun; empty where it was, and once the server answered."""
        self._by_number: WeakValueDictionary[int, ApiSocket] = WeakValueDictionary()

    def __call__(self, address: tuple[Any, ...]) -> ApiSocket:
        """Open a socket for what ``connect`` gets next; raises OSError for a refused address."""
        if self._addresses is not None:
            try:
                self._addresses.check(str(address[4][0]))
            except AddressRefused as refused:
                self.refused = str(refused)
                raise
            self.refused = ""
        opened = ApiSocket(address[0], address[1], address[2], self.turns)
        self._by_number[opened.fileno()] = opened
        return opened

    def of(self, connection: Connection) -> ApiSocket:
        """Return the socket of a connection; raises ConnectionError if it is closed."""
        transport = connection.transport
        number = -1 if transport is None else transport.get_extra_info("socket").fileno()
        if number == -1:
            raise ConnectionResetError
        return self._by_number[number]


class _Limited(Protocol):
    """What a TLS transport has besides what typeshed knows of transports."""

    def set_read_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Stop reading the socket at so many bytes that are not decrypted."""
        ...


class PacedInput:
    """The body of one answer, as it is decrypted: a piece in each turn, while somebody waits for it."""

    def __init__(
        self, received: ApiSocket, turns: ClusterInput, transport: asyncio.Transport, body: StreamReader
    ) -> None:
        self._socket, self._turns, self._transport, self._body = received, turns, transport, body
        self._is_wanted = False
        self._has_come = True
        """Whether bytes may wait that are not decrypted."""
        self.waits = False
        """Whether a turn is waited for: it is not the peer who is silent."""
        cast("_Limited", transport).set_read_buffer_limits(_READ)
        transport.pause_reading()
        received.on_input = self._come

    def want(self) -> None:
        """Decrypt a piece in the next turn, or in the first one after bytes came."""
        if self._is_over():
            return
        self._transport.pause_reading()  # aiohttp may have started it
        self._is_wanted = True
        self._wait_for_turn()

    def got(self) -> None:
        """Decrypt nothing more until somebody wants it."""
        self._is_wanted = False

    def _come(self) -> None:
        self._has_come = True
        self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        if self._is_wanted and self._has_come and not self.waits:
            self.waits = True
            self._turns.call_in_turn(self._grant)

    def _grant(self) -> bool:
        """Have the loop decrypt what came, and then stop."""
        self.waits = self._has_come = False
        if self._is_over():
            return False
        self._transport.resume_reading()  # has the loop call what decrypts
        asyncio.get_running_loop().call_soon(self._stop)
        return True

    def _stop(self) -> None:
        if self._is_over():
            self._socket.expect_answer()
        else:
            self._transport.pause_reading()

    def _is_over(self) -> bool:
        """Whether the answer is read: its connection may serve another request already."""
        return self._body.is_eof() or self._transport.is_closing()


def _first_of_each_family(infos: AddressInfos) -> Iterator[tuple[int, int, tuple[Any, ...]]]:
    """Yield a few addresses: aiohttp tries all of them, again and again, and a tenant's name may have thousands."""
    count = Counter[int]()
    for family, _kind, protocol, _name, address in infos:
        count[family] += 1
        if count[family] <= MOST_ADDRESSES:
            yield family, protocol, address


class TenantResolver(AbstractResolver):
    """Has a tenant's names looked up by somebody else than the loop's threads."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Look a name up; raises OSError."""
        del family
        return [
            ResolveResult(
                hostname=host, host=address[0], port=port, family=found, proto=protocol, flags=socket.AI_NUMERICHOST
            )
            for found, protocol, address in _first_of_each_family(await self._resolver(host, port))
        ]

    async def close(self) -> None:
        """Own nothing."""
