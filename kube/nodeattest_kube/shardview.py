"""What one member sees of the shared Leases: what it was told, what it wrote since, and how long each has been so.

Promises: a lease that we wrote is seen as written even while the watch lags behind; how long a member has been silent
is counted from when *we* first saw its lease as it is, on our own monotonic clock, so that nobody's clock need agree.
Leaves to others: what to do about it (``placement``, ``shards``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from nodeattest_kube.jsontypes import JsonObject, dig_text, version_of
from nodeattest_kube.placement import MemberState
from nodeattest_kube.shardleases import Group, Member, Shard, Version

__all__ = ["LeaseView", "Seen", "ShardView"]


class LeaseView(Protocol):
    """The group's leases as last told; it may lag behind, but never goes back. ``Reflector`` is one."""

    @property
    def synced(self) -> bool:
        """Whether all of them have been told once."""
        ...

    def values(self) -> Iterable[JsonObject]:
        """Return them."""
        ...


@dataclass(frozen=True, slots=True)
class Seen:
    """All leases at one moment."""

    members: Mapping[str, Member]
    states: Mapping[str, MemberState]
    """Of those that have a lease, and of those that a shard's lease names."""
    shards: Mapping[str, Shard]
    next_change: float
    """Seconds until somebody counts as silent who did not renew meanwhile; infinite where nobody would."""


class ShardView:
    """A view with our own writes over it, and a memory of when each member was last new."""

    def __init__(self, view: LeaseView, group: Group, *, duration: float, clock: Callable[[], float]) -> None:
        """``duration``: how long a member may be silent that does not say so itself."""
        self._view = view
        self._group = group
        self._duration = duration
        self._clock = clock
        self._since: dict[str, tuple[Version | None, float]] = {}
        self._written: dict[str, tuple[set[Version | None], JsonObject | None]] = {}
        """By name: the versions that our write has overtaken, and what it made of the lease; None: it deleted it."""

    def wrote(self, name: str, before: Version | None, answer: JsonObject | None) -> None:
        """Remember a write that was answered; ``before`` is the version it replaced, None where there was no lease."""
        overtaken, _ = self._written.get(name, (set[Version | None](), None))
        self._written[name] = ({*overtaken, before}, answer)

    def look(self) -> Seen:
        """Read the leases as they are for all we know."""
        parsed = [self._group.read(lease) for lease in self._leases().values()]
        members = {one.identity: one for one in parsed if isinstance(one, Member)}
        shards = {one.shard: one for one in parsed if isinstance(one, Shard)}
        named = {*members, *(shard.holder for shard in shards.values() if shard.holder)}
        self._since = {name: known for name, known in self._since.items() if name in named}
        now, next_change = self._clock(), float("inf")
        states: dict[str, MemberState] = {}
        for name in named:
            member = members.get(name)
            left = self._left(name, member, now)
            states[name] = _state(member, left)
            if states[name] in {MemberState.LIVE, MemberState.MISSING}:
                next_change = min(next_change, left)
        return Seen(members, states, shards, next_change)

    def _left(self, name: str, member: Member | None, now: float) -> float:
        """Say how many seconds a member may still be silent."""
        version = member.version if member is not None else None
        known = self._since.get(name)
        if known is None or known[0] != version:
            known = self._since[name] = (version, now)
        told = member.duration if member is not None else None
        return known[1] + (self._duration if told is None else told) - now

    def _leases(self) -> dict[str, JsonObject]:
        """Lay our writes over what we were told, until that has caught up."""
        leases = {dig_text(lease, "metadata", "name"): lease for lease in self._view.values()}
        for name, (overtaken, answer) in list(self._written.items()):
            told = leases.get(name)
            if (version_of(told) if told is not None else None) not in overtaken:
                del self._written[name]
            elif answer is None:
                leases.pop(name, None)
            else:
                leases[name] = answer
        return leases


def _state(member: Member | None, left: float) -> MemberState:
    if member is not None and member.ended:
        return MemberState.ENDED
    if left <= 0:
        return MemberState.SILENT
    return MemberState.MISSING if member is None else MemberState.LIVE
