"""Sources of an issuer's keys, files or the API server whose tokens they verify, and their polling.

Promises: all keys or none; an error is one line that quotes no key. An API server is trusted for the one issuer that is
expected of it, byte for byte, so that no cluster publishes keys for another's tokens. Its key set is read from itself,
never from the URL in its configuration.
Source: Kubernetes pkg/routes/openidmetadata.go: the two paths, and ``Accept``, which has to name the key set's type;
pkg/serviceaccount/openidmetadata.go: one key of an unknown kind disables both documents, as a bad issuer does.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
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
from nodeattest_identity.issuer.keys import MAX_SIZE, KeysError, VerifyingKey, deduplicate, read_jwks, read_key_file
from nodeattest_identity.serve.service import IssuerPaths, Metrics, RouteTable
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Forbidden, NotFound, Unreachable
from nodeattest_serving.tls import Stamp, stamp

_MAX_CONFIGURATION: Final = 64 * 1024
_RETRY: Final = 2.0
"""Seconds after a first failure; doubled each time, up to the period."""

_log = logging.getLogger(__name__)


class SourceError(Exception):
    """Keys cannot be read; ``outcome`` is a metric label of a closed set."""

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class KeyFileReader:
    """Keys in files of ``--service-account-key-file``, in the order of the flags."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = tuple(files)
        self._taken: tuple[Stamp | None, ...] = ()
        """State of the files when their keys were last returned."""
        self._seen: tuple[Stamp | None, ...] | None = None
        """State of the files at the last check; None: before the first."""

    async def read(self) -> tuple[VerifyingKey, ...] | None:
        """Read the files; None: unchanged. Raises ``SourceError``.

        Changed files are read once they are the same in two checks: a half-finished write must not remove keys.
        """
        state, before = self._state(), self._seen
        self._seen = state
        if state == self._taken or before not in {None, state}:
            return None
        for file in self._files:
            if file.exists() and not file.is_file():  # a pipe would block for ever
                raise SourceError("unusable", f"{file}: expected a file, got something else")
        try:
            keys = deduplicate(key for file in self._files for key in read_key_file(file))
        except KeysError as error:
            raise SourceError("unusable", str(error)) from None
        if state != self._state():
            return None
        self._taken = state
        return keys

    def _state(self) -> tuple[Stamp | None, ...]:
        return tuple(stamp(file) for file in self._files)


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
    except Forbidden as error:
        raise SourceError("forbidden", f"{error}; apply manifests/workload-issuer in the workload cluster") from None
    except NotFound as error:
        raise SourceError(
            "absent",
            f"{error}; expected an API server whose --service-account-issuer is an https URL without query and "
            "fragment, and whose keys of --service-account-key-file are all RSA, P-256, P-384 or P-521: for any "
            "other issuer, and with any other key among them, it serves no documents, and its log says why",
        ) from None
    except Unreachable as error:
        raise SourceError("unreachable", str(error)) from None
    except ApiError as error:
        raise SourceError("refused", str(error)) from None


ReadKeys = Callable[[], Awaitable[tuple[VerifyingKey, ...] | None]]
"""Reads keys; None: unchanged. Raises ``SourceError``."""


class Poller:
    """Polls one source for the issuers whose keys it has: one read at a time, however many clients ask.

    While the source fails the last documents stay served; for an API server only for ``max_stale`` seconds, so that a
    key that was withdrawn there ends here, too.
    """

    def __init__(
        self,
        issuers: Sequence[IssuerPaths],
        read: ReadKeys,
        *,
        routes: RouteTable,
        metrics: Metrics,
        period: float,
        max_stale: float | None = None,
        gate: AbstractAsyncContextManager[object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``gate`` is held while reading; ``clock``: monotonic seconds.

        ``max_stale``: seconds that the last documents stay served while the source fails; None: forever.
        """
        self.tried = False
        """Whether the source was polled once."""
        self.last_error: str | None = None
        """Error of the last poll; None after a successful one."""
        self._issuers = tuple(issuers)
        self._read, self._routes, self._metrics, self._clock = read, routes, metrics, clock
        self._period, self._max_stale = period, max_stale
        self._gate = gate or nullcontext()
        self._read_at: float | None = None
        """When the source was last read, on ``clock``; None if nothing is served."""

    def unready_reason(self) -> str | None:
        """Why there is nothing to serve; None if there is."""
        return None if self._read_at is not None else self.last_error or "the keys were not read yet"

    async def run(self) -> None:
        """Poll until cancelled, sooner after failures."""
        retry = _RETRY
        while True:
            succeeded = await self.poll()
            delay = self._period if succeeded else min(retry, self._period)
            retry = _RETRY if succeeded else min(2 * retry, self._period)
            await asyncio.sleep(random.uniform(0.8, 1.2) * delay)  # noqa: S311 - spreads clients

    async def poll(self) -> bool:
        """Read the source once; returns whether it succeeded."""
        try:
            async with self._gate:
                keys = await self._read()
        except SourceError as error:
            self._failed(error)
            return False
        finally:
            self.tried = True
        if keys is None:
            return True
        self._read_at = self._clock()
        if self.last_error is not None:
            _log.info("read the keys of %s again", self._issuers[0].issuer)
            self.last_error = None
        for paths in self._issuers:
            self._routes.publish(paths, documents(paths.issuer, paths.jwks_uri, keys))
            self._metrics.read(paths.issuer, keys=len(keys), at=time.time())
        return True

    def _failed(self, error: SourceError) -> None:
        """Keep the last documents until they are stale; log the error if it is another than the last."""
        stale, read_at = self._max_stale, self._read_at
        withdrawn = read_at is not None and stale is not None and self._clock() - read_at > stale
        for paths in self._issuers:
            if withdrawn:
                self._routes.withdraw(paths)
            self._metrics.failed(paths.issuer, error.outcome, withdrawn=withdrawn)
        if withdrawn:
            self._read_at = None
        message = str(error)
        if message != self.last_error or withdrawn:
            kept = "serving what was read last" if self._read_at is not None else "serving nothing"
            _log.warning("cannot read the keys of %s, %s: %s", self._issuers[0].issuer, kept, message)
        self.last_error = message
