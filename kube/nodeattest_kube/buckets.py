"""Token buckets by key: so much at once, so much a second afterwards.

Promises: every step costs the same however many keys there are, a bucket takes one number, and no more buckets are
kept than ``remembered``; the one that was used least lately is forgotten first, which fills it.
Source: the generic cell rate algorithm (ITU-T I.371): a bucket is the time at which its next token is there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

__all__ = ["Buckets"]

_REMEMBERED: Final = 20_000


class Buckets:
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
        """Take a token; False, and none, where the bucket is empty."""
        return self.reserve(key, 0.0) is not None

    def reserve(self, key: Hashable, patience: float) -> float | None:
        """Take a token, now or of those to come; returns the seconds until it is there.

        None, and nothing is taken, where that would be longer than ``patience``.
        """
        now = self._clock()
        if key in self._next:
            self._next.move_to_end(key)
        ready = max(self._next.get(key, now - self._depth), now - self._depth)
        if ready - now > patience:
            return None
        self._next[key] = ready + self._pause
        if len(self._next) > self._remembered:
            self._next.popitem(last=False)
        return max(0.0, ready - now)

    def __len__(self) -> int:
        return len(self._next)
