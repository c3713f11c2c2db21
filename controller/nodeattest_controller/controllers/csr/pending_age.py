"""How long a request has been waiting, whatever the controller's own clock says.

``creationTimestamp`` is the API server's clock. Where ours is ahead of it, a fresh request would look old and be closed
at once; so an age is never more than the time since this process first saw the request. (Whether a challenge was
answered in time is another matter: that compares two timestamps of the API server, in the provider's verifier.)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

__all__ = ["PendingAges"]

REMEMBERED: Final = 20_000
"""Requests; one that finds no room is as old as the clocks say: as just seen, a flood would keep all pending."""
LONGEST_WAIT: Final = 86400.0
"""Seconds; more than any ``waitLimit`` (``settings``). What was seen before that is gone, or has long been refused."""


class PendingAges:
    """Remembers when each open request was first seen."""

    def __init__(self, now: Callable[[], datetime], monotonic: Callable[[], float]) -> None:
        self._now = now
        self._monotonic = monotonic
        self._first_seen: OrderedDict[str, float] = OrderedDict()

    def age(self, uid: str, created: datetime) -> timedelta:
        """Tell how long the request has been open, at most since it was first seen here."""
        by_clocks = self._now() - created
        seen = self._first_seen.get(uid)
        if seen is None:
            seen = self._monotonic()
            self._drop_before(seen - LONGEST_WAIT)
            if len(self._first_seen) >= REMEMBERED:
                return max(by_clocks, timedelta(0))
            self._first_seen[uid] = seen
        since_seen = timedelta(seconds=self._monotonic() - seen)
        return since_seen if by_clocks < timedelta(0) else min(by_clocks, since_seen)

    def _drop_before(self, seen: float) -> None:
        """Make room; the first entries are the oldest."""
        while self._first_seen and next(iter(self._first_seen.values())) < seen:
            self._first_seen.popitem(last=False)

    def __len__(self) -> int:
        return len(self._first_seen)

    def forget(self, uid: str) -> None:
        """Drop a request that is settled."""
        self._first_seen.pop(uid, None)
