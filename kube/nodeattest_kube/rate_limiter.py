"""Token-bucket rate limiters by key.

An operation takes constant time, on average over many. A bucket is dropped once it is full again and no longer used
one is not; at most ``remembered`` are kept, and beyond that the least recently used one is dropped, which refills it.
Source: the generic cell rate algorithm (ITU-T I.371): a bucket is the time at which its next token is there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

_REMEMBERED: Final = 20_000


class RateLimiter:
    """Buckets of one size; ``clock`` is monotonic seconds."""

    def __init__(
        self, *, burst: int, per_second: float, clock: Callable[[], float], remembered: int = _REMEMBERED
    ) -> None:
        self._pause = 1 / per_second
        self._depth = (burst - 1) * self._pause
        self._clock = clock
        self._remembered = remembered
        self._next: OrderedDict[Hashable, float] = OrderedDict()
        """When a bucket's next token is there, if none was ever saved up."""

    def take(self, key: Hashable) -> bool:
        """Take a token; False if the bucket is empty."""
        return self.reserve(key, 0.0) is not None

    def has_token(self, key: Hashable) -> bool:
        """Return whether ``take`` would get a token; takes none."""
        now = self._clock()
        return self._ready(key, now) <= now

    def reserve(self, key: Hashable, max_wait: float) -> float | None:
        """Take a token, now or of those to come; returns the seconds until it is there.

        None, and nothing is taken, where that would be longer than ``max_wait``.
        """
        now = self._clock()
        ready = self._ready(key, now)
        if ready - now > max_wait:
            return None
        self._next[key] = ready + self._pause
        self._drop_full(now)
        if len(self._next) > self._remembered:
            self._next.popitem(last=False)
        return max(0.0, ready - now)

    def _drop_full(self, now: float) -> None:
        """Forget the least recently used ones that are full: one that is not known is."""
        while self._next and next(iter(self._next.values())) <= now - self._depth:
            self._next.popitem(last=False)

    def _ready(self, key: Hashable, now: float) -> float:
        """Return when the next token is there; the bucket counts as used."""
        if key in self._next:
            self._next.move_to_end(key)
        return max(self._next.get(key, now - self._depth), now - self._depth)

    def __len__(self) -> int:
        return len(self._next)
