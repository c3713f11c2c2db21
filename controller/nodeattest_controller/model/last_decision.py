"""What an attestation record keeps of verdicts and of what they led to: the last one, what was done to the node. Pure.

The last verdict stands until a certificate is issued or an operator resets the record. What was done to a node is
written down before it is done, so that a replica which dies in between leaves a record too much, never one too few.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nodeattest_controller.model.objects import mapping, moment, rfc3339, text
from nodeattest_controller.model.policy import FailureAction
from nodeattest_parsing.values import JsonObject

__all__ = ["APPROVED", "DENIED", "RESET", "LastDecision", "Remediation", "parse_last_decision", "parse_remediation"]

APPROVED: Final = "Approved"
DENIED: Final = "Denied"
"""A request that was authenticated as the machine's own node was refused."""
RESET: Final = "Reset"
_DONE: Final = frozenset(FailureAction) - {FailureAction.NONE}


@dataclass(frozen=True, slots=True)
class LastDecision:
    """``spec.lastVerdict``."""

    verdict: str
    reason: str
    time: datetime | None = None
    """Of a refusal: when this reason came first."""

    def render(self) -> JsonObject:
        """Write it as it is in the ledger; needs a time."""
        return {"verdict": self.verdict, "reason": self.reason, "time": rfc3339(self.time) if self.time else ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Remediation:
    """``spec.onFailure``: what was done, or was about to be done, to the machine's Node."""

    action: FailureAction
    node_name: str
    node_uid: str
    reason: str
    """Of the refusal that led to it."""
    time: datetime

    def render(self) -> JsonObject:
        """Write it as it is in the ledger."""
        return {
            "action": str(self.action),
            "nodeName": self.node_name,
            "nodeUID": self.node_uid,
            "reason": self.reason,
            "time": rfc3339(self.time),
        }


def parse_last_decision(spec: JsonObject) -> LastDecision | None:
    """Read ``spec.lastVerdict``."""
    found = mapping(spec, "lastVerdict")
    if not text(found, "verdict"):
        return None
    return LastDecision(text(found, "verdict"), text(found, "reason"), moment(text(found, "time")))


def parse_remediation(spec: JsonObject) -> Remediation | None:
    """Read ``spec.onFailure``; one that cannot be read is none."""
    found = mapping(spec, "onFailure")
    time = moment(text(found, "time"))
    if time is None or text(found, "action") not in _DONE:
        return None
    return Remediation(
        action=FailureAction(text(found, "action")),
        node_name=text(found, "nodeName"),
        node_uid=text(found, "nodeUID"),
        reason=text(found, "reason"),
        time=time,
    )
