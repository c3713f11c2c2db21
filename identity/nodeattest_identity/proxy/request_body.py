"""Streams a request's body to the upstream.

Promises: a body is read at the upstream's pace and never stored. A body that is too long, too slow or broken ends the
request, and ``refused`` has the error. ``100 Continue`` is sent once the upstream reads.
Source: RFC 9110 §10.1.1, RFC 9112 §7.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from nodeattest_identity.proxy.limits import ProxyLimits
from nodeattest_identity.proxy.refusals import Refusal, RefusalError

__all__ = ["RequestBody"]

_NO_BODY: Final = (web.RequestPayloadError, HttpProcessingError, OSError)
"""What aiohttp gives a reader of a body that is broken or breaks off (aiohttp http_parser.py, web_protocol.py)."""


class RequestBody:
    """A request's body on its way to the upstream."""

    def __init__(self, request: web.BaseRequest, limits: ProxyLimits) -> None:
        """Raise ``RefusalError`` if the announced length is too long."""
        self.length = request.content_length
        """Bytes; None: chunked."""
        self.refused: RefusalError | None = None
        """Why it ended too early; None: it did not."""
        self.answered = False
        self._request = request
        self._limits = limits
        self._timer: tuple[asyncio.Timeout, float] | None = None
        expected = request.headers.get(hdrs.EXPECT)
        if expected is not None and expected.lower() != "100-continue":
            raise RefusalError(
                Refusal.EXPECTATION_NOT_ALLOWED, "expected 100-continue, got another expectation", close=True
            )
        self._continue = expected is not None
        if limits.max_body is not None and self.length is not None and self.length > limits.max_body:
            raise self._too_large()

    def answer_within(self, timer: asyncio.Timeout, deadline: float) -> None:
        """Start the time limit of the response when the body ends."""
        self._timer = timer, deadline

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Read the body at the upstream's pace."""
        if self._continue:
            await self._request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        content, count = self._request.content, 0
        while True:
            try:
                async with asyncio.timeout(self._limits.body_idle_seconds):
                    chunk = await content.readany()
            except TimeoutError:
                raise self._end(Refusal.REQUEST_TOO_SLOW, "expected more of the body, got nothing") from None
            except _NO_BODY:
                raise self._end(Refusal.REQUEST_MALFORMED, "expected a whole body, got a part") from None
            if not chunk:
                break
            count += len(chunk)
            if self._limits.max_body is not None and count > self._limits.max_body:
                self.refused = self._too_large()
                raise self.refused
            yield chunk
        if self._timer is not None and not self.answered:
            timer, deadline = self._timer
            timer.reschedule(min(deadline, asyncio.get_running_loop().time() + self._limits.answer_seconds))

    def _end(self, refusal: Refusal, detail: str) -> RefusalError:
        self.refused = RefusalError(refusal, detail, close=True)
        return self.refused

    def _too_large(self) -> RefusalError:
        return RefusalError(
            Refusal.BODY_TOO_LARGE, f"expected at most {self._limits.max_body} bytes, got more", close=True
        )
