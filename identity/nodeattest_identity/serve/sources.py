"""Sources of an issuer's keys, files or the API server whose tokens they verify, and their polling.

Promises: all keys or none; an error is one line that quotes no key. An API server is trusted for the one issuer that is
expected of it, byte for byte, so that no cluster publishes keys for another's tokens. Its key set is read from itself,
never from the URL in its configuration.
One read at a time, however many clients ask for the documents. While the source fails the last documents stay served;
for an API server only for ``max_stale`` seconds, so that a key that was withdrawn there ends here, too. An error is
logged when it changes, and every ten minutes.
Source: Kubernetes pkg/routes/openidmetadata.go: the two paths, and ``Accept``, which has to name the key set's type;
pkg/serviceaccount/openidmetadata.go: one key of an unknown kind disables both documents, as a bad issuer does.
"""

from __future__ import annotations

import logging
import random as random_module
import stat
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeattest_identity.issuer.documents import (
    CONFIGURATION_PATH,
    CONFIGURATION_TYPE,
    JWKS_PATH,
    JWKS_TYPE,
    DocumentError,
    documents,
    parse_configuration,
)
from nodeattest_identity.issuer.keys import MAX_SIZE, KeysError, VerifyingKey, deduplicate, read_jwks, read_pem
from nodeattest_identity.serve.service import IssuerPaths, Metrics, RouteTable
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Forbidden, NotFound, Unreachable
from nodeattest_kube.events import EventLimiter
from nodeattest_kube.periodic import PeriodicReconciler, ResyncConfig
from nodeattest_serving.tls import stamp

_MAX_CONFIGURATION: Final = 64 * 1024
_State = tuple[tuple[int, int, int] | None, ...]


class SourceError(Exception):
    """Keys cannot be read; ``outcome`` is a metric label of a closed set."""

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class KeyFileReader:
    """Keys in files of ``--service-account-key-file``, in the order of the flags."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = tuple(files)
        self._taken: _State = ()
        """State of the files when their keys were last returned."""
        self._seen: _State | None = None
        """State of the files at the last check; None: before the first."""

    async def read(self) -> tuple[VerifyingKey, ...] | None:
        """Read the files; None: unchanged. Raises ``SourceError``.

        Changed files are read once they are the same in two checks: a half-finished write must not remove keys.
        """
        state = tuple(stamp(file) for file in self._files)
        first, self._seen, before = self._seen is None, state, self._seen
        if state == self._taken or not (first or state == before):
            return None
        try:
            keys = deduplicate(key for file in self._files for key in _keys(file))
        except KeysError as error:
            raise SourceError("unusable", str(error)) from None
        if state != tuple(stamp(file) for file in self._files):
            return None
        self._taken = state
        return keys


def _keys(file: Path) -> tuple[VerifyingKey, ...]:
    """Read one file; raises ``KeysError`` or ``SourceError``, which name it."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise SourceError("unreadable", f"{file}: expected a file, got something else")
        with file.open("rb") as opened:
            data = opened.read(MAX_SIZE + 1)
    except OSError as error:
        raise SourceError("unreadable", f"{file}: expected a file with keys, got {error.strerror}") from None
    try:
        return read_pem(data)
    except KeysError as error:
        raise KeysError(f"{file}: {error}") from None


async def read_api_server(client: ApiClient, issuer: str) -> tuple[VerifyingKey, ...]:
    """Read the keys of a cluster's service accounts; raises ``SourceError``.

    1. Its configuration names this issuer. 2. Its own key set can be served as it is.
    """
    try:
        # 1
        said = await client.document(CONFIGURATION_PATH, accept=CONFIGURATION_TYPE, limit=_MAX_CONFIGURATION)
        theirs = parse_configuration(said).issuer
        if theirs != issuer:
            raise SourceError(
                "other-issuer",
                f"expected an API server with --service-account-issuer={issuer} as its first, got {theirs[:200]!a}",
            )
        # 2
        return read_jwks(await client.document(JWKS_PATH, accept=JWKS_TYPE, limit=MAX_SIZE))
    except (DocumentError, KeysError) as error:
        raise SourceError("unusable", f"its API server: {error}") from None
    except ApiError as error:
        raise SourceError(*_refused(error)) from None


def _refused(error: ApiError) -> tuple[str, str]:
    """Return the outcome and the message of an API error."""
    match error:
        case Forbidden():
            return "forbidden", f"{error}; apply manifests/workload-issuer in the workload cluster"
        case NotFound():
            return "absent", (
                f"{error}; expected an API server whose --service-account-issuer is an https URL without query and "
                "fragment, and whose keys of --service-account-key-file are all RSA, P-256, P-384 or P-521: for any "
                "other issuer, and with any other key among them, it serves no documents, and its log says why"
            )
        case Unreachable():
            return "unreachable", str(error)
        case _:
            return "refused", str(error)


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

    def unready_reason(self) -> str | None:
        """Why there is nothing to serve; None if there is."""
        return None if self.has_documents else self.last_error or "the keys were not read yet"

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
