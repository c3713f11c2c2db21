"""An issuer's keys, kept as long as they may be, and asked for again when they may not or when a key is unknown.

Promises: one fetch at a time, however many ask; at most one every ``PAUSE`` seconds, whatever tokens name (an unknown
``kid`` is a stranger's word); keys are kept as long as the issuer lets them, within bounds; when it cannot be asked, or
says what cannot be believed, the last good keys count for ``LAST_GOOD`` more, and who waits, waits for ``PATIENCE``
only. What was fetched replaces what was there: a key that the issuer takes back is gone with the next fetch.
Leaves to others: how keys are fetched and read (``relying``), what they prove (``jwt``).
Source: RFC 9111 §4.2 and §5.2.2.1; Kubernetes pkg/serviceaccount/jwt.go: a key is published a max-age before it signs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from nodeattest_identity.issuer.keys import MAX_SIZE, KeysError, VerifyingKey, read_jwks, read_pem
from nodeattest_providers.errors import Denied, Reason, Unavailable

__all__ = [
    "CacheTimes",
    "FetchKeys",
    "FetchedKeys",
    "JWKSCache",
    "KeySource",
    "StaticKeys",
    "key_file_cache",
    "read_key_files",
]

_REMEDY: Final = "see that the issuer's documents can be reached from here"


@dataclass(frozen=True, slots=True)
class FetchedKeys:
    """What one fetch brought."""

    keys: tuple[VerifyingKey, ...]
    max_age: float | None
    """Seconds that the issuer lets them be kept; None where it does not say."""


FetchKeys = Callable[[], Awaitable[FetchedKeys]]
"""Asks the issuer; raises ``Denied`` or ``Unavailable``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTimes:
    """How long things last, in seconds."""

    shortest: float = 60.0
    """Keys are kept so long at least, whatever the issuer says: it must not make us ask for each token."""
    longest: float = 3600.0
    """And so long at most: kube-apiserver's own max-age. A key that was taken back is gone after it."""
    unsaid: float = 300.0
    """Where the issuer does not say."""
    pause: float = 10.0
    """From one fetch to the next: how late a new key may be noticed."""
    last_good: float = 24 * 3600.0
    """How long keys count after the last fetch that went well."""
    patience: float = 1.0
    """How long a token whose key is known waits for a fetch that is overdue."""


class KeySource(Protocol):
    """Whoever has keys for tokens."""

    async def keys_for(self, kid: str) -> Sequence[VerifyingKey]:
        """Return all keys, asked for again if ``kid`` is not among them; raises ``Denied`` or ``Unavailable``."""
        ...


@dataclass(frozen=True, slots=True)
class StaticKeys:
    """Keys that stay as they are."""

    keys: tuple[VerifyingKey, ...]

    async def keys_for(self, kid: str) -> Sequence[VerifyingKey]:
        """Return them."""
        del kid
        return self.keys


class JWKSCache:
    """Keys that are fetched."""

    def __init__(self, fetch: FetchKeys, *, monotonic: Callable[[], float], times: CacheTimes | None = None) -> None:
        self._fetch = fetch
        self._monotonic = monotonic
        self._times = times or CacheTimes()
        self._keys: tuple[VerifyingKey, ...] = ()
        self._fresh_until = self._good_until = self._not_before = float("-inf")
        self._last_error: Denied | Unavailable | None = None
        self._fetching: asyncio.Task[None] | None = None

    @property
    def last_error(self) -> Denied | Unavailable | None:
        """Why the last fetch failed; None after one that went well."""
        return self._last_error

    @property
    def has_keys(self) -> bool:
        """Whether there are keys that count."""
        return bool(self._counting())

    async def keys_for(self, kid: str) -> Sequence[VerifyingKey]:
        """Return all keys, asked for again if they are old or ``kid`` is not among them.

        Raises ``Denied`` or ``Unavailable`` where there are none that count.
        """
        keys = self._counting()
        known = any(key.kid == kid for key in keys)
        if not known or self._monotonic() >= self._fresh_until:
            await self._refreshed(self._times.patience if known else None)
        if keys := self._counting():
            return keys
        if self._last_error is not None:
            raise self._last_error.with_traceback(None)
        raise Unavailable(Reason.ISSUER_UNAVAILABLE, "the issuer has not answered yet", remedy=_REMEDY)

    async def aclose(self) -> None:
        """Give up a fetch that runs."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait({self._fetching})
            self._fetching = None

    def _counting(self) -> tuple[VerifyingKey, ...]:
        return self._keys if self._monotonic() < self._good_until else ()

    async def _refreshed(self, patience: float | None) -> None:
        """Wait for the fetch that runs, or for a new one, if it is time for one."""
        if self._fetching is None:
            if self._monotonic() < self._not_before:
                return
            self._fetching = asyncio.create_task(self._once())
        fetching = self._fetching
        await asyncio.wait({fetching}, timeout=patience)  # never cancels it: others wait for it too
        if fetching.done() and not fetching.cancelled():
            fetching.result()

    async def _once(self) -> None:
        try:
            fetched = await self._fetch()
        except (Denied, Unavailable) as error:
            self._last_error = error.with_traceback(None)
        else:
            self._take(fetched)
        finally:
            self._not_before = self._monotonic() + self._times.pause
            self._fetching = None

    def _take(self, fetched: FetchedKeys) -> None:
        times, now = self._times, self._monotonic()
        age = times.unsaid if fetched.max_age is None else fetched.max_age
        self._keys = fetched.keys
        self._fresh_until = now + min(max(age, times.shortest), times.longest)
        self._good_until = now + times.last_good
        self._last_error = None


def read_key_files(paths: Iterable[Path]) -> tuple[VerifyingKey, ...]:
    """Read files of keys, each a key set or PEM as kube-apiserver's; raises ``KeysError``, which names the file."""
    found: dict[str, VerifyingKey] = {}
    for path in paths:
        for key in _of_file(path):
            if found.setdefault(key.kid, key).spki != key.spki:
                raise KeysError(f"{path}: expected every key under a name of its own, got two of one kid")
    if not found:
        raise KeysError("expected at least one file of keys, got none")
    return tuple(found.values())


def _of_file(path: Path) -> tuple[VerifyingKey, ...]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SIZE + 1)
        return read_jwks(data) if data.lstrip().startswith(b"{") else read_pem(data)
    except OSError as error:
        raise KeysError(f"{path}: {error.strerror}") from None
    except KeysError as error:
        raise KeysError(f"{path}: {error}") from None


def key_file_cache(paths: Sequence[Path], *, monotonic: Callable[[], float]) -> JWKSCache:
    """Make a keyring of files that may be replaced, as in a mounted ConfigMap: they are looked at once a minute."""

    async def fetch() -> FetchedKeys:
        try:
            return FetchedKeys(read_key_files(paths), 0)
        except KeysError as error:
            raise Unavailable(Reason.ISSUER_UNAVAILABLE, str(error), remedy="see to the files of keys") from None

    return JWKSCache(fetch, monotonic=monotonic)
