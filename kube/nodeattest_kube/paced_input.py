"""What a connection's bytes cost before anybody reads an answer in them: TLS records, fields, chunks.

Promises: the time that the event loop spends on what one connection receives, from the handshake on, is charged,
measured, whatever it is made of: records of one byte, records without any, session tickets, a head. While that is not
paid, or the connection has enough, the socket is not read, so nothing piles up that is decrypted later.
Leaves what is made of the bytes to ``read_pace`` and ``client``, and how long a handshake takes to the limit for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from nodeattest_kube.http1 import HttpConnection
from nodeattest_kube.read_pace import LONG, Pace

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["READING", "PacedInput"]

_READ: Final = 1 << 14
"""Bytes of one read; asyncio would take 256 KiB."""
READING: Final = 10_000
"""Nanoseconds of the loop, to learn of bytes and to receive them, before any is looked at."""


class PacedInput(asyncio.BufferedProtocol):
    """Stands between the socket's transport and the protocol that decrypts, and alone stops and starts the former."""

    def __init__(
        self,
        transport: asyncio.Transport,
        connection: HttpConnection,
        pace: Pace,
        *,
        clock: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        """``transport`` is the socket's, with its protocol; ``connection`` gets what that decrypts."""
        self._inner = cast("asyncio.BufferedProtocol", transport.get_protocol())  # since start_tls
        self._transport, self._connection, self._pace, self._clock = transport, connection, pace, clock
        self._owed = 0
        self._payment: asyncio.Task[None] | None = None
        transport.set_protocol(self)
        connection.read_by(self._read_on)

    def get_buffer(self, sizehint: int) -> ReadableBuffer:
        """Give a part of the protocol's own."""
        return memoryview(self._inner.get_buffer(sizehint))[:_READ]

    def buffer_updated(self, nbytes: int) -> None:
        """Pass bytes on, and see what that takes: ``LONG``, and what one read takes besides, is owed at most."""
        began = self._clock()
        try:
            self._inner.buffer_updated(nbytes)
        finally:
            self._owed += READING + self._clock() - began
            if self._owed > LONG:
                self._begin_payment()

    def _begin_payment(self) -> None:
        if self._payment is None:
            self._connection.hold(stop=True)
            self._payment = asyncio.get_running_loop().create_task(self._pay())
            self._read_on()

    async def _pay(self) -> None:
        owed, self._owed = self._owed, 0
        try:
            await self._pace(owed)
        finally:
            self._payment = None
            self._connection.hold(stop=False)
            self._read_on()

    def _read_on(self) -> None:
        """Read the socket where nothing is against it."""
        reads = self._payment is None and not self._connection.has_enough
        if self._transport.is_closing() or self._transport.is_reading() == reads:
            return
        if reads:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def eof_received(self) -> bool | None:
        """Pass it on."""
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on; what is owed is paid all the same."""
        self._inner.connection_lost(exc)
        if self._owed:
            self._begin_payment()

    def pause_writing(self) -> None:
        """Pass it on."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        self._inner.resume_writing()
