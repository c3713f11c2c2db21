"""Which Leases are renewed, whatever their holders' clocks show. Pure.

As an elector does, it is seen from the version that changes between two reads. A ``renewTime`` that agrees with the API
server's time spares the wait. A Lease that changed was renewed a moment ago: its ``renewTime`` is its holder's clock.
Source: client-go tools/leaderelection/leaderelection.go (observedTime).
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from nodeattest_cli.doctor.facts import HealthFacts, readable
from nodeattest_controller.model.objects import moment, number, text
from nodeattest_kube.jsontypes import JsonObject, key_of, version_of

__all__ = ["TOLERATED", "is_renewed", "leader_leases", "longest_wait", "writer_ahead"]

TOLERATED: Final = 60.0
"""Seconds by which clocks may differ: a Date has whole ones, an answer takes its time, and a Lease is renewed every few
seconds."""
_LONGEST: Final = 30.0
"""Seconds to wait for a renewal at most; Leases are renewed every two by default."""


def leader_leases(facts: HealthFacts) -> list[JsonObject]:
    """Return the leader's Lease, where there is one."""
    return [one for one in readable(facts.management.leases) if text(one, "metadata", "name") == facts.lease_name]


def is_renewed(facts: HealthFacts, lease: JsonObject) -> bool:
    """Tell whether a Lease is held by somebody who renews it."""
    seconds, off = number(lease, "spec", "leaseDurationSeconds"), _offset(lease, facts.now)
    if not text(lease, "spec", "holderIdentity"):
        return False
    return _changed(facts, lease) or (seconds is not None and off is not None and -seconds <= off <= TOLERATED)


def writer_ahead(facts: HealthFacts, lease: JsonObject) -> float | None:
    """Return the seconds by which the holder's clock is ahead of the API server's; None where no renewal was seen."""
    off = _offset(lease, facts.now)
    if off is None or not is_renewed(facts, lease):
        return None
    return off if _changed(facts, lease) else max(off, 0.0)  # an older renewal may have been some time ago


def longest_wait(facts: HealthFacts) -> float:
    """Return for how many seconds a renewal may yet be seen; 0 where nothing is left open."""
    waiting = [
        float(number(lease, "spec", "leaseDurationSeconds") or 0)
        for lease in leader_leases(facts)
        if text(lease, "spec", "holderIdentity") and not is_renewed(facts, lease)
    ]
    return min(max(waiting, default=0.0), _LONGEST)


def _changed(facts: HealthFacts, lease: JsonObject) -> bool:
    """Tell whether it was written between the two reads."""
    before = facts.management.earlier_leases.get(key_of(lease))
    return before is not None and before != version_of(lease)


def _offset(lease: JsonObject, now: datetime) -> float | None:
    written = moment(text(lease, "spec", "renewTime"))
    return (written - now).total_seconds() if written is not None else None
