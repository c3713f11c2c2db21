"""Shards shared out among members by Leases: one a member, which it renews, and one a shard, which names its holder.

Promises: at no time are two members owners of one shard. A member owns a shard after its claim was answered, while its
own lease lives by its own clock (``elector``); it gives a shard up only after the work for it has ended. Another's
shard is free once that member's lease is *ended*, by a compare-and-swap of those who saw it unchanged for its whole
duration on their own clocks, or by itself. So a view that lags can make nobody lose what it has: the write conflicts.
A member that is gone is followed within its lease's duration and a retry period. Requests are as many as members
renew, and one or two more for each move; what the others wrote comes by a watch.
Leaves to others: the work (``ShardHost``), following the leases (``LeaseView``; a ``Reflector`` is one), and fencing
what a paused process may still send: ``ApiClient.may_send``, writes that are compare-and-swap, and ``still_owns``.
Source: ADR 0027; client-go tools/leaderelection for the times.
"""

from __future__ import annotations

import asyncio
import logging
import random as random_module
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final, NoReturn, Protocol

from nodeattest_kube.elector import LeaseClient, LeaseElector, LeaseTerm, LostLease, read_lease, term_of
from nodeattest_kube.errors import ApiError, NotFound, Unreachable
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_kube.next_read import NextRead
from nodeattest_kube.shard_leases import MemberLease, ResourceVersion, ShardGroup, ShardLease
from nodeattest_kube.shard_placement import MemberState, PlacementDecision, Snapshot, decide, owners
from nodeattest_kube.shard_view import LeaseView, ObservedLeases, ShardView

__all__ = ["ShardClient", "ShardElector", "ShardHost"]

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 8
"""How many leases are written at the same time: a dead member's shards come by the hundred."""
_JITTER: Final = 0.2


class ShardClient(LeaseClient, Protocol):
    """What is needed of ``ApiClient``."""

    async def delete(self, path: str, *, uid: str | None = None, resource_version: str | None = None) -> None:
        """Delete an object if it still is as it was."""
        ...


class ShardHost(Protocol):
    """Who does the work for shards."""

    def wanted(self) -> frozenset[str]:
        """Name the shards that there are."""
        ...

    async def acquire(self, shard: str) -> None:
        """Prepare for a shard that is ours from now on; it is owned once this returns. Cancelled when it is lost."""
        ...

    def on_acquired(self, shard: str) -> None:
        """Hear that a shard is owned. Must not block."""
        ...

    async def release(self, shard: str) -> None:
        """End all work for a shard; when this returns somebody else may begin. May be called for one never begun."""
        ...


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class _Claim:
    """A shard's lease as we wrote it, and what reads it again."""

    term: LeaseTerm
    next_read: NextRead[JsonObject | None]


