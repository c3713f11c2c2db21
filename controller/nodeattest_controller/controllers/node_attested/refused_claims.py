"""Refused requests that claim a machine which has not joined, as its condition counts them. Pure.

Promises: what is written in a condition is read back as it was, so a restart loses no count; bounded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nodeattest_controller.model.objects import moment, rfc3339
from nodeattest_controller.model.refusals import MAX_REASONS
from nodeattest_providers.errors import Reason

__all__ = ["RefusedClaims", "other_reasons", "parse_refused_claims"]

_WRITTEN: Final = re.compile(
    r"(\d{1,9}) requests? that claims? this machine refused since (\S+), the last one: (\w+)"
    r"(?: \(\d+ other reasons?: ([\w, ]+)\))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class RefusedClaims:
    """Refused requests by bootstrap tokens that claim a machine which has not joined; they prove nothing of it."""

    count: int
    since: datetime
    """Of the first one that was counted."""
    reason: Reason
    """Of the last one."""
    others: tuple[Reason, ...] = ()
    """Other reasons, the newest first."""

    def __str__(self) -> str:
        """Say it."""
        requests = "1 request that claims" if self.count == 1 else f"{self.count} requests that claim"
        refused = f"{requests} this machine refused since {rfc3339(self.since)}, the last one: {self.reason}"
        others = f" ({other_reasons(self.others)})" if self.others else ""
        return f"{refused}{others}; any holder of a bootstrap token can send one"

    def plus(self, later: RefusedClaims) -> RefusedClaims:
        """Add what was refused after these."""
        reasons = dict.fromkeys((later.reason, *later.others, self.reason, *self.others))
        newest, *others = list(reasons)[:MAX_REASONS]
        return RefusedClaims(self.count + later.count, min(self.since, later.since), newest, tuple(others))


def other_reasons(reasons: tuple[str, ...]) -> str:
    """Count and name reasons besides the one that was named."""
    return f"{len(reasons)} other reason{'' if len(reasons) == 1 else 's'}: {', '.join(reasons)}"


def parse_refused_claims(message: str) -> RefusedClaims | None:
    """Read the claims that a condition's message counts; None where it counts none."""
    found = _WRITTEN.search(message)
    since = moment(found[2]) if found is not None else None
    if found is None or since is None:
        return None
    named = [found[3], *(found[4].split(", ") if found[4] else ())][:MAX_REASONS]
    reasons = [Reason(one) for one in named if one in set(Reason)]
    return RefusedClaims(int(found[1]), since, reasons[0], tuple(reasons[1:])) if reasons else None
