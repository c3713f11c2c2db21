"""Decrypt what a connection receives in its cluster's turns.

TLS records of one byte cost a hundred times their bytes, so the time is measured from the handshake on, before anybody
sees an answer. At most 16 KiB are decrypted in a turn. While bytes wait for a turn, or the connection has enough, the
socket is not read.
Out of scope: what is made of the bytes (``client``), and how long a handshake may take (``dial``).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from nodeattest_kube.http1 import HttpConnection
from nodeattest_kube.input_scheduler import ClusterInput

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["ScheduledInput"]

_READ: Final = 1 << 14
"""Bytes of one read; asyncio would take 256 KiB."""


class ScheduledInput(asyncio.BufferedProtocol):
    """Stands between the socket's transport and the protocol that decrypts, and alone stops and starts the former."""

    def __init__(self, transport: asyncio.Transport, connection: HttpConnection, turns: ClusterInput) -> None:
        """``transport`` is the socket's, with its protocol; ``connection`` gets what that decrypts."""
        self._inner = cast("asyncio.BufferedProtocol", transport.get_protocol())  # since start_tls
        self._transport, self._connection, self._turns = transport, connection, turns
        self._received = 0
        """Bytes that wait for a turn."""
        transport.set_protocol(self)
        connection.read_by(self._read_on)

    def get_buffer(self, sizehint: int) -> ReadableBuffer:
        """Give a part of the protocol's own."""
        return memoryview(self._inner.get_buffer(sizehint))[:_READ]

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypt bytes now if nobody waits, or in the next turn."""
        if self._turns.handle_at_once(partial(self._inner.buffer_updated, nbytes)):
            return
        self._received = nbytes
        self._connection.hold(stop=True)
        self._read_on()
        self._turns.turn().add_done_callback(self._decrypt)

    def _decrypt(self, _turn: asyncio.Future[None]) -> None:
        nbytes, self._received = self._received, 0
        self._connection.hold(stop=False)
        if self._transport.is_closing():
            return
        try:
            self._inner.buffer_updated(nbytes)
        except BaseException:
            self._transport.abort()
            raise
        self._read_on()

    def _read_on(self) -> None:
        """Read the socket where nothing is against it."""
        reads = not self._received and not self._connection.has_enough
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
        """Pass it on."""
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass it on."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        self._inner.resume_writing()
