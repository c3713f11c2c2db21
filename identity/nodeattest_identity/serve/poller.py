"""Polls the keys of an issuer from their source and updates its documents.

Promises: one read at a time, however many clients ask for the documents. While the source fails the last documents stay
served; for an API server only for ``max_stale`` seconds, so that a key that was withdrawn there ends here, too. An
error is logged when it changes, and every ten minutes.
Leaves to others: reading (``sources``), responses (``service``).
"""

from __future__ import annotations

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
from nodeattest_kube.errors import ApiError
from nodeattest_kube.events import EventLimiter
from nodeattest_kube.periodic import PeriodicReconciler, ResyncConfig

__all__ = ["PollConfig", "Poller", "ReadKeys"]

ReadKeys = Callable[[], Awaitable[tuple[VerifyingKey, ...] | None]]
"""Reads keys; None: unchanged. Raises ``SourceError``."""

_LOG_PERIOD: Final = 600.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PollConfig:
    """Intervals of a poller."""

    period: float
    """Seconds."""
    max_stale: float | None
    """Seconds that the last documents stay served while the source fails; None: forever."""

    @property
    def resync(self) -> ResyncConfig:
        """The first poll is made at once; after a failure the next comes sooner than after a period."""
        return ResyncConfig(
            spread=0.0,
            period=self.period,
            min_interval=0.0,
            retry=min(2.0, self.period),
            max_retry=self.period,
            share=0,
        )


class Poller:
    """Polls one source for the issuers whose keys it has (``PeriodicTask``)."""

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
        self._limiter = EventLimiter(clock)

    @property
    def has_documents(self) -> bool:
        """Whether documents are served."""
        return self._read_at is not None

    async def run(self) -> None:
        """Poll until cancelled."""
        await PeriodicReconciler(self, self._config.resync, clock=self._clock, random=self._random).run()

    async def reconcile(self) -> float | None:
        """Poll once; raises ApiError."""
        if not await self.poll():
            raise ApiError(0, "KeysNotRead", self.last_error or "")
        return None

    async def failed(self, error: ApiError, failures: int, delay: float) -> None:
        """Do nothing: ``poll`` has logged and counted the failure."""

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
        if self._limiter.allow(message, _LOG_PERIOD) or message != self.last_error:
            kept = "serving what was read last" if self.has_documents else "serving nothing"
            _log.warning("cannot read the keys of %s, %s: %s", self._issuers[0].issuer, kept, message)
        self.last_error = message
