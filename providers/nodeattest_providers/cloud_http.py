"""HTTPS exchanges with the APIs of clouds, for the controller, and answers that many requests share.

No redirect is followed, nothing is read from the environment, no cookie is kept, and no connection serves a second
request: a late answer can be taken for nobody else's. aiohttp is imported with the first request: it costs 200 ms.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from socket import SHUT_RDWR, socket
from typing import TYPE_CHECKING, Final, Generic, TypeVar
from weakref import WeakSet, WeakValueDictionary

from nodeattest_providers.platform import CallOutcome

if TYPE_CHECKING:
    from aiohttp import AddrInfoType, ClientSession, StreamReader


_CLOSING_TURNS: Final = 100
"""Turns of the event loop until all connections are closed; fewer than ten suffice."""
_MAX_DIGITS: Final = 5
"""Of a number of seconds: a day has five; more would only be cut to the longest wait."""


@dataclass(frozen=True, slots=True)
class CloudResponse:
    """A whole answer, whatever its status."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    """Their names in any case."""
    body: bytes = field(repr=False)

    @property
    def retry_after(self) -> str:
        return self.headers.get("Retry-After", "")


class ExchangeError(Exception):
    """No whole answer came; the message says why and goes behind the name of the service."""

    def __init__(self, outcome: CallOutcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class CloudHttp:
    """One session with one API; it belongs to the event loop that first used it."""

    def __init__(
        self,
        *,
        trust: Callable[[], ssl.SSLContext],
        proxy: str | None,
        seconds: float,
        connect_seconds: float | None = None,
        answer_bytes: int,
        connections: int,
    ) -> None:
        """``seconds``: for one exchange. ``trust`` is called by the first one."""
        self._trust = trust
        self._proxy = proxy
        self._seconds = seconds
        self._connect_seconds = connect_seconds
        self._answer_bytes = answer_bytes
        self._connections = connections
        self._session: ClientSession | None = None
        self._sockets: WeakSet[socket] = WeakSet()

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
            outcome, problem = CallOutcome.TIMED_OUT, f"did not answer within {self._seconds:g} s"
        except ClientConnectionError as error:  # certificates that do not pass included
            outcome, problem = CallOutcome.UNREACHABLE, f"cannot be reached ({type(error).__name__})"
        except (ClientError, OSError, ValueError) as error:
            outcome, problem = CallOutcome.FAILED, f"gave no whole answer ({type(error).__name__})"
        raise ExchangeError(outcome, problem)

    async def aclose(self) -> None:
        """Close the connections, whatever the peers do: a TLS connection would wait for its peer's close_notify."""
        if self._session is not None:
            await self._session.close()
            self._session = None
        for each in list(self._sockets):
            with suppress(OSError):  # it is closed
                each.shutdown(SHUT_RDWR)
        for _ in range(_CLOSING_TURNS):
            if all(each.fileno() < 0 for each in self._sockets):
                break
            await asyncio.sleep(0)

    def _new_socket(self, address: AddrInfoType) -> socket:  # pyright: ignore[reportUnknownParameterType] - aiohttp's
        made = socket(*address[:3])
        self._sockets.add(made)
        return made

    async def _bounded(self, content: StreamReader) -> bytes:
        body = bytearray()
        async for chunk in content.iter_any():
            body += chunk
            if len(body) > self._answer_bytes:
                raise ValueError("too large an answer")
        return bytes(body)

    def _open(self) -> ClientSession:
        if self._session is None:
            from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

            self._session = ClientSession(
                connector=TCPConnector(
                    limit=self._connections,
                    ssl=self._trust(),
                    force_close=True,
                    socket_factory=self._new_socket,  # pyright: ignore[reportUnknownMemberType]
                ),
                timeout=ClientTimeout(total=self._seconds, connect=self._connect_seconds),
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
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run(call: Callable[[], Awaitable[V]]) -> V:
    return await call()


_MAX_HELD: Final = 10_000
_CALLS: Final = 2


class Lookup(Generic[S, K, V]):
    """Values by key, each remembered for some seconds; keys of one scope that are wanted together share a call.

    A caller that gives up takes nothing from the others. Failures and missing values are not remembered.
    """

    def __init__(
        self,
        ask: Callable[[S, Sequence[K]], Awaitable[Mapping[K, V]]],
        *,
        seconds: float,
        window: float = 0.01,
        most: int = 60,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask, self._seconds, self._window, self._most, self._monotonic = ask, seconds, window, most, monotonic
        self._held: dict[tuple[S, K], tuple[float, V]] = {}
        self._open: dict[S, _Batch[K]] = {}
        self._slots: WeakValueDictionary[S, asyncio.Semaphore] = WeakValueDictionary()
        self._flights: SingleFlight[_Batch[K], Mapping[K, V]] = SingleFlight()

    async def get(self, scope: S, key: K, *, fresh: bool = False) -> V | None:
        """Return a value, None if there is none; a fresh one is of a call that begins now. Raises as ``ask`` does."""
        expires, value = self._held.get((scope, key), (0.0, None))
        if value is not None and not fresh and self._monotonic() < expires:
            return value
        batch = self._open.setdefault(scope, _Batch())
        if key not in batch.keys:
            batch.keys.append(key)
        if len(batch.keys) == self._most:
            del self._open[scope]
        value = (await self._flights.share(batch, lambda: self._send(scope, batch))).get(key)
        self._held.pop((scope, key), None)
        if value is not None:
            self._held[scope, key] = (self._monotonic() + self._seconds, value)
        self._forget_expired()
        return value

    async def cancel(self) -> None:
        await self._flights.cancel()

    def _forget_expired(self) -> None:
        """Forget what nobody may use any more, oldest first, and the oldest of too many."""
        now = self._monotonic()
        while self._held:
            oldest = next(iter(self._held))
            if len(self._held) <= _MAX_HELD and now < self._held[oldest][0]:
                return
            del self._held[oldest]

    async def _send(self, scope: S, batch: _Batch[K]) -> Mapping[K, V]:
        await asyncio.sleep(self._window)
        async with self._slots.setdefault(scope, asyncio.Semaphore(_CALLS)):
            if self._open.get(scope) is batch:
                del self._open[scope]
            return await self._ask(scope, batch.keys)


@dataclass(eq=False, slots=True)
class _Batch(Generic[K]):
    keys: list[K] = field(default_factory=list[K])
