"""One HTTP/1.1 connection of a client: one request at a time, and its answer as it comes.

Promises: llhttp parses, in its strict mode, and what it calls dangerous stays off: of two lengths, of a length beside a
transfer coding, and of line ends that are none, the answer is refused. A head has a bounded size, whatever is in it;
what arrives is bounded by what was read. An answer that grants something says itself where it ends: anybody on the way
can end a connection, and asyncio does not tell whether TLS was ended in order. Bytes that nobody asked for end the
connection, so no answer can be taken for another's. Every wait ends in time, or with what ended the connection.
Leaves to others: what may be on a request's lines (``transport``), TLS and addresses (``dial``).
Source: RFC 9112; https://llhttp.org.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from httptools import HttpParserError, HttpResponseParser

__all__ = ["Disconnected", "Head", "HttpConnection", "HttpError", "Limits"]

_HEAD: Final = 1 << 16
"""Bytes of an answer's fields, and of what comes in a row that is no body. Go writes some hundreds."""
_FIELD_ENDS: Final = 4
"""Bytes of a field besides its name and value."""
_VERSIONS: Final = ("1.1", "1.0")
_INTERIM: Final = 8
"""Interim answers (1xx) to one request."""
_READ_AHEAD: Final = 1 << 19
"""Bytes read ahead of us before the peer is slowed down."""
_KEPT: Final = frozenset({b"content-type", b"content-length", b"transfer-encoding", b"retry-after", b"date"})
_FIRST_FINAL: Final = 200
_FIRST_REFUSAL: Final = 300
_SWITCHING_PROTOCOLS: Final = 101


class HttpError(Exception):
    """The peer does not speak HTTP as we do; the text quotes none of it."""


class Disconnected(HttpError):
    """The connection ended before the answer did."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How many seconds a request may take; None: no limit of its own."""

    total: float | None = None
    """From the wait for a connection to the last byte."""
    connect: float | None = None
    """For TCP and TLS to one address."""
    silence: float | None = None
    """Between two pieces of the answer."""


@dataclass(frozen=True, slots=True)
class Head:
    """What an answer begins with."""

    status: int
    phrase: str
    content_type: str
    retry_after: str
    date: str


