"""A cache of an issuer's keys; they are fetched again when they are stale or when a key id is unknown.

One fetch at a time, however many callers; at most one every ``min_interval`` seconds, whatever key ids tokens
name. Keys are fresh as long as the issuer allows, within bounds. While the issuer is unreachable or its documents are
refused, the last good keys count for ``max_stale`` seconds, and a caller with a known key waits for ``refresh_wait``
only. A fetch replaces all keys: a key that the issuer revokes is gone with the next fetch.
Source: RFC 9111 §4.2 and §5.2.2.1; Kubernetes pkg/serviceaccount/jwt.go: a key is published a max-age before it signs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from nodeattest_identity.issuer.keys import MAX_SIZE, KeysError, VerifyingKey, deduplicate, read_jwks, read_pem
from nodeattest_providers.errors import Denied, Reason, Unavailable

_REMEDY: Final = "see that the issuer's documents can be reached from here"


@dataclass(frozen=True, slots=True)
class FetchedKeys:
    """The result of a fetch."""

    keys: tuple[VerifyingKey, ...]
    max_age: float | None
    """Seconds that they may be cached; None: not stated."""


FetchKeys = Callable[[], Awaitable[FetchedKeys]]
"""Fetches the keys; raises ``Denied`` or ``Unavailable``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTimes:
    """Times of the cache, in seconds."""

    min_age: float = 60.0
    """Minimum freshness, whatever the issuer states: it must not cause a fetch for each token."""
    max_age_limit: float = 3600.0
    """Maximum freshness: kube-apiserver's own max-age. A revoked key is gone after it."""
    default_age: float = 300.0
    """Freshness if the issuer states none."""
    min_interval: float = 10.0
    """Between two fetches: how late a new key may be noticed."""
    max_stale: float = 24 * 3600.0
    """How long keys count after the last successful fetch."""
    refresh_wait: float = 1.0
    """How long a token with a known key waits for an overdue fetch."""


class KeySource(Protocol):
    """A source of keys."""

    async def keys_for(self, kid: str) -> Sequence[VerifyingKey]:
        """Return all keys, fetched again if ``kid`` is not among them; raises ``Denied`` or ``Unavailable``."""
        ...


@dataclass(frozen=True, slots=True)
class StaticKeys:
    """Keys that never change."""

    keys: tuple[VerifyingKey, ...]

    async def keys_for(self, kid: str) -> Sequence[VerifyingKey]:
        """Return them."""
        del kid
        return self.keys


class JWKSCache:
    """Fetched keys of one issuer."""

    def __init__(self, fetch: FetchKeys, *, monotonic: Callable[[], float], times: CacheTimes | None = None) -> None:
        self._fetch = fetch
        self._monotonic = monotonic
        self._times = times or CacheTimes()
        self._keys: tuple[VerifyingKey, ...] = ()
        self._fresh_until = self._good_until = self._not_before = float("-inf")
        self.last_error: Denied | Unavailable | None = None
        """Error of the last fetch; None after a successful one."""
        self._fetching: asyncio.Task[None] | None = None

    @property
    def has_keys(self) -> bool:
        """Whether there are valid keys."""
        return bool(self._valid_keys())

    async def keys_for(self, kid: str) -> Sequence[VerifyingKey]:
        """Return all keys, fetched again if they are stale or ``kid`` is not among them.

        Raises ``Denied`` or ``Unavailable`` if there are no valid keys.
        """
        keys = self._valid_keys()
        known = any(key.kid == kid for key in keys)
        if not known or self._monotonic() >= self._fresh_until:
            await self._refreshed(self._times.refresh_wait if known else None)
        if keys := self._valid_keys():
            return keys
        if self.last_error is not None:
            raise self.last_error.with_traceback(None)
        raise Unavailable(Reason.ISSUER_UNAVAILABLE, "the issuer has not answered yet", remedy=_REMEDY)

    async def aclose(self) -> None:
        """Cancel a running fetch."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait({self._fetching})
            self._fetching = None

    def _valid_keys(self) -> tuple[VerifyingKey, ...]:
        return self._keys if self._monotonic() < self._good_until else ()

    async def _refreshed(self, refresh_wait: float | None) -> None:
        """Wait for the running fetch, or for a new one if it is due."""
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
            fetched = await self._fetch()
        except (Denied, Unavailable) as error:
            self.last_error = error.with_traceback(None)
        else:
            self._take(fetched)
        finally:
            self._not_before = self._monotonic() + self._times.min_interval
            self._fetching = None

    def _take(self, fetched: FetchedKeys) -> None:
        times, now = self._times, self._monotonic()
        age = times.default_age if fetched.max_age is None else fetched.max_age
        self._keys = fetched.keys
        self._fresh_until = now + min(max(age, times.min_age), times.max_age_limit)
        self._good_until = now + times.max_stale
        self.last_error = None


def read_key_files(paths: Iterable[Path]) -> tuple[VerifyingKey, ...]:
    """Read key files, each a key set or PEM as of kube-apiserver; raises ``KeysError``, which names the file.

    A key set means the same in a file and fetched (``relying_party``): keys that verify nothing here are passed over.
    """
    found = deduplicate(key for path in paths for key in _of_file(path))
    if not found:
        raise KeysError("expected at least one file of keys, got none")
    return found


def _of_file(path: Path) -> tuple[VerifyingKey, ...]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SIZE + 1)
        return read_jwks(data, skip_unusable=True) if data.lstrip().startswith(b"{") else read_pem(data)
    except OSError as error:
        raise KeysError(f"{path}: {error.strerror}") from None
    except KeysError as error:
        raise KeysError(f"{path}: {error}") from None


def key_file_cache(paths: Sequence[Path], *, monotonic: Callable[[], float]) -> JWKSCache:
    """Make a cache of files that may be replaced, as in a mounted ConfigMap; they are read once a minute."""

    async def fetch() -> FetchedKeys:
        try:
            return FetchedKeys(read_key_files(paths), 0)
        except KeysError as error:
            raise Unavailable(Reason.ISSUER_UNAVAILABLE, str(error), remedy="see to the files of keys") from None

    return JWKSCache(fetch, monotonic=monotonic)
