"""Tokens that were verified, remembered for a while; one verification at a time for each.

Promises: a token is kept as an HMAC under a key of this process alone, so no memory of ours gives a token away; an
answer is good for ``keep`` seconds, not beyond the token's own end, and only while one of its audiences is ours; a
refusal is never remembered; no more than ``_MOST`` answers are kept.
Source: apiserver pkg/authentication/token/cache (keyed by HMAC, 10 s); kube-rbac-proxy keeps two minutes, which is how
long a token that was taken back stays good there.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from nodeattest_identity.addon.sidecar.caller import Caller, Verifier

__all__ = ["CachedVerifier"]

_MOST: Final = 10_000


class CachedVerifier:
    """A verifier, with a memory."""

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
        self._known: OrderedDict[bytes, tuple[Caller, float]] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Caller]] = {}

    async def caller(self, token: bytes, peer: str) -> Caller:
        """Return who a token speaks for that came from ``peer``; raises ``Denied`` or ``Unavailable``."""
        key = hmac.digest(self._secret, token, hashlib.sha256)
        known = self._known.get(key)
        if known is not None:
            caller, until = known
            if self._clock() < until and self._is_good(caller):
                return caller
            del self._known[key]
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.get_running_loop().create_task(self._ask(key, token, peer))
            task.add_done_callback(lambda done: self._asked(key, done))
        return await asyncio.shield(task)  # whoever goes away leaves the question to the others

    def __len__(self) -> int:
        return len(self._known)

    async def _ask(self, key: bytes, token: bytes, peer: str) -> Caller:
        asked = self._clock()
        caller = await self._verifier.verify(token, peer)
        self._known[key] = caller, asked + self._keep
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
        return caller

    def _asked(self, key: bytes, done: asyncio.Task[Caller]) -> None:
        self._asking.pop(key, None)
        if not done.cancelled():
            done.exception()  # somebody has heard it, or has gone away

    def _is_good(self, caller: Caller) -> bool:
        if caller.expires is not None and caller.expires <= self._now():
            return False
        return not caller.audiences.isdisjoint(self._verifier.audiences())