class HttpConnection(asyncio.Protocol):
    """Made by a transport's factory; belongs to the running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._parser = HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._failure: Exception | None = None
        """Why nothing more will come."""
        self.has_enough = False
        """Whether nothing more is to be received until some of it was read."""
        self._is_held = False
        self._read_on: Callable[[], None] | None = None
        self._keeps_alive = True
        self._deadline = self._silence = math.inf
        self._heard = 0.0
        self.answers = 0
        """How many were read to their end: a server may have closed a connection that was used before."""
        self._begin()
        self._is_asked = False

    def _begin(self) -> None:
        """Forget the last answer."""
        self._is_asked = True
        self.has_begun = False
        """Whether a byte of the answer came."""
        self._head: Head | None = None
        self._fields_size = self._bare = 0
        self._interim = 0
        self._phrase = b""
        self._fields: dict[bytes, bytes] = {}
        self._fed: list[bytes] = []
        self._parts: deque[bytes] = deque()
        self._size = 0

    # What a client does.

    async def send(self, request: bytes, *, deadline: float = math.inf, silence: float | None = None) -> Head:
        """Send one request, head and body, and wait for the head of its answer.

        ``deadline`` is on the loop's clock. Raises ``HttpError``, OSError, or TimeoutError.
        """
        if self._failure is not None:
            raise self._failure
        if self._is_asked or self._transport is None:
            raise HttpError("the connection is in use")
        self._begin()
        self._deadline, self._silence = deadline, math.inf if silence is None else silence
        self._heard = self._loop.time()
        self._watch_time()
        self._transport.write(request)
        while self._head is None:
            await self._more()
        return self._head

    async def read(self) -> bytes:
        """Wait for the next bytes of the body; empty at its end. Raises as ``send`` does."""
        while not self._parts:
            if not self._is_asked:
                return b""
            await self._more()
        part = self._parts.popleft()
        self._size -= len(part)
        if self.has_enough and not self._parts:
            self._pause(stop=False)
        return part

    def read_by(self, read_on: Callable[[], None]) -> None:
        """Call this when ``has_enough`` changes: it stops and starts what is received."""
        self._read_on = read_on

    def hold(self, *, stop: bool) -> None:
        """Know that nothing is received for now, or that it is again: the peer is not the silent one."""
        self._is_held, self._heard = stop, self._loop.time()

    @property
    def is_reusable(self) -> bool:
        """Whether another request may be sent: the last answer ended where it should, and was read."""
        return not self._is_asked and self._failure is None and self._keeps_alive and not self._parts

    def close(self) -> None:
        """Say goodbye and close; who waits for an answer gets ``Disconnected``."""
        if self._transport is not None:
            self._transport.close()
        self._fail(Disconnected("the connection was closed"))

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
        self._fail(Disconnected("the connection was given up"))

    def detach(self) -> asyncio.Transport:
        """Give the transport away, to speak something else over it: nothing but the head of an answer may have come."""
        if self._failure is not None:
            raise self._failure
        if self._parts or self._transport is None:
            raise HttpError("bytes came too early")
        transport, self._transport = self._transport, None
        self._stop_timer()
        return transport

    async def _more(self) -> None:
        """Wait until something changed."""
        if self._failure is not None:
            raise self._failure
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, failure: Exception) -> None:
        """Let nothing more come; who waits is told the first failure."""
        self._stop_timer()
        if self._failure is None:
            self._failure = failure
        self._wake()

    # Time.

    def _watch_time(self) -> None:
        due = min(self._deadline, self._heard + self._silence)
        self._timer = self._loop.call_at(due, self._check_time) if due < math.inf else None

    def _check_time(self) -> None:
        now = self._loop.time()
        if self.has_enough or self._is_held:
            self._heard = now  # it is we who are silent
        if min(self._deadline, self._heard + self._silence) > now:
            self._watch_time()
            return
        self._fail(TimeoutError())
        if self._transport is not None:
            self._transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # What the transport tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        if not self._is_asked:
            self._refuse(HttpError("bytes came that nobody asked for"))
            return
        self.has_begun = True
        self._heard = self._loop.time()
        try:
            self._parser.feed_data(data)
            self._count(data)
        except HttpParserError as error:
            own = error.__context__
            self._refuse(own if isinstance(own, HttpError) else HttpError(f"no HTTP/1.1 ({type(error).__name__})"))
        except HttpError as error:
            self._refuse(error)
        if self._fed:  # one piece of each read, however small the server's chunks are
            part = self._fed[0] if len(self._fed) == 1 else b"".join(self._fed)
            self._parts.append(part)
            self._fed = []
            self._size += len(part)
            if self._size > _READ_AHEAD and not self.has_enough:
                self._pause(stop=True)
        self._wake()

    def _count(self, data: bytes) -> None:
        """Bound what comes in a row without a body, such as a field, or what is beside a chunk's size."""
        self._bare = 0 if self._fed else self._bare + len(data)
        if self._bare > _HEAD:
            raise HttpError(f"more than {_HEAD} bytes without a body")

    def eof_received(self) -> None:
        """Learn that the peer says no more; the transport closes then."""
        self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """End a refusal, if this is its end (RFC 9112 §6.3), and everything else."""
        refuses = self._head is not None and self._head.status >= _FIRST_REFUSAL
        if exc is None and self._is_asked and refuses and not self._is_framed():
            self._is_asked = False
        self._fail(exc if isinstance(exc, OSError) else Disconnected("the connection ended before the answer"))

    def _is_framed(self) -> bool:
        """Whether the answer says where it ends."""
        return b"content-length" in self._fields or b"transfer-encoding" in self._fields

    def _refuse(self, error: Exception) -> None:
        self._fail(error)
        if self._transport is not None:
            self._transport.abort()

    def _pause(self, *, stop: bool) -> None:
        self.has_enough, self._heard = stop, self._loop.time()
        if self._read_on is not None:
            self._read_on()
        elif self._transport is not None and not self._transport.is_closing():
            if stop:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # What the parser tells.

    def on_message_begin(self) -> None:
        """Refuse a second answer."""
        if not self._is_asked:
            raise HttpError("an answer that nobody asked for")

    def on_status(self, phrase: bytes) -> None:
        """Take a piece of the reason phrase."""
        self._phrase += phrase

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one field, before or after the body."""
        self._fields_size += len(name) + len(value) + _FIELD_ENDS
        if self._fields_size > _HEAD:
            raise HttpError(f"fields of more than {_HEAD} bytes")
        key = name.lower()
        if key in _KEPT and self._head is None:
            self._fields[key] = value

    def on_headers_complete(self) -> None:
        """Know the head of an answer; of an interim one nothing is kept."""
        if self._parser.get_http_version() not in _VERSIONS:
            raise HttpError("another version of HTTP")
        status = self._parser.get_status_code()
        if status < _FIRST_FINAL:
            self._interim += 1
            if status == _SWITCHING_PROTOCOLS or self._interim > _INTERIM:
                raise HttpError("an interim answer that was not asked for")
            self._phrase, self._fields = b"", {}
            return
        coding = self._fields.get(b"transfer-encoding", b"chunked")
        if coding.strip().lower() != b"chunked":
            raise HttpError("a transfer coding besides chunked")
        text = {key: value.decode("latin-1") for key, value in self._fields.items()}
        self._head = Head(
            status,
            self._phrase.decode("latin-1"),
            text.get(b"content-type", "").partition(";")[0].strip(),
            text.get(b"retry-after", ""),
            text.get(b"date", ""),
        )

    def on_body(self, data: bytes) -> None:
        """Take a piece of the body."""
        self._fed.append(data)

    def on_message_complete(self) -> None:
        """Know that an answer is whole."""
        if self._head is None:
            return  # an interim answer
        self._is_asked = False
        self._keeps_alive = self._parser.should_keep_alive()
        self.answers += 1
        self._stop_timer()
