"""Keeps the documents of an issuer as its source has them.

Promises: one reading at a time, whoever asks for the documents and however often; while the source fails, what was read
last stays served, for ``max_stale`` seconds where the source is an API server: a key that was withdrawn there because
it leaked must end here too. What is wrong is logged when it changes, and every ten minutes.
Leaves to others: reading (``sources``), answering (``service``).
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
from nodeattest_identity.serve.paths import IssuerPaths
from nodeattest_identity.serve.routes import RouteTable
from nodeattest_identity.serve.sources import SourceError
from nodeattest_kube.backoff import BackoffPolicy

__all__ = ["PollConfig", "Poller", "ReadKeys"]

ReadKeys = Callable[[], Awaitable[tuple[VerifyingKey, ...] | None]]
"""Reads keys, None for no news; raises ``SourceError``."""

_LOG_PERIOD: Final = 600.0
_JITTER: Final = 0.1
"""Share of the period that is drawn at random, so that a fleet is not asked at once."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PollConfig:
    """How often a source is read."""

    period: float
    """Seconds."""
    max_stale: float | None
    """Seconds that what was read last is served while nothing can be read; None: for ever."""

    @property
    def backoff(self) -> BackoffPolicy:
        """How long to wait after failures: shorter than usual at first."""
        return BackoffPolicy(initial=min(2.0, self.period), cap=self.period, jitter=_JITTER)


class Poller:
    """Follows one source for the issuers whose keys it has."""

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
        """Whether the source has been asked once."""
        self.last_error: str | None = None
        """Why it cannot be read now."""
        self._issuers = tuple(issuers)
        self._read, self._routes, self._metrics, self._config, self._gate = read, routes, metrics, config, gate
        self._now, self._clock, self._random = now, clock, random
        self._read_at: float | None = None
        """When the source was last read, on ``clock``; None where nothing is served."""
        self._log_again = float("-inf")

    @property
    def has_documents(self) -> bool:
        """Whether there are documents."""
        return self._read_at is not None

    async def run(self) -> None:
        """Follow until cancelled."""
        failures = 0
        while True:
            failures = 0 if await self.poll() else failures + 1
            usual = self._config.period * (1.0 + _JITTER * self._random())
            await asyncio.sleep(self._config.backoff.delay(failures, self._random) if failures else usual)

    async def poll(self) -> bool:
        """Read the source once, and tell whether that went well."""
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
        """Serve what was read."""
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
        """Keep what was read last, while it is good."""
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
