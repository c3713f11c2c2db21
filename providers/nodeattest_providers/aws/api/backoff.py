"""How long a request waits after AWS did not answer: never all of them until the same moment.

Promises: a few seconds, longer when AWS throttles, spread so that the requests of a scale-up do not come back together.
Source: AWS, "Exponential backoff and jitter"; botocore, ``retries/standard.py`` (codes).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nodeattest_providers.platform import CallOutcome

THROTTLING_CODES: Final = frozenset(
    {
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "PriorRequestNotComplete",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "Throttling",
        "ThrottledException",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
_SHORT: Final = (2.0, 6.0)
_THROTTLED: Final = (5.0, 20.0)
"""Seconds, from and to."""


def retry_after(outcome: CallOutcome, random: Callable[[], float]) -> float:
    """Return when to ask again; ``random`` gives 0 to 1."""
    low, high = _THROTTLED if outcome is CallOutcome.THROTTLED else _SHORT
    return low + (high - low) * random()
