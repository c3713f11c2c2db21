"""Members that share shards: balance, moves, and never two owners whatever fails."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from leaseserver import LaggingView, LeaseServer, Wire
from virtual import advance, now, run_virtually

from nodeattest_kube.elector import LostLease
from nodeattest_kube.jsontypes import dig, dig_text
from nodeattest_kube.shard_elector import ShardElector
from nodeattest_kube.shard_leases import ShardGroup
from nodeattest_kube.shard_placement import most_each

EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
GROUP = ShardGroup("nodeattest-system", "controller")
DURATION, DEADLINE, PERIOD = 15.0, 10.0, 2.0


class Watch:
    """Sees to it that no shard is worked on by two; every member of a test tells it."""

    def __init__(self) -> None:
        self.working: dict[str, str] = {}
        self.moves: list[tuple[float, str, str]] = []

    def begin(self, shard: str, who: str) -> None:
        self.moves.append((now(), shard, who))


class Replica:
    """A member as a process: it begins anew, under a new identity, when it may not go on."""

    def __init__(self, server: LeaseServer, name: str, wanted: Callable[[], frozenset[str]]) -> None:
        self.server, self.name, self._wanted = server, name, wanted
        self.skew, self.rate = 0.0, 1.0
        self.wire = Wire(server, name)
        self.view = LaggingView(server)
        self.lives = 0
        self.end_takes = 0.1
        self.working: set[str] = set()
        """What it works on: from the beginning of ``begin`` to the end of ``end``, or of the process."""
        self.shards = self.renew()
        server.watchers.append(self._told)

    def _told(self) -> None:
        asyncio.get_running_loop().call_later(self.view.lag, self._wake)

    def _wake(self) -> None:
        self.shards.wake()  # of the life that it is by then

    def renew(self) -> ShardElector:
        self.lives += 1
        self.working = set()
        return ShardElector(
            self.wire,
            self.view,
            self,
            group=GROUP,
            identity=f"{self.name}-{self.lives}",
            lease_duration=DURATION,
            renew_deadline=DEADLINE,
            retry_period=PERIOD,
            clock=lambda: now() * self.rate + 1e6 + self.skew,
            now=lambda: EPOCH + dt.timedelta(seconds=now() + self.skew),
            random=lambda: 0.5,
        )

    def wanted(self) -> frozenset[str]:
        return self._wanted()

    async def acquire(self, shard: str) -> None:
        self.working.add(shard)
        await asyncio.sleep(0.05)

    def on_acquired(self, shard: str) -> None:
        assert self.shards.owns(shard)

    async def release(self, shard: str) -> None:
        await advance(self.end_takes)
        self.working.discard(shard)

    async def _work(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await advance(0.1)
            self.working.clear()

    async def once(self) -> None:
        await self.shards.run(self._work)

    async def live(self) -> None:
        while True:
            try:
                await self.once()
            except LostLease:
                self.shards = self.renew()

    @property
    def owned(self) -> set[str]:
        return {shard for shard in self._wanted() if self.shards.owns(shard)}

    @property
    def at_work(self) -> set[str]:
        """What it would still write for: work that its own clock lets it do."""
        return self.working if self.shards.is_member else set()


def crash(*tasks: asyncio.Task[None]) -> None:
    """End a task as kill -9 does: whatever it does at its end reaches nobody."""
    for task in tasks:
        task.cancel()


async def stop(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def check_no_two(replicas: list[Replica]) -> None:
    owners = Counter(shard for replica in replicas for shard in replica.shards.held)
    assert all(count == 1 for count in owners.values()), (now(), owners)
    workers = Counter(shard for replica in replicas for shard in replica.at_work)
    assert all(count == 1 for count in workers.values()), (now(), workers)


def complete(replicas: list[Replica], wanted: frozenset[str]) -> bool:
    return frozenset[str]().union(*(replica.owned for replica in replicas)) == wanted


def clusters(count: int) -> frozenset[str]:
    return frozenset(f"ns/c{number}" for number in range(count)) | {"management"}


async def watch_over(replicas: list[Replica], seconds: float, *, step: float = 0.1) -> None:
    for _ in range(round(seconds / step)):
        await advance(step)
        check_no_two(replicas)


async def until(condition: Callable[[], bool], replicas: list[Replica], *, seconds: float) -> float:
    begun = now()
    while not condition():
        assert now() < begun + seconds, f"not within {seconds} s"
        await asyncio.sleep(0.05)
        check_no_two(replicas)
    return now() - begun


def members(server: LeaseServer, count: int, wanted: frozenset[str]) -> list[Replica]:
    return [Replica(server, name, lambda: wanted) for name in "abcdefgh"[:count]]


def test_three_members_share_all_shards_evenly_and_each_has_one_owner() -> None:
    async def main() -> None:
        wanted = clusters(20)
        replicas = members(LeaseServer(), 3, wanted)
        tasks = [asyncio.create_task(replica.live()) for replica in replicas]
        await until(lambda: complete(replicas, wanted), replicas, seconds=20)
        await watch_over(replicas, 30)
        assert complete(replicas, wanted)
        assert max(len(replica.owned) for replica in replicas) <= most_each(21, 3)
        await stop(*tasks)

    run_virtually(main())


def test_a_member_that_is_killed_is_followed_within_its_lease_and_a_period() -> None:
    async def main() -> None:
        wanted = clusters(12)
        replicas = members(LeaseServer(), 3, wanted)
        tasks = [asyncio.create_task(replica.live()) for replica in replicas]
        await until(lambda: complete(replicas, wanted), replicas, seconds=20)
        await watch_over(replicas, 21.3)
        dead = replicas[0]
        lost = dead.owned
        assert lost
        dead.wire.refuses = True  # nothing that it does at its end reaches anybody
        crash(tasks[0])
        rest = replicas[1:]
        took = await until(lambda: complete(rest, wanted), rest, seconds=DURATION + PERIOD)
        assert took > DURATION - 2 * PERIOD
        await stop(*tasks)

    run_virtually(main())


def test_a_member_that_ends_in_order_is_followed_at_once() -> None:
    async def main() -> None:
        wanted = clusters(12)
        replicas = members(LeaseServer(), 2, wanted)
        tasks = [asyncio.create_task(replica.live()) for replica in replicas]
        await until(lambda: complete(replicas, wanted), replicas, seconds=20)
        tasks[0].cancel()
        took = await until(lambda: complete(replicas[1:], wanted), replicas, seconds=5)
        assert took < 1
        await stop(*tasks)

    run_virtually(main())


def test_a_new_member_gets_its_share_after_the_old_owner_stopped() -> None:
    async def main() -> None:
        wanted = clusters(12)
        replicas = members(LeaseServer(), 3, wanted)
        tasks = [asyncio.create_task(replica.live()) for replica in replicas[:2]]
        await until(lambda: complete(replicas, wanted), replicas, seconds=20)
        before = {shard: replica.name for replica in replicas for shard in replica.owned}
        replicas[0].end_takes = 3.0
        tasks.append(asyncio.create_task(replicas[2].live()))
        await until(lambda: len(replicas[2].owned) >= 3 and complete(replicas, wanted), replicas, seconds=20)
        after = {shard: replica.name for replica in replicas for shard in replica.owned}
        assert max(Counter(after.values()).values()) <= most_each(13, 3)
        stayed = sum(before[shard] == after[shard] for shard in wanted)
        assert stayed >= 6
        await stop(*tasks)

    run_virtually(main())


def test_requests_do_not_grow_with_the_shards() -> None:
    async def main() -> None:
        counts: list[int] = []
        for count in (3, 60):
            server = LeaseServer()
            wanted = clusters(count)
            replicas = members(server, 3, wanted)
            tasks = [asyncio.create_task(replica.live()) for replica in replicas]
            await until(lambda: complete(replicas, wanted), replicas, seconds=30)
            await advance(10)
            server.calls.clear()
            await advance(100)
            counts.append(len(server.calls))
            await stop(*tasks)
        assert abs(counts[0] - counts[1]) <= 3  # one a member, at the edges of the time
        assert counts[0] <= 3 * 100 / PERIOD + 3

    run_virtually(main())


def test_a_member_without_server_stops_before_its_shards_are_anybody_elses() -> None:
    async def main() -> None:
        wanted = clusters(6)
        replicas = members(LeaseServer(), 2, wanted)
        tasks = [asyncio.create_task(replica.once()) for replica in replicas]
        await until(lambda: complete(replicas, wanted), replicas, seconds=20)
        replicas[0].wire.held.clear()
        cut = now()
        with pytest.raises(LostLease):
            await tasks[0]
        assert DEADLINE - PERIOD <= now() - cut <= DEADLINE + 0.5
        assert not replicas[0].working
        assert set(replicas[1].owned) < wanted
        await until(lambda: complete(replicas[1:], wanted), replicas, seconds=DURATION)
        await stop(*tasks)

    run_virtually(main())


def test_a_view_that_stands_still_lets_nobody_take_from_the_living() -> None:
    async def main() -> None:
        wanted = clusters(8)
        replicas = members(LeaseServer(), 2, wanted)
        tasks = [asyncio.create_task(replica.once()) for replica in replicas]
        await until(lambda: complete(replicas, wanted), replicas, seconds=20)
        replicas[1].view.lag = 100.0
        before = replicas[0].owned
        await watch_over(replicas, 60)
        assert replicas[0].owned == before
        assert not tasks[0].done()
        await stop(*tasks)

    run_virtually(main())


@pytest.mark.parametrize("way", ["deleted", "ended"])
def test_a_member_whose_lease_is_taken_from_it_stops_at_its_next_renewal(way: str) -> None:
    async def main() -> None:
        server = LeaseServer()
        [replica] = members(server, 1, clusters(2))
        task = asyncio.create_task(replica.once())
        await until(lambda: complete([replica], clusters(2)), [replica], seconds=20)
        name = GROUP.name_of_member("a-1")
        server.write(name, None if way == "deleted" else GROUP.ended_member("a-1", server.leases[name]))
        with pytest.raises(LostLease):
            await task
        assert not replica.working

    run_virtually(main())


def test_a_shard_is_still_owned_until_its_lease_says_otherwise_whatever_the_clock_says() -> None:
    async def main() -> None:
        server, wanted = LeaseServer(), frozenset({"ns/c"})
        asleep, other = members(server, 2, wanted)
        task = asyncio.create_task(asleep.live())
        await until(lambda: complete([asleep], wanted), [asleep], seconds=9)
        assert await asleep.shards.still_owns("ns/c")
        assert not await asleep.shards.still_owns("ns/never-claimed")
        asleep.skew, asleep.rate = now(), 0.0  # suspended: its clock stands still, nothing arrives or leaves
        asleep.wire.held.clear()
        asleep.view.lag = 1e9
        follower = asyncio.create_task(other.live())
        while not other.shards.owns("ns/c"):
            await advance(0.1)
        assert asleep.shards.owns("ns/c")  # by its clock
        asking = asyncio.create_task(asleep.shards.still_owns("ns/c"))
        await advance(0.1)
        asleep.wire.held.set()
        assert not await asking
        assert await other.shards.still_owns("ns/c")
        crash(task, follower)

    run_virtually(main())


def test_all_who_ask_whether_a_shard_is_still_owned_share_a_read() -> None:
    async def main() -> None:
        server, wanted = LeaseServer(), frozenset({"ns/c"})
        [one] = members(server, 1, wanted)
        task = asyncio.create_task(one.live())
        await until(lambda: complete([one], wanted), [one], seconds=9)
        before = len(server.calls)
        assert all(await asyncio.gather(*(one.shards.still_owns("ns/c") for _ in range(100))))
        reads = [call for call in server.calls[before:] if call[1:] == ("get", GROUP.name_of_shard("ns/c"))]
        assert len(reads) == 1
        crash(task)

    run_virtually(main())


def test_a_claim_whose_answer_was_lost_is_made_again_before_it_counts() -> None:
    async def main() -> None:
        server = LeaseServer()
        [replica] = members(server, 1, clusters(1))
        task = asyncio.create_task(replica.once())
        await asyncio.sleep(0.045)
        replica.wire.loses_answers = True
        await advance(3)
        holders = [dig_text(lease, "spec", "holderIdentity") for lease in server.leases.values()]
        assert holders.count("a-1") == 3
        assert not replica.owned
        replica.wire.loses_answers = False
        await until(lambda: complete([replica], clusters(1)), [replica], seconds=10)
        await stop(task)

    run_virtually(main())


def test_a_shard_lease_that_somebody_tampers_with_ends_the_work_for_it() -> None:
    async def main() -> None:
        server = LeaseServer()
        [replica] = members(server, 1, clusters(1))
        task = asyncio.create_task(replica.once())
        await until(lambda: complete([replica], clusters(1)), [replica], seconds=20)
        name = GROUP.name_of_shard("ns/c0")
        server.write(name, GROUP.held_shard("ns/c0", server.leases[name], "somebody", EPOCH))
        await until(lambda: replica.working == {"management"}, [replica], seconds=1)
        assert replica.owned == {"management"}
        # Whoever it is has no lease of its own: it is waited for, ended, and followed.
        took = await until(lambda: complete([replica], clusters(1)), [replica], seconds=DURATION + 2 * PERIOD)
        assert took >= DURATION - 1
        await stop(task)

    run_virtually(main())


def test_leases_of_shards_that_are_gone_and_of_members_that_ended_are_removed() -> None:
    async def main() -> None:
        server = LeaseServer()
        wanted = clusters(9)
        replicas = [Replica(server, name, lambda: wanted) for name in "ab"]
        tasks = [asyncio.create_task(replica.live()) for replica in replicas]
        await until(lambda: complete(replicas, wanted), replicas, seconds=20)
        replicas[0].wire.refuses = True
        crash(tasks[0])
        gone = {shard for shard in replicas[0].shards.held if shard != "management"}
        assert gone
        wanted = frozenset({"management", *list(replicas[1].owned)[:1]})
        await advance(DURATION + 3 * PERIOD)
        identities = {dig_text(lease, "spec", "holderIdentity") for lease in server.leases.values()}
        assert identities == {"b-1"}
        assert len(server.leases) == 1 + len(wanted)
        await stop(*tasks)

    run_virtually(main())


def test_work_that_does_not_end_ends_the_process_and_keeps_the_shard_until_then() -> None:
    async def main() -> None:
        server = LeaseServer()
        wanted = clusters(8)
        replicas = [Replica(server, name, lambda: wanted) for name in "ab"]
        replicas[0].end_takes = 1000.0
        first = asyncio.create_task(replicas[0].once())
        await until(lambda: complete(replicas[:1], wanted), replicas, seconds=20)
        second = asyncio.create_task(replicas[1].once())
        await advance(DURATION - 1)
        assert not replicas[1].owned
        with pytest.raises(LostLease, match="did not end"):
            await first
        await until(lambda: complete(replicas[1:], wanted), replicas, seconds=5)
        await stop(second)

    run_virtually(main())


def test_a_bug_in_the_work_comes_out_and_others_follow_at_once() -> None:
    async def main() -> None:
        server = LeaseServer()
        [replica] = members(server, 1, clusters(1))

        async def broken() -> None:
            await advance(3)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await replica.shards.run(broken)
        lease = server.leases[GROUP.name_of_member("a-1")]
        assert dig(lease, "spec", "holderIdentity") == ""

    run_virtually(main())


FAULTS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["hang", "refuse", "lose", "lag", "kill", "stop", "slow end", "partition", "fewer"]),
        st.sampled_from([0.5, 3.0, 8.0, 11.0, 14.0, 16.0, 25.0]),
        st.sampled_from([0.3, 2.0, 9.0, 20.0]),
    ),
    max_size=9,
)


@given(
    faults=FAULTS,
    clocks=st.tuples(*[st.tuples(st.sampled_from([-3600.0, 0.0, 50.0]), st.sampled_from([0.92, 1.0, 1.08]))] * 3),
)
@settings(max_examples=60)
def test_at_no_time_has_a_shard_two_owners_through_random_trouble(
    faults: list[tuple[int, str, float, float]], clocks: tuple[tuple[float, float], ...]
) -> None:
    async def main() -> None:
        server = LeaseServer()
        wanted = clusters(6)
        replicas = [Replica(server, name, lambda: wanted) for name in "abc"]
        for replica, (skew, rate) in zip(replicas, clocks, strict=True):
            replica.skew, replica.rate = skew, rate
        tasks = [asyncio.create_task(replica.live()) for replica in replicas]
        mending: list[asyncio.Task[None]] = []

        async def mend(repair: Callable[[], Awaitable[None] | None], after: float) -> None:
            await advance(after)
            result = repair()
            if result is not None:
                await result

        for who, kind, length, pause in faults:
            replica, task = replicas[who], tasks[who]
            repair = make_trouble(replica, kind)
            if kind in {"kill", "stop"}:
                if kind == "kill":
                    replica.wire.refuses = True
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                replica.wire.refuses = False
                replica.shards = replica.renew()
                tasks[who] = asyncio.create_task(replica.live())
            if kind == "fewer":
                wanted = clusters(2) if len(wanted) > 3 else clusters(6)
            mending.append(asyncio.create_task(mend(repair, length)))
            await watch_over(replicas, pause, step=0.1)
        await watch_over(replicas, 26)
        await asyncio.gather(*mending)
        await until(lambda: complete(replicas, wanted), replicas, seconds=3 * DURATION)
        await stop(*tasks)

    run_virtually(main())


def make_trouble(replica: Replica, kind: str) -> Callable[[], None]:
    """Break something, and return what mends it."""
    wire, view = replica.wire, replica.view

    def well() -> None:
        wire.refuses = wire.loses_answers = False
        view.lag, replica.end_takes = 0.05, 0.1
        wire.held.set()

    if kind in {"hang", "partition"}:
        wire.held.clear()
    view.lag = {"partition": 30.0, "lag": 12.0}.get(kind, view.lag)
    wire.refuses = wire.refuses or kind == "refuse"
    wire.loses_answers = wire.loses_answers or kind == "lose"
    replica.end_takes = 4.0 if kind == "slow end" else replica.end_takes
    return well
