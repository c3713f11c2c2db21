"""Bounded HTTPS exchanges with the APIs of clouds, for the controller.

A request goes where the caller says, with the CAs and the proxy of the controller's own configuration: no redirect is
followed, nothing is read from the environment, no cookie is kept. An answer is asked for without compression and
bounded in bytes; an exchange is bounded in seconds, and a client in connections. Without a whole answer it raises
``ExchangeError``, which says how the exchange ended and holds nothing that was sent or received.
aiohttp is imported with the first request: it costs 200 ms that nobody needs offline.

One call for everybody who asks the same at the same time.

Promises: a caller that gives up or is cancelled takes nothing from the others; an answer is not kept once it is out.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from nodeattest_providers.platform import CallOutcome

if TYPE_CHECKING:
    from aiohttp import ClientSession, StreamReader


_GRACE: Final = 0.25
"""Seconds until connections that were broken off are closed (aiohttp, "Graceful shutdown")."""
_MAX_DIGITS: Final = 5
"""Of a number of seconds: a day has five; more would only be cut to the longest wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseLimits:
    """Bounds of one client."""

    seconds: float
    """For one exchange."""
    connect_seconds: float | None = None
    answer_bytes: int
    connections: int


@dataclass(frozen=True, slots=True)
class CloudResponse:
    """A whole answer, whatever its status."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    """Their names in any case."""
    body: bytes = field(repr=False)

    @property
    def retry_after(self) -> str:
        """The header's text, empty without one."""
        return self.headers.get("Retry-After", "")


class ExchangeError(Exception):
    """No whole answer came; the message says why and goes behind the name of the service."""

    def __init__(self, outcome: CallOutcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class CloudHttp:
    """One session with one API; it belongs to the event loop that first used it."""

    def __init__(self, *, trust: Callable[[], ssl.SSLContext], proxy: str | None, limits: ResponseLimits) -> None:
        """``trust`` loads the CAs with the first request."""
        self._trust = trust
        self._proxy = proxy
        self._limits = limits
        self._session: ClientSession | None = None
        self._broken_off = False

    async def exchange(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        parameters: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> CloudResponse:
        """Send one request and read its answer; raises ExchangeError."""
        from aiohttp import ClientConnectionError, ClientError

        try:
            async with self._open().request(
                method,
                url,
                params=parameters,
                data=body,
                headers={"Accept": "application/json", "Accept-Encoding": "identity", **headers},
                allow_redirects=False,
                proxy=self._proxy if url.startswith("https:") else None,  # not for the metadata service of a machine
            ) as response:
                content = await self._bounded(response.content)
                return CloudResponse(response.status, response.headers, content)
        except TimeoutError:
            outcome, problem = CallOutcome.TIMED_OUT, f"did not answer within {self._limits.seconds:g} s"
        except ClientConnectionError as error:  # certificates that do not pass included
            outcome, problem = CallOutcome.UNREACHABLE, f"cannot be reached ({type(error).__name__})"
        except (ClientError, OSError, ValueError) as error:
            outcome, problem = CallOutcome.FAILED, f"gave no whole answer ({type(error).__name__})"
        self._broken_off = True
        raise ExchangeError(outcome, problem)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None
        if self._broken_off:  # those close by themselves, and aiohttp waits for the others only
            self._broken_off = False
            await asyncio.sleep(_GRACE)

    async def _bounded(self, content: StreamReader) -> bytes:
        body = bytearray()
        async for chunk in content.iter_any():
            body += chunk
            if len(body) > self._limits.answer_bytes:
                raise ValueError("too large an answer")
        return bytes(body)

    def _open(self) -> ClientSession:
        if self._session is None:
            from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

            self._session = ClientSession(
                connector=TCPConnector(limit=self._limits.connections, ssl=self._trust()),
                timeout=ClientTimeout(total=self._limits.seconds, connect=self._limits.connect_seconds),
                cookie_jar=DummyCookieJar(),
                trust_env=False,
                auto_decompress=False,
            )
        return self._session


def retry_after_seconds(text: str, *, default: float, longest: float) -> float:
    """Read Retry-After where it is seconds (RFC 9110 §10.2.3), between 1 and ``longest``."""
    if not text.isascii() or not text.isdigit():
        return default
    return longest if len(text) > _MAX_DIGITS else min(max(float(text), 1.0), longest)


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """Calls under way, by what they ask."""

    def __init__(self) -> None:
        self._tasks: dict[K, asyncio.Task[V]] = {}

    async def share(self, key: K, call: Callable[[], Awaitable[V]]) -> V:
        """Join the call under way for this key, or begin one."""
        task = self._tasks.get(key)
        if task is None:
            task = asyncio.ensure_future(_run(call))
            self._tasks[key] = task
            task.add_done_callback(lambda done: self._finished(key, done))
        return await asyncio.shield(task)

    def _finished(self, key: K, task: asyncio.Task[V]) -> None:
        self._tasks.pop(key, None)
        if not task.cancelled():
            task.exception()  # retrieved: the callers that wait have it, and without them nobody needs it

    async def cancel(self) -> None:
        """End the calls under way."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run(call: Callable[[], Awaitable[V]]) -> V:
    return await call()
