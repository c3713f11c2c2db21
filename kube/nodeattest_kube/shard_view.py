"""One member's view of the group's Leases: the watched ones, its own later writes, and since when each is unchanged.

A lease written by this member is seen as written even while the watch lags behind. A member's silence is measured from
when this member first observed the current version of its lease, on its own monotonic clock: clocks need not agree.
Leaves to others: what to do about it (``shard_placement``, ``shard_elector``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from nodeattest_kube.jsontypes import JsonObject, dig_text, version_of
from nodeattest_kube.shard_leases import MemberLease, ResourceVersion, ShardGroup, ShardLease
from nodeattest_kube.shard_placement import MemberState

__all__ = ["LeaseView", "ObservedLeases", "ShardView"]


class LeaseView(Protocol):
    """The group's leases as last received; may lag behind, never goes back. ``Reflector`` is one."""

    @property
    def synced(self) -> bool:
        """Whether all of them were received once."""
        ...

    def values(self) -> Iterable[JsonObject]:
        """Return them."""
        ...


@dataclass(frozen=True, slots=True)
class ObservedLeases:
    """All leases at one moment."""

    members: Mapping[str, MemberLease]
    states: Mapping[str, MemberState]
    """Of members that have a lease, and of those named by a shard's lease."""
    shards: Mapping[str, ShardLease]
    next_change: float
    """Seconds until the next member expires unless it renews; infinite if none can."""


class ShardView:
    """The watched leases overlaid with this member's own writes."""

    def __init__(self, view: LeaseView, group: ShardGroup, *, duration: float, clock: Callable[[], float]) -> None:
        """``duration``: lease duration of a member whose lease does not state one."""
        self._view = view
        self._group = group
        self._duration = duration
        self._clock = clock
        self._since: dict[str, tuple[ResourceVersion | None, float]] = {}
        self._written: dict[str, tuple[set[ResourceVersion | None], JsonObject | None]] = {}
        """By name: the versions that our write replaced, and its result; None: deleted."""

    def wrote(self, name: str, before: ResourceVersion | None, answer: JsonObject | None) -> None:
        """Record a confirmed write; ``before`` is the version it replaced, None if there was no lease."""
        overtaken, _ = self._written.get(name, (set[ResourceVersion | None](), None))
        self._written[name] = ({*overtaken, before}, answer)

    def observe(self) -> ObservedLeases:
        """Return the current leases and the state of each member."""
        parsed = [self._group.read(lease) for lease in self._leases().values()]
        members = {one.identity: one for one in parsed if isinstance(one, MemberLease)}
        shards = {one.shard: one for one in parsed if isinstance(one, ShardLease)}
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
        return ObservedLeases(members, states, shards, next_change)

    def _left(self, name: str, member: MemberLease | None, now: float) -> float:
        """Return the seconds until a member expires."""
        version = member.version if member is not None else None
        known = self._since.get(name)
        if known is None or known[0] != version:
            known = self._since[name] = (version, now)
        duration = member.duration if member is not None else None
        return known[1] + (self._duration if duration is None else duration) - now

    def _leases(self) -> dict[str, JsonObject]:
        """Overlay our own writes until the watch has caught up."""
        leases = {dig_text(lease, "metadata", "name"): lease for lease in self._view.values()}
        for name, (overtaken, answer) in list(self._written.items()):
            watched = leases.get(name)
            if (version_of(watched) if watched is not None else None) not in overtaken:
                del self._written[name]
            elif answer is None:
                leases.pop(name, None)
            else:
                leases[name] = answer
        return leases


def _state(member: MemberLease | None, left: float) -> MemberState:
    if member is not None and member.ended:
        return MemberState.ENDED
    if left <= 0:
        return MemberState.EXPIRED
    return MemberState.MISSING if member is None else MemberState.LIVE
