"""The last refused request that claims a machine which has not joined, as the machine's condition shows it. Pure.

Promises: what is written in a condition is read back as it was, so a restart loses nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nodeattest_controller.model.objects import moment, rfc3339
from nodeattest_providers.errors import Reason

__all__ = ["RefusedClaim", "parse_refused_claim"]

_WRITTEN: Final = re.compile(r"a request that claims this machine was refused at (\S+): (\w+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class RefusedClaim:
    """A refused request by a bootstrap token; it proves nothing of the machine that it claims."""

    at: datetime
    reason: Reason

    def __str__(self) -> str:
        """Say it."""
        refused = f"a request that claims this machine was refused at {rfc3339(self.at)}: {self.reason}"
        return f"{refused}; any holder of a bootstrap token can send one"


def parse_refused_claim(message: str) -> RefusedClaim | None:
    """Read the claim in a condition's message; None where it has none."""
    found = _WRITTEN.search(message)
    at = moment(found[1]) if found is not None else None
    if found is None or at is None or found[2] not in set(Reason):
        return None
    return RefusedClaim(at, Reason(found[2]))
