"""HTTPS exchanges with the APIs of clouds, for the controller, and answers that many requests share.

No redirect is followed, nothing is read from the environment, no cookie is kept, and no connection serves a second
request: a late answer can be taken for nobody else's. Bytes, seconds and connections are bounded. aiohttp is imported
with the first request, since it costs 200 ms.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
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
                connector=TCPConnector(limit=self._limits.connections, ssl=self._trust(), force_close=True),
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
S = TypeVar("S", bound=Hashable)
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """One call for all who ask the same at the same time; a caller that gives up takes nothing from the others."""

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


class Remembered(Generic[K, V]):
    """Answers that are used again for some seconds. Failures and ``None`` are not kept."""

    def __init__(
        self,
        seconds: float,
        *,
        monotonic: Callable[[], float],
        most: int = 4096,
        keep: Callable[[V], bool] = lambda _: True,
    ) -> None:
        """``most``: answers that are kept; ``keep`` tells which."""
        self._seconds, self._monotonic, self._most, self._keep = seconds, monotonic, most, keep
        self._held: dict[K, tuple[float, V]] = {}
        self._flights: SingleFlight[K, tuple[float, V | None]] = SingleFlight()

    async def get(self, key: K, call: Callable[[], Awaitable[V | None]], *, fresh: bool = False) -> V | None:
        """Return an answer; a fresh one is of a call that began after this one."""
        asked = self._monotonic()
        expires, value = self._held.get(key, (asked, None))
        if asked < expires and not fresh:
            return value
        while True:
            began, value = await self._flights.share(key, lambda: self._call(key, call))
            if began >= asked or not fresh:
                return value

    async def cancel(self) -> None:
        """End the calls under way."""
        await self._flights.cancel()

    async def _call(self, key: K, call: Callable[[], Awaitable[V | None]]) -> tuple[float, V | None]:
        began = self._monotonic()
        value = await call()
        self._held.pop(key, None)
        if value is not None and self._keep(value):
            self._held[key] = (self._monotonic() + self._seconds, value)
        if len(self._held) > self._most:
            del self._held[next(iter(self._held))]
        return began, value


_CALLS: Final = 2
"""Batches of one scope that are under way."""


@dataclass(eq=False, slots=True)
class _Batch(Generic[K]):
    keys: list[K] = field(default_factory=list[K])


class Batches(Generic[S, K, V]):
    """Joins what is asked about one scope within a moment, or while earlier calls are under way, into one call."""

    def __init__(self, ask: Callable[[S, Sequence[K]], Awaitable[Mapping[K, V]]], *, window: float, most: int) -> None:
        """``window``: seconds for which a first question waits for others; ``most``: questions in a call."""
        self._ask, self._window, self._most = ask, window, most
        self._open: dict[S, _Batch[K]] = {}
        self._slots: defaultdict[S, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_CALLS))
        self._flights: SingleFlight[_Batch[K], Mapping[K, V]] = SingleFlight()

    async def find(self, scope: S, key: K) -> V | None:
        """Ask about one; None where the answer has nothing of it. Raises what the call raises."""
        batch = self._open.setdefault(scope, _Batch())
        if key not in batch.keys:
            batch.keys.append(key)
        if len(batch.keys) == self._most:
            del self._open[scope]
        return (await self._flights.share(batch, lambda: self._send(scope, batch))).get(key)

    async def cancel(self) -> None:
        """End the calls under way."""
        await self._flights.cancel()

    async def _send(self, scope: S, batch: _Batch[K]) -> Mapping[K, V]:
        await asyncio.sleep(self._window)
        async with self._slots[scope]:
            if self._open.get(scope) is batch:
                del self._open[scope]
            return await self._ask(scope, batch.keys)
