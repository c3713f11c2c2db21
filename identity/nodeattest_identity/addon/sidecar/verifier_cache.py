"""Remembers verified tokens for a while; a token that is asked for several times at once is verified once.

Promises: a token is stored only as an HMAC under a key of this process, so memory never holds a usable token. An answer
counts for ``keep`` seconds, not beyond the token's own expiry, and only while one of its audiences is ours. A refusal
is never cached. At most ``_MAX_ENTRIES`` answers are cached.
Source: apiserver pkg/authentication/token/cache (keyed by HMAC, 10 s). kube-rbac-proxy caches for two minutes: there a
revoked token stays valid for that long.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Final

from nodeattest_identity.addon.expiring_cache import ExpiringCache
from nodeattest_identity.addon.sidecar.caller import Caller, Verifier
from nodeattest_providers.single_flight import SingleFlight

__all__ = ["CachedVerifier"]

_MAX_ENTRIES: Final = 10_000


class CachedVerifier:
    """A verifier with a cache in front of it."""

    def __init__(
        self,
        verifier: Verifier,
        *,
        keep: float,
        secret: bytes,
        now: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        """``keep``: seconds; ``secret``: random bytes; ``now``: seconds since the epoch, ``clock``: monotonic."""
        self._verifier = verifier
        self._keep = keep
        self._secret = secret
        self._now = now
        self._clock = clock
        self._cache: ExpiringCache[bytes, Caller] = ExpiringCache(_MAX_ENTRIES, clock)
        self._in_flight: SingleFlight[bytes, Caller] = SingleFlight()

    async def caller(self, token: bytes, peer: str) -> Caller:
        """Return the caller whose token it is; it came from ``peer``. Raises ``Denied`` or ``Unavailable``."""
        key = hmac.digest(self._secret, token, hashlib.sha256)
        caller = self._cache.get(key)
        if caller is not None:
            if self._is_valid(caller):
                return caller
            self._cache.remove(key)
        return await self._in_flight.share(key, lambda: self._verify(key, token, peer))

    def __len__(self) -> int:
        return len(self._cache)

    async def _verify(self, key: bytes, token: bytes, peer: str) -> Caller:
        started = self._clock()
        caller = await self._verifier.verify(token, peer)
        self._cache.put(key, caller, started + self._keep)
        return caller

    def _is_valid(self, caller: Caller) -> bool:
        if caller.expires is not None and caller.expires <= self._now():
            return False
        return not caller.audiences.isdisjoint(self._verifier.audiences())
