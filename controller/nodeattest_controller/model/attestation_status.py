"""What a MachineAttestation says for operators: the last decision, refused requests, and what was done to the node.

No certificate depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from nodeattest_controller.model.policy import FailureAction
from nodeattest_parsing.objects import items, mapping, moment, rfc3339, text
from nodeattest_parsing.values import JsonObject, one_line

APPROVED: Final = "Approved"
DENIED: Final = "Denied"
"""A request that was authenticated as the machine's own node was refused."""
RESET: Final = "Reset"
MAX_REASONS: Final = 8
"""Entries of each kind of requester; the newest stay."""
KEEP_REFUSALS: Final = timedelta(days=30)
"""How long an entry stays after its last request; the next write after that leaves it out."""
MAX_MESSAGE: Final = 512
"""Characters, as the CRD's schema has it."""
MAX_REQUEST_NAME: Final = 253


@dataclass(frozen=True, slots=True)
class LastDecision:
    """``spec.lastVerdict``."""

    verdict: str
    reason: str
    time: datetime | None = None
    """Of a refusal: when this reason came first."""

    def render(self) -> JsonObject:
        return {"verdict": self.verdict, "reason": self.reason, "time": rfc3339(self.time) if self.time else ""}


def parse_last_decision(spec: JsonObject) -> LastDecision | None:
    found = mapping(spec, "lastVerdict")
    if not text(found, "verdict"):
        return None
    return LastDecision(text(found, "verdict"), text(found, "reason"), moment(text(found, "time")))


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
        return {
            "action": str(self.action),
            "nodeName": self.node_name,
            "nodeUID": self.node_uid,
            "reason": self.reason,
            "time": rfc3339(self.time),
        }


def parse_remediation(spec: JsonObject) -> Remediation | None:
    """Read ``spec.onFailure``; an unreadable one counts as absent."""
    found = mapping(spec, "onFailure")
    time, action = moment(text(found, "time")), text(found, "action")
    if time is None or action not in set(FailureAction) - {FailureAction.NONE}:
        return None
    return Remediation(
        action=FailureAction(action),
        node_name=text(found, "nodeName"),
        node_uid=text(found, "nodeUID"),
        reason=text(found, "reason"),
        time=time,
    )


class Requester(StrEnum):
    """Who asked, as the workload cluster's API server authenticated it."""

    NODE = "Node"
    """The machine's own node, by its certificate."""
    BOOTSTRAP = "BootstrapToken"
    OTHER = "Other"
    """Another node, or a user who is neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRefusal:
    """The last request of one kind of requester that was refused for one reason: an entry of ``status.refusals``."""

    requester: Requester
    reason: str
    time: datetime
    request: str = ""
    """Name of the CertificateSigningRequest."""
    message: str = ""


def latest_refusals(refusals: Iterable[RecordedRefusal], now: datetime) -> tuple[RecordedRefusal, ...]:
    """Keep the last one of each requester and reason; newest first, bounded for each kind of requester."""
    by_time = sorted((one for one in refusals if now - one.time <= KEEP_REFUSALS), key=lambda one: one.time)
    latest = {(one.requester, one.reason): one for one in by_time}
    newest = sorted(latest.values(), key=lambda one: one.time, reverse=True)
    kept = {who: [one for one in newest if one.requester is who][:MAX_REASONS] for who in Requester}
    return tuple(one for one in newest if one in kept[one.requester])


def parse_refusals(attestation: JsonObject) -> tuple[RecordedRefusal, ...]:
    """Read ``status.refusals``; unreadable entries are skipped."""
    return tuple(filter(None, map(_refusal, items(attestation, "status", "refusals"))))


def _refusal(item: JsonObject) -> RecordedRefusal | None:
    time = moment(text(item, "time"))
    if time is None or text(item, "requester") not in set(Requester) or not text(item, "reason"):
        return None
    return RecordedRefusal(
        requester=Requester(text(item, "requester")),
        reason=text(item, "reason"),
        time=time,
        request=text(item, "request"),
        message=text(item, "message"),
    )


def render_refusals(refusals: Sequence[RecordedRefusal]) -> list[JsonObject]:
    return [
        {
            "requester": str(one.requester),
            "reason": one.reason,
            "time": rfc3339(one.time),
            "request": one_line(one.request, MAX_REQUEST_NAME),
            "message": one_line(one.message, MAX_MESSAGE),
        }
        for one in refusals
    ]
