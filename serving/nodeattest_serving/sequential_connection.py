"""A connection of aiohttp on which one request is answered at a time: pipelining ends it.

A request that comes before the first byte of the answer to the one before it is dropped, and the connection ends after
that answer. Otherwise a client with one connection could have a server work for it without a pause. One that comes
later is answered: its client may have read all of the answer before this process knows that it is written.
No client in use pipelines: Go's, Python's and browsers do not, and curl no longer does. Kept connections stay.
Source: RFC 9112 §9.3.2 (a server may close such a connection), §9.6.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader

__all__ = ["SequentialConnection", "new_request"]

_DROPPED: Final = 64 * 1024
"""Bytes that are read of a connection that ends: what is not read lets a reset overtake the answer (RFC 9112 §9.6)."""

_log = logging.getLogger(__name__)


class SequentialConnection(web.RequestHandler):
    """aiohttp's connection without pipelining."""

    _begun = 0
    """Requests that are or were answered."""
    _writer: AbstractStreamWriter | None = None
    """Of the latest of them."""
    _is_pipelined = False
    _dropped = 0
    """Bytes that came since."""

    @property
    def is_pipelined(self) -> bool:
        """Whether a request came too early; what is behind a declined upgrade is not parsed (``CountedServer``)."""
        return self._is_pipelined

    def begin(self, writer: AbstractStreamWriter) -> None:
        """Note that a request is taken, and what writes its answer."""
        self._begun += 1
        self._writer = writer

    def data_received(self, data: bytes) -> None:
        """Take at most one request, and none before the answer to the one before it has begun."""
        if self._is_pipelined:
            self._dropped += len(data)
            if self._dropped > _DROPPED and self.transport is not None:
                self.transport.pause_reading()
            return
        before = self._request_count
        is_answering = self._writer is not None and not self._writer.output_size
        allowed = 0 if is_answering or before > self._begun else 1
        super().data_received(data)
        surplus = self._request_count - before - allowed
        if surplus > 0:
            for _ in range(min(surplus, len(self._messages))):
                self._messages.pop()
            self._is_pipelined = True
            self.close()
            _log.debug("a request came before the answer to the one before it: its connection ends")


def new_request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: web.RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    """Make the request that is answered next."""
    if isinstance(protocol, SequentialConnection):
        protocol.begin(writer)
    return web.BaseRequest(message, payload, protocol, writer, task, asyncio.get_running_loop())
