"""How long a request has been waiting, whatever the controller's own clock says.

``creationTimestamp`` is the API server's clock. Where ours is ahead of it, a fresh request would look old and be closed
at once; so an age is never more than the time since this process first saw the request. (Whether a challenge was
answered in time is another matter: that compares two timestamps of the API server, in ``twostep``.)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

__all__ = ["Ages"]

REMEMBERED: Final = 20_000
"""Requests; the oldest are forgotten, and then count as just seen."""


class Ages:
    """Remembers when each open request was first seen."""

    def __init__(self, now: Callable[[], datetime], monotonic: Callable[[], float]) -> None:
        self._now = now
        self._monotonic = monotonic
        self._first_seen: OrderedDict[str, float] = OrderedDict()

    def age(self, uid: str, created: datetime) -> timedelta:
        """Tell how long the request has been open, at most since it was first seen here."""
        seen = self._first_seen.setdefault(uid, self._monotonic())
        if len(self._first_seen) > REMEMBERED:
            self._first_seen.popitem(last=False)
        since_seen = timedelta(seconds=self._monotonic() - seen)
        by_clocks = self._now() - created
        return since_seen if by_clocks < timedelta(0) else min(by_clocks, since_seen)

    def __len__(self) -> int:
        return len(self._first_seen)

    def forget(self, uid: str) -> None:
        """Drop a request that is settled."""
        self._first_seen.pop(uid, None)
