"""When a new certificate is wanted, long before the one at hand ends.

Leaves to others: renewing in the background (``background_renewal``), and the pauses after a failed renewal
(``state.failure_backoff``). Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_EARLIEST: Final = 0.5
"""Share of the time that is left at issue."""
_SPREAD: Final = 0.2
"""Share of that time over which a fleet's renewals are spread."""


def renewal_moment(*, now: float, not_after: int, renewable: bool, random: Callable[[], float]) -> int:
    """Draw the moment from which a new certificate is wanted: after 50 to 70 % of the time that is left at issue."""
    return int(now + (not_after - now) * (_EARLIEST + _SPREAD * random())) if renewable else not_after
