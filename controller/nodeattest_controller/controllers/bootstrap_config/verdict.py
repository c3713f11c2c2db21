"""What becomes of an object that an API server asks about, and what its caller is told of the reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason

_UNREADABLE: Final = "cannot read the object's Cluster and policy{}; try again"
_POLICY_SAYS_WHY: Final = (
    "its cluster's policy does not allow it: see the policy's status, Events of the machine's owner, and the "
    "controller's log"
)
"""What a caller that was not verified is told where the reason would name a policy, or quote it."""


class AdmissionOutcome(StrEnum):
    """What became of an object; a metric's label."""

    UNCONCERNED = "unconcerned"
    """Not of a cluster, of one that no policy selects, of a paused one; or nothing about it changes."""
    RENDERED = "rendered"
    UNCHANGED = "unchanged"
    """It is rendered already."""
    LEFT = "left"
    """It is not rendered, and machines of it exist; or a policy that was wrong before, and is not worse."""
    AUDITED = "audited"
    ACCEPTED = "accepted"
    """A policy in which nothing is wrong."""
    DENIED = "denied"
    UNAVAILABLE = "unavailable"
    """The facts could not be read."""
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of an object."""

    outcome: AdmissionOutcome
    warnings: tuple[str, ...] = ()
    """They name no object but the one in question: every caller is told them."""
    denied: Denied | None = None
    """Why the object is refused; where it passes, the end of the last warning."""
    public: str = ""
    """What callers that were not verified are told in place of ``denied``; empty: the usual sentence."""
    patch: list[JsonObject] = field(default_factory=list[JsonObject], repr=False)
    unread: str = ""
    """The error for which facts could not be read."""

    @property
    def passes(self) -> bool:
        """Whether the object passes."""
        return self.outcome not in {AdmissionOutcome.DENIED, AdmissionOutcome.UNAVAILABLE}

    def message(self, *, is_verified: bool) -> str:
        """Explain why the object does not pass; what contradicts the rendering is in the caller's own object."""
        if self.denied is None:
            return _UNREADABLE.format(f": {self.unread}" if is_verified else "")
        if is_verified or self.denied.reason is Reason.BOOTSTRAP_CONFIG_REFUSED:
            return str(self.denied)
        return f"{self.denied.reason}: {self.public or _POLICY_SAYS_WHY}"

    def all_warnings(self, *, is_verified: bool) -> tuple[str, ...]:
        """Return the warnings of an object that passes, with the reason."""
        if self.denied is None:
            return self.warnings
        *others, last = self.warnings
        return (*others, f"{last} {self.message(is_verified=is_verified)}")


UNCONCERNED: Final = Verdict(AdmissionOutcome.UNCONCERNED)
UNCHANGED: Final = Verdict(AdmissionOutcome.UNCHANGED)
