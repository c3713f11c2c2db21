"""Who should own what: shards shared out among the members that are alive, and what one member does about it.

Promises: pure, and the same for everybody who sees the same, whatever came before; no member gets more than a quarter
above its even share, rounded up; a member that comes or goes moves little besides what it takes or leaves.
Leaves to others: who is alive, and the writes (``shards``).
Source: rendezvous hashing (Thaler, Ravishankar 1998) with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = ["Decision", "MemberState", "Sight", "decide", "most_each", "owners"]

_SLACK: Final = 4
"""One part in so many that a member may own above its even share: the less slack, the more moves a change makes."""


class MemberState(StrEnum):
    """What is known of a member."""

    LIVE = "live"
    """Its lease was renewed lately."""
    MISSING = "missing"
    """It has no lease; it may have had one a moment ago, and be at work."""
    SILENT = "silent"
    """Its lease was not renewed for its whole duration, or has been missing for as long: it stopped before."""
    ENDED = "ended"
    """Its lease says that it is nobody's any more, and can never be renewed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What one member sees at one moment."""

    me: str
    wanted: frozenset[str]
    """The shards that there are to own."""
    members: Mapping[str, MemberState]
    """Everybody who has a lease or is named by one, ourselves included."""
    holders: Mapping[str, str]
    """By shard that has a lease: who holds it; empty for nobody."""
    held: frozenset[str]
    """The shards whose leases we know to be ours, because our claim was answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do next; each part may be done in any order."""

    end: frozenset[str] = frozenset()
    """Silent members whose leases are to be ended, after which their shards are free."""
    claim: frozenset[str] = frozenset()
    release: frozenset[str] = frozenset()
    """Held shards that are somebody else's by now, or nobody's: stop, then give the lease up."""
    lost: frozenset[str] = frozenset()
    """Held shards whose leases somebody tampered with: stop."""
    discard: frozenset[str] = frozenset()
    """Shards that are no more, whose leases nobody holds."""
    bury: frozenset[str] = frozenset()
    """Ended members that hold nothing."""


def decide(sight: Sight, owner_of: Mapping[str, str]) -> Decision:
    """Say what we do about what we see; ``owner_of`` is ``owners`` of the wanted shards and the live members.

    A shard is claimed from nobody, from ourselves (a claim whose answer never came) or from an ended member: never from
    one that is alive, however little we think it should have the shard, and never from one that may be.
    """
    lost = frozenset(shard for shard in sight.held if sight.holders.get(shard) != sight.me)
    mine = frozenset(shard for shard, owner in owner_of.items() if owner == sight.me)
    silent = frozenset(name for name, state in sight.members.items() if state is MemberState.SILENT)
    live = [name for name, state in sight.members.items() if state is MemberState.LIVE]
    tidies = bool(live) and min(live) == sight.me
    holding = frozenset(sight.holders.values())
    strays = frozenset(
        shard
        for shard, holder in sight.holders.items()
        if holder == sight.me and shard not in mine and shard not in sight.held
    )
    return Decision(
        end=silent,
        claim=frozenset(shard for shard in mine - sight.held if _is_free(sight, shard)),
        release=(sight.held - lost - mine) | strays,
        lost=lost,
        discard=frozenset(
            shard
            for shard, holder in sight.holders.items()
            if tidies and shard not in sight.wanted and holder != sight.me and _is_free(sight, shard)
        ),
        bury=frozenset(
            name
            for name, state in sight.members.items()
            if tidies and state is MemberState.ENDED and name not in holding
        ),
    )


def owners(shards: Collection[str], members: Collection[str]) -> dict[str, str]:
    """Give each shard to the member that scores highest for it and has room; nobody gets any where nobody is."""
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
    """Say how many shards one member gets at most."""
    return -(-shards * (_SLACK + 1) // (members * _SLACK))


def _is_free(sight: Sight, shard: str) -> bool:
    holder = sight.holders.get(shard, "")
    return holder in {"", sight.me} or sight.members.get(holder) is MemberState.ENDED


def _place(shard: str) -> tuple[bytes, str]:
    """Put shards in an order that no name can choose for itself, so that none is always the last to find room."""
    return hashlib.sha256(shard.encode()).digest(), shard


def _score(shard: str, member: str) -> tuple[bytes, str]:
    return hashlib.sha256(f"{len(member)}:{member}{shard}".encode()).digest(), member
