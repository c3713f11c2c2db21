"""What an attestation record keeps of refused requests in ``status``: reason, requester and time. Pure.

At most ``MAX_REASONS`` entries for each kind of requester, so a bootstrap token pushes out nothing that the node's own
certificate was refused for; foreign text is cut and printable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from nodeattest_parsing.objects import items, moment, rfc3339, text
from nodeattest_parsing.values import JsonObject, one_line

MAX_REASONS: Final = 8
"""Entries of each kind of requester; the ones that came last stay."""
KEEP: Final = timedelta(days=30)
"""How long an entry stays after its last request; the next write after that leaves it out."""
MAX_MESSAGE: Final = 512
"""Characters, as the CRD's schema has it."""
MAX_NAME: Final = 253


class Requester(StrEnum):
    """Who asked, as the workload cluster's API server authenticated it."""

    NODE = "Node"
    """The machine's own node, by its certificate."""
    BOOTSTRAP = "BootstrapToken"
    OTHER = "Other"
    """Another node, or a user who is neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRefusal:
    """The last request of one kind of requester that was refused for one reason."""

    requester: Requester
    reason: str
    time: datetime
    request: str = ""
    """Name of the CertificateSigningRequest."""
    message: str = ""
    """What was expected and what was found."""


def latest_refusals(refusals: Iterable[RecordedRefusal], now: datetime) -> tuple[RecordedRefusal, ...]:
    """Keep the last one of each requester and reason; newest first, bounded for each kind of requester."""
    by_time = sorted((one for one in refusals if now - one.time <= KEEP), key=lambda one: one.time)
    latest = {(one.requester, one.reason): one for one in by_time}
    newest = sorted(latest.values(), key=lambda one: one.time, reverse=True)
    kept = {who: [one for one in newest if one.requester is who][:MAX_REASONS] for who in Requester}
    return tuple(one for one in newest if one in kept[one.requester])


def parse_refusals(attestation: JsonObject) -> tuple[RecordedRefusal, ...]:
    """Read ``status.refusals``; an entry that cannot be read is none."""
    found = (_parse(item) for item in items(attestation, "status", "refusals"))
    return tuple(one for one in found if one is not None)


def _parse(item: JsonObject) -> RecordedRefusal | None:
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
    """Write them as they are in ``status.refusals``."""
    return [
        {
            "requester": str(one.requester),
            "reason": one.reason,
            "time": rfc3339(one.time),
            "request": one_line(one.request, MAX_NAME),
            "message": one_line(one.message, MAX_MESSAGE),
        }
        for one in refusals
    ]
