"""Assignment of shards to live members, and the next actions of one member. Pure.

The result depends only on the snapshot, so members with the same snapshot agree. No member gets more than a quarter
above its even share, rounded up; a member that joins or leaves moves few shards besides its own.
Leaves to others: which members are alive, and the writes (``shard_elector``).
Source: rendezvous hashing (Thaler, Ravishankar 1998) with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = ["MemberState", "PlacementDecision", "Snapshot", "decide", "most_each", "owners"]

_SLACK: Final = 4
"""A member may own 1/4 above its even share: the less slack, the more shards move at a change."""


class MemberState(StrEnum):
    """What is known of a member."""

    LIVE = "live"
    """Its lease was renewed lately."""
    MISSING = "missing"
    """It has no lease; it may have had one a moment ago and still be working."""
    EXPIRED = "expired"
    """Its lease was not renewed for its whole duration, or has been missing for as long."""
    ENDED = "ended"
    """Its lease is held by nobody and can never be renewed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The leases as one member knows them at one moment."""

    me: str
    wanted: frozenset[str]
    """All shards."""
    members: Mapping[str, MemberState]
    """All members that have a lease or are named by one, this one included."""
    holders: Mapping[str, str]
    """Holder of each shard that has a lease; empty for none."""
    held: frozenset[str]
    """The shards whose leases this member holds: its claim was confirmed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementDecision:
    """The next actions, in any order."""

    end: frozenset[str] = frozenset()
    """Expired members whose leases are to be ended, which frees their shards."""
    claim: frozenset[str] = frozenset()
    release: frozenset[str] = frozenset()
    """Held shards that are now assigned to others, or gone: stop the work, then release the lease."""
    lost: frozenset[str] = frozenset()
    """Held shards whose leases were taken by others: stop the work."""
    discard: frozenset[str] = frozenset()
    """Removed shards whose leases nobody holds."""
    delete: frozenset[str] = frozenset()
    """Ended members that hold no shard: delete their leases."""


def decide(snapshot: Snapshot, owner_of: Mapping[str, str]) -> PlacementDecision:
    """Decide the next actions of this member; ``owner_of`` is ``owners`` of the wanted shards and the live members.

    A shard is claimed if it has no holder, if the holder is this member (a claim whose answer was lost) or an ended
    one: never from a member that is, or may be, alive, no matter who should own the shard.
    """
    lost = frozenset(shard for shard in snapshot.held if snapshot.holders.get(shard) != snapshot.me)
    mine = frozenset(shard for shard, owner in owner_of.items() if owner == snapshot.me)
    expired = frozenset(name for name, state in snapshot.members.items() if state is MemberState.EXPIRED)
    live = [name for name, state in snapshot.members.items() if state is MemberState.LIVE]
    cleans_up = bool(live) and min(live) == snapshot.me
    holding = frozenset(snapshot.holders.values())
    unconfirmed = frozenset(
        shard
        for shard, holder in snapshot.holders.items()
        if holder == snapshot.me and shard not in mine and shard not in snapshot.held
    )
    return PlacementDecision(
        end=expired,
        claim=frozenset(shard for shard in mine - snapshot.held if _is_free(snapshot, shard)),
        release=(snapshot.held - lost - mine) | unconfirmed,
        lost=lost,
        discard=frozenset(
            shard
            for shard, holder in snapshot.holders.items()
            if cleans_up and shard not in snapshot.wanted and holder != snapshot.me and _is_free(snapshot, shard)
        ),
        delete=frozenset(
            name
            for name, state in snapshot.members.items()
            if cleans_up and state is MemberState.ENDED and name not in holding
        ),
    )


def owners(shards: Collection[str], members: Collection[str]) -> dict[str, str]:
    """Assign each shard to the member with the highest score that has room; empty without members."""
    if not members:
        return {}
    most = most_each(len(shards), len(members))
    loads = dict.fromkeys(sorted(members), 0)
    chosen: dict[str, str] = {}
    for shard in sorted(shards, key=_place):
        owner = max((member for member in loads if loads[member] < most), key=lambda member: _score(shard, member))
        loads[owner] += 1
        chosen[shard] = owner
    return chosen


def most_each(shards: int, members: int) -> int:
    """Return the most shards that one member gets."""
    return -(-shards * (_SLACK + 1) // (members * _SLACK))


def _is_free(snapshot: Snapshot, shard: str) -> bool:
    holder = snapshot.holders.get(shard, "")
    return holder in {"", snapshot.me} or snapshot.members.get(holder) is MemberState.ENDED


def _place(shard: str) -> tuple[bytes, str]:
    """Order shards by hash, so that no name decides which shard is assigned last."""
    return hashlib.sha256(shard.encode()).digest(), shard


def _score(shard: str, member: str) -> tuple[bytes, str]:
    return hashlib.sha256(f"{len(member)}:{member}{shard}".encode()).digest(), member
