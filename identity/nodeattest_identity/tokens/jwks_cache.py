"""A cache of an issuer's keys; they are fetched again when they are stale or when a key id is unknown.

While the issuer is unreachable or its documents are refused, the last good keys count for ``MAX_STALE`` seconds.
Source: Kubernetes pkg/serviceaccount/jwt.go: a key is published a max-age before it signs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from nodeattest_identity.issuer.keys import KeysError, VerifyingKey, deduplicate, read_jwks, read_key_file, read_pem
from nodeattest_providers.errors import Denied, Reason, Unavailable

MIN_INTERVAL: Final = 10.0
"""Seconds between two fetches: how late a new key may be noticed."""
MAX_STALE: Final = 24 * 3600.0
"""Seconds that keys count after the last successful fetch."""
FRESH: Final = 300.0
"""Seconds between two fetches while all keys are known: how late a revoked key is noticed."""
_FRESH_FILES: Final = 60.0
"""The same of files."""
_RETRY: Final = 5.0
"""Seconds between two attempts to get the first keys."""
_REFRESH_WAIT: Final = 1.0
"""Seconds that a token with a known key waits for an overdue fetch."""


class JWKSCache:
    """Fetched keys of one issuer."""

    def __init__(
        self,
        fetch: Callable[[], Awaitable[tuple[VerifyingKey, ...]]],
        *,
        monotonic: Callable[[], float],
        fresh: float = FRESH,
        refresh_wait: float = _REFRESH_WAIT,
    ) -> None:
        """``fetch`` raises ``Denied`` or ``Unavailable``."""
        self._fetch = fetch
        self._monotonic = monotonic
        self._fresh = fresh
        self._refresh_wait = refresh_wait
        self._keys: tuple[VerifyingKey, ...] = ()
        self._fresh_until = self._good_until = self._not_before = float("-inf")
        self.last_error: Denied | Unavailable | None = None
        """Error of the last fetch; None after a successful one."""
        self._fetching: asyncio.Task[None] | None = None

    @property
    def has_keys(self) -> bool:
        return bool(self._valid_keys())

    async def fetch_first(self) -> None:
        """Fetch until there are keys, so that a server is ready only once it can verify tokens."""
        while not self.has_keys:
            with suppress(Denied, Unavailable):
                await self.keys_for("")
            if not self.has_keys:
                await asyncio.sleep(_RETRY)

    async def keys_for(self, kid: str) -> tuple[VerifyingKey, ...]:
        """Return all keys, fetched again if stale or without ``kid``; raises ``Denied`` or ``Unavailable``."""
        known = any(key.kid == kid for key in self._valid_keys())
        if not known or self._monotonic() >= self._fresh_until:
            await self._refresh(self._refresh_wait if known else None)
        if keys := self._valid_keys():
            return keys
        if self.last_error is not None:
            raise self.last_error.with_traceback(None)
        remedy = "see that the issuer's documents can be reached from here"
        raise Unavailable(Reason.ISSUER_UNAVAILABLE, "the issuer has not answered yet", remedy=remedy)

    async def aclose(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait({self._fetching})

    def _valid_keys(self) -> tuple[VerifyingKey, ...]:
        return self._keys if self._monotonic() < self._good_until else ()

    async def _refresh(self, refresh_wait: float | None) -> None:
        if self._fetching is None:
            if self._monotonic() < self._not_before:
                return
            self._fetching = asyncio.create_task(self._once())
        fetching = self._fetching
        await asyncio.wait({fetching}, timeout=refresh_wait)  # never cancels it: others wait for it too
        if fetching.done() and not fetching.cancelled():
            fetching.result()

    async def _once(self) -> None:
        try:
            self._keys = await self._fetch()
        except (Denied, Unavailable) as error:
            self.last_error = error.with_traceback(None)
        else:
            now, self.last_error = self._monotonic(), None
            self._fresh_until, self._good_until = now + self._fresh, now + MAX_STALE
        finally:
            self._not_before = self._monotonic() + MIN_INTERVAL
            self._fetching = None


def read_trusted_keys(paths: Sequence[Path]) -> tuple[VerifyingKey, ...]:
    """Read key files, each a key set or PEM as of kube-apiserver; raises ``KeysError``, which names the file."""

    def read(data: bytes) -> tuple[VerifyingKey, ...]:
        return read_jwks(data, skip_unusable=True) if data.lstrip().startswith(b"{") else read_pem(data)

    return deduplicate(key for path in paths for key in read_key_file(path, read))


def key_file_cache(paths: Sequence[Path], *, monotonic: Callable[[], float]) -> JWKSCache:
    """Make a cache of files that may be replaced, as in a mounted ConfigMap; they are read once a minute."""

    async def fetch() -> tuple[VerifyingKey, ...]:
        try:
            return read_trusted_keys(paths)
        except KeysError as error:
            raise Unavailable(Reason.ISSUER_UNAVAILABLE, str(error), remedy="see to the files of keys") from None

    return JWKSCache(fetch, monotonic=monotonic, fresh=_FRESH_FILES)
