"""Polls the keys of an issuer from their source and updates its documents.

Promises: one read at a time, however many clients ask for the documents. While the source fails the last documents stay
served; for an API server only for ``max_stale`` seconds, so that a key that was withdrawn there ends here, too. An
error is logged when it changes, and every ten minutes.
Leaves to others: reading (``sources``), responses (``service``).
"""

from __future__ import annotations

import asyncio
import logging
import random as random_module
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

from nodeattest_identity.issuer.documents import documents
from nodeattest_identity.issuer.keys import VerifyingKey
from nodeattest_identity.serve.metrics import Metrics
from nodeattest_identity.serve.routes import IssuerPaths, RouteTable
from nodeattest_identity.serve.sources import SourceError
from nodeattest_kube.backoff import BackoffPolicy

__all__ = ["PollConfig", "Poller", "ReadKeys"]

ReadKeys = Callable[[], Awaitable[tuple[VerifyingKey, ...] | None]]
"""Reads keys; None: unchanged. Raises ``SourceError``."""

_LOG_PERIOD: Final = 600.0
_JITTER: Final = 0.1
"""Random share of the period, so that not all clusters are read at once."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PollConfig:
    """Intervals of a poller."""

    period: float
    """Seconds."""
    max_stale: float | None
    """Seconds that the last documents stay served while the source fails; None: forever."""

    @property
    def backoff(self) -> BackoffPolicy:
        """Backoff after failures: at first shorter than the period."""
        return BackoffPolicy(initial=min(2.0, self.period), cap=self.period, jitter=_JITTER)


class Poller:
    """Polls one source for the issuers whose keys it has."""

    def __init__(
        self,
        issuers: Sequence[IssuerPaths],
        read: ReadKeys,
        *,
        routes: RouteTable,
        metrics: Metrics,
        config: PollConfig,
        gate: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        """``gate`` is held while reading. ``now`` is seconds since the epoch, ``clock`` monotonic seconds."""
        self.tried = False
        """Whether the source was polled once."""
        self.last_error: str | None = None
        """Error of the last poll; None after a successful one."""
        self._issuers = tuple(issuers)
        self._read, self._routes, self._metrics, self._config, self._gate = read, routes, metrics, config, gate
        self._now, self._clock, self._random = now, clock, random
        self._read_at: float | None = None
        """When the source was last read, on ``clock``; None if nothing is served."""
        self._log_again = float("-inf")

    @property
    def has_documents(self) -> bool:
        """Whether documents are served."""
        return self._read_at is not None

    async def run(self) -> None:
        """Poll until cancelled."""
        failures = 0
        while True:
            failures = 0 if await self.poll() else failures + 1
            interval = self._config.period * (1.0 + _JITTER * self._random())
            await asyncio.sleep(self._config.backoff.delay(failures, self._random) if failures else interval)

    async def poll(self) -> bool:
        """Read the source once; returns whether it succeeded."""
        try:
            async with self._gate():
                keys = await self._read()
        except SourceError as error:
            self._failed(error)
            return False
        finally:
            self.tried = True
        self._publish(keys)
        return True

    def _publish(self, keys: tuple[VerifyingKey, ...] | None) -> None:
        """Serve documents with these keys."""
        if keys is not None:
            for paths in self._issuers:
                self._routes.publish(paths, documents(paths.issuer, paths.jwks_uri, keys))
                self._metrics.read(paths.issuer, keys=len(keys), at=self._now())
        if keys is not None or self._read_at is not None:
            self._read_at = self._clock()
        if self.last_error is not None and keys is not None:
            _log.info("read the keys of %s again", self._issuers[0].issuer)
            self.last_error = None

    def _failed(self, error: SourceError) -> None:
        """Keep the last documents until they are stale."""
        stale = self._config.max_stale
        if self._read_at is not None and stale is not None and self._clock() - self._read_at > stale:
            self._read_at = None
            _log.error(
                "the keys of %s were not read for %.0f s: serving them no longer", self._issuers[0].issuer, stale
            )
            for paths in self._issuers:
                self._routes.withdraw(paths)
                self._metrics.withdrawn(paths.issuer)
        for paths in self._issuers:
            self._metrics.failed(paths.issuer, error.outcome)
        message = str(error)
        if message != self.last_error or self._clock() >= self._log_again:
            kept = "serving what was read last" if self.has_documents else "serving nothing"
            _log.warning("cannot read the keys of %s, %s: %s", self._issuers[0].issuer, kept, message)
            self._log_again = self._clock() + _LOG_PERIOD
        self.last_error = message