class ShardElector:
    """One member; ``identity`` must differ from every other member's, and from our own of before a restart."""

    def __init__(
        self,
        client: ShardClient,
        view: LeaseView,
        host: ShardHost,
        *,
        group: ShardGroup,
        identity: str,
        lease_duration: float = 15.0,
        renew_deadline: float = 10.0,
        retry_period: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = _utc_now,
        random: Callable[[], float] = random_module.random,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """``clock`` decides; ``now`` and ``annotations`` of the member's own lease are written for people to read."""
        self._client, self._leases, self._host, self._group, self._identity = client, view, host, group, identity
        self._duration, self._deadline, self._period = lease_duration, renew_deadline, retry_period
        self._clock, self._now, self._random = clock, now, random
        self._view = ShardView(view, group, duration=lease_duration, clock=clock)
        self._member = LeaseElector(
            client,
            namespace=group.namespace,
            name=group.name_of_member(identity),
            identity=identity,
            lease_duration=lease_duration,
            renew_deadline=renew_deadline,
            retry_period=retry_period,
            clock=clock,
            now=now,
            random=random,
            labels=group.labels,
            annotations={**(annotations or {}), **group.member_annotations(identity)},
        )
        self._move_error: ApiError | None = None
        self._held: set[str] = set()
        """Shards whose leases are ours: a claim was answered, and we have not begun to give it up."""
        self._claims: dict[str, _Claim] = {}
        """How we came to those."""
        self._owned: set[str] = set()
        """Those of them for which the host is prepared."""
        self._begun: dict[str, asyncio.Task[None]] = {}
        self._moves: dict[str, asyncio.Task[None]] = {}
        """By lease's name: what is being done about it."""
        self._pauses: dict[str, float] = {}
        """By lease's name: until when nothing is tried about it, after it went wrong."""
        self._bug: BaseException | None = None
        self._next_change = float("inf")
        """Seconds from the last look until somebody may count as silent."""
        self._wake = asyncio.Event()
        self._writes = asyncio.Semaphore(_AT_ONCE)
        self._placed: tuple[frozenset[str], frozenset[str], dict[str, str]] = (frozenset(), frozenset(), {})

    @property
    def is_member(self) -> bool:
        """Whether we may act at all at this instant; turns False by time alone, and never True again."""
        return self._member.is_leader

    @property
    def last_error(self) -> ApiError | None:
        """What keeps us from taking part; None while all is well."""
        return self._member.last_error or self._move_error

    @property
    def held(self) -> frozenset[str]:
        """The shards whose leases are ours."""
        return frozenset(self._held) if self.is_member else frozenset()

    def owns(self, shard: str) -> bool:
        """Return whether a shard is ours at this instant, and the host prepared for it."""
        return shard in self._owned and self.is_member

    async def still_owns(self, shard: str) -> bool:
        """Return whether nobody else has owned a shard since we claimed it, by a read that begins now; raises ApiError.

        As ``LeaseElector.still_leads``: who owns it next finds all that was written before this call.
        """
        claim = self._claims.get(shard)
        if claim is None:
            return False
        term = term_of(await claim.next_read.read())
        return term == claim.term and self._claims.get(shard) is claim and self.owns(shard)

    def wake(self) -> None:
        """Look again soon: leases changed, or the shards that there are."""
        self._wake.set()

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Take part until ``work`` ends; raise ``LostLease`` when we may not act any more.

        ``work`` is cancelled, and awaited, before anybody else is told that our shards are free.
        """
        await self._member.run(partial(self._take_part, work))

    async def _take_part(self, work: Callable[[], Awaitable[None]]) -> None:
        working = asyncio.ensure_future(work())
        balancing = asyncio.create_task(self._balance())
        try:
            await asyncio.wait({working, balancing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._owned.clear()
            tasks = [working, balancing, *self._begun.values(), *self._moves.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._held.clear()
            self._claims.clear()
        for task in (balancing, working):
            if not task.cancelled():
                task.result()

    async def _balance(self) -> NoReturn:
        """Look, decide and act until cancelled; raise what a move must not hide."""
        while True:
            self._wake.clear()
            if self._leases.synced:
                self._act(*self._look())
            pause = min(self._period, self._next_change) * (1 + _JITTER * self._random())
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            if self._bug is not None:
                raise self._bug

    def _look(self) -> tuple[ObservedLeases, Snapshot]:
        seen = self._view.observe()
        if seen.states.get(self._identity) is MemberState.ENDED:
            raise LostLease(f"{self._group.name_of_member(self._identity)} was ended by another member")
        self._next_change = max(seen.next_change, 0.0)
        states = {**seen.states, self._identity: MemberState.LIVE}
        holders = {shard.shard: shard.holder for shard in seen.shards.values()}
        held = frozenset(self._held)
        return seen, Snapshot(me=self._identity, wanted=self._host.wanted(), members=states, holders=holders, held=held)

    def _act(self, seen: ObservedLeases, snapshot: Snapshot) -> None:
        """Start what is to be done and is not being done yet."""
        decision = decide(snapshot, self._owners(snapshot))
        for shard in decision.lost:
            self._start(self._group.name_of_shard(shard), self._lose(shard))
        for shard in decision.release:
            self._start(self._group.name_of_shard(shard), self._give_up(shard, seen, keep=shard in snapshot.wanted))
        for shard in decision.claim:
            self._start(self._group.name_of_shard(shard), self._claim(shard, seen.shards.get(shard)))
        self._tidy(decision, seen)

    def _owners(self, snapshot: Snapshot) -> dict[str, str]:
        live = frozenset(name for name, state in snapshot.members.items() if state is MemberState.LIVE)
        if self._placed[:2] != (snapshot.wanted, live):
            self._placed = (snapshot.wanted, live, owners(snapshot.wanted, live))
        return self._placed[2]

    def _tidy(self, decision: PlacementDecision, seen: ObservedLeases) -> None:
        """End those who are silent, and remove what nobody needs any more."""
        for identity in decision.end:
            name = self._group.name_of_member(identity)
            self._start(name, self._end_member(name, identity, seen.members.get(identity)))
        for shard in decision.discard:
            name = self._group.name_of_shard(shard)
            self._start(name, self._delete(name, seen.shards[shard].version))
        for identity in decision.delete:
            name = self._group.name_of_member(identity)
            self._start(name, self._delete(name, seen.members[identity].version))

    # Moves

    def _start(self, name: str, move: Coroutine[object, object, None]) -> None:
        """Do something about one lease, unless something is being done or went wrong a moment ago."""
        if name in self._moves or self._clock() < self._pauses.get(name, float("-inf")):
            move.close()
            return
        self._pauses.pop(name, None)
        self._moves[name] = asyncio.create_task(self._move(name, move))

    async def _move(self, name: str, move: Coroutine[object, object, None]) -> None:
        try:
            await move
        except (ApiError, TimeoutError) as error:
            self._move_error = error if isinstance(error, ApiError) else Unreachable(f"{name}: no answer in time")
            self._pauses[name] = self._clock() + self._period * (1 + _JITTER * self._random())
        except Exception as bug:  # noqa: BLE001 - raised in _balance, which ends the process in order
            self._bug = bug
            self._wake.set()
        else:
            self._move_error = None
            self._wake.set()
        finally:
            del self._moves[name]

    async def _claim(self, shard: str, lease: ShardLease | None) -> None:
        """Take a free shard; it is ours once the answer is there."""
        name = self._group.name_of_shard(shard)
        body = self._group.held_shard(shard, lease.found if lease else None, self._identity, self._now())
        claimed = await self._write(name, lease.version if lease else None, body)
        if self.is_member:
            self._held.add(shard)
            path = self._group.path(name)
            next_read = NextRead(lambda: read_lease(self._client, path, self._deadline / 2))
            self._claims[shard] = _Claim(term_of(claimed), next_read)
            self._begun[shard] = asyncio.create_task(self._begin(shard))

    async def _begin(self, shard: str) -> None:
        while True:
            try:
                await self._host.acquire(shard)
            except Exception:  # noqa: BLE001 - one shard's bug must not stop the others
                _log.exception("a bug keeps a shard from being begun; trying again")
                await asyncio.sleep(self._period)
            else:
                self._owned.add(shard)
                self._host.on_acquired(shard)
                return

    async def _give_up(self, shard: str, seen: ObservedLeases, *, keep: bool) -> None:
        """Stop, then tell that the shard is free; ``keep`` its lease for the next owner."""
        await self._stop(shard)
        name, lease = self._group.name_of_shard(shard), seen.shards[shard]
        if keep:
            await self._write(name, lease.version, self._group.held_shard(shard, lease.found, "", self._now()))
        else:
            await self._delete(name, lease.version)

    async def _lose(self, shard: str) -> None:
        _log.warning("the lease of a shard was changed by others; stopping: %s", shard)
        await self._stop(shard)

    async def _stop(self, shard: str) -> None:
        """End all work for a shard; work that does not end in time is ended with the process."""
        begun = self._begun.pop(shard, None)
        self._owned.discard(shard)
        try:
            async with asyncio.timeout(self._duration):
                if begun is not None:
                    begun.cancel()
                    await asyncio.gather(begun, return_exceptions=True)
                    self._owned.discard(shard)  # a host may have swallowed the cancellation
                await self._host.release(shard)
        except TimeoutError:
            raise LostLease(f"the work for {shard} did not end within {self._duration:g} s") from None
        self._held.discard(shard)
        self._claims.pop(shard, None)

    async def _end_member(self, name: str, identity: str, member: MemberLease | None) -> None:
        """Make sure that a silent member's lease can never be renewed; a conflict says that it is not silent."""
        body = self._group.ended_member(identity, member.found if member else None)
        await self._write(name, member.version if member else None, body)
        _log.info("a member was silent for its lease's duration and counts as ended: %s", identity)

    async def _write(self, name: str, before: ResourceVersion | None, body: JsonObject) -> JsonObject:
        async with self._writes, asyncio.timeout(self._deadline / 2):
            if before is None:
                answer = await self._client.create(self._group.collection, body)
            else:
                answer = await self._client.replace(self._group.path(name), body)
        self._view.wrote(name, before, answer)
        return answer

    async def _delete(self, name: str, before: ResourceVersion) -> None:
        uid, version = before
        async with self._writes, asyncio.timeout(self._deadline / 2):
            with suppress(NotFound):
                await self._client.delete(self._group.path(name), uid=uid, resource_version=version)
        self._view.wrote(name, before, None)
