"""What an attestation record keeps of refused requests: reason, requester, times and count, in ``status``. Pure.

Promises: at most ``MAX_REASONS`` entries for each kind of requester, so a bootstrap token pushes out nothing that the
node's own certificate was refused for; all foreign text is cut and printable. It decides nothing: what counts against
a machine is ``spec.lastVerdict``.
Leaves to others: whose refusals are counted, and how often they are written (``controllers.node_attested``).
Source: docs/adr/0044.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from nodeattest_controller.model.objects import items, moment, number, rfc3339, text
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_parsing.printable import one_line

__all__ = [
    "KEEP",
    "MAX_MESSAGE",
    "MAX_NAME",
    "MAX_REASONS",
    "RecordedRefusal",
    "Requester",
    "merge_refusals",
    "parse_refusals",
    "render_refusals",
]

MAX_REASONS: Final = 8
"""Entries of each kind of requester; the ones that came last stay."""
KEEP: Final = timedelta(days=30)
"""How long an entry stays after its last request; the next write after that leaves it out."""
MAX_MESSAGE: Final = 512
"""Characters, as the CRD's schema has it."""
MAX_NAME: Final = 253
_MAX_COUNT: Final = 2**31 - 1
"""The schema's int32."""


class Requester(StrEnum):
    """Who asked, as the workload cluster's API server authenticated it."""

    NODE = "Node"
    """The machine's own node, by its certificate."""
    BOOTSTRAP = "BootstrapToken"
    OTHER = "Other"
    """Another node, or a user who is neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRefusal:
    """Requests of one kind of requester that were refused for one reason."""

    requester: Requester
    reason: str
    first: datetime
    last: datetime
    count: int = 1
    request: str = ""
    """Name of the last CertificateSigningRequest."""
    message: str = ""
    """What was expected and what was found, of the last one."""


def merge_refusals(
    known: Iterable[RecordedRefusal], new: Iterable[RecordedRefusal], now: datetime
) -> tuple[RecordedRefusal, ...]:
    """Add up what is known and what came since; newest first, bounded for each kind of requester."""
    found: dict[tuple[Requester, str], RecordedRefusal] = {}
    for one in (*known, *new):
        key = (one.requester, one.reason)
        found[key] = _sum(found[key], one) if key in found else one
    fresh = sorted((one for one in found.values() if now - one.last <= KEEP), key=lambda one: one.last, reverse=True)
    kept = [[one for one in fresh if one.requester is who][:MAX_REASONS] for who in Requester]
    return tuple(sorted((one for each in kept for one in each), key=lambda one: one.last, reverse=True))


def _sum(one: RecordedRefusal, other: RecordedRefusal) -> RecordedRefusal:
    later = other if other.last >= one.last else one
    count = min(one.count + other.count, _MAX_COUNT)
    return replace(later, first=min(one.first, other.first), count=count)


def parse_refusals(attestation: JsonObject) -> tuple[RecordedRefusal, ...]:
    """Read ``status.refusals``; an entry that cannot be read is none."""
    found = (_parse(item) for item in items(attestation, "status", "refusals"))
    return tuple(one for one in found if one is not None)


def _parse(item: JsonObject) -> RecordedRefusal | None:
    first, last = moment(text(item, "firstTime")), moment(text(item, "lastTime"))
    if first is None or last is None or text(item, "requester") not in set(Requester) or not text(item, "reason"):
        return None
    return RecordedRefusal(
        requester=Requester(text(item, "requester")),
        reason=text(item, "reason"),
        first=first,
        last=last,
        count=max(1, number(item, "count") or 1),
        request=text(item, "request"),
        message=text(item, "message"),
    )


def render_refusals(refusals: Sequence[RecordedRefusal]) -> list[JsonObject]:
    """Write them as they are in ``status.refusals``."""
    return [
        {
            "requester": str(one.requester),
            "reason": one.reason,
            "firstTime": rfc3339(one.first),
            "lastTime": rfc3339(one.last),
            "count": one.count,
            "request": one_line(one.request, MAX_NAME),
            "message": one_line(one.message, MAX_MESSAGE),
        }
        for one in refusals
    ]
