"""At most one candidate leads, whatever servers and clocks do, and a lease that was another's meanwhile is lost."""

from __future__ import annotations

import asyncio
import datetime as dt
from contextlib import suppress
from itertools import pairwise
from typing import Final

import pytest
from fake_api import FakeApi
from virtual import advance, now, spend, virtually

from nodeattest_kube.elector import LeaseElector, LostLease
from nodeattest_kube.errors import ApiError, Unreachable
from nodeattest_parsing.objects import dig, mapping, text
from nodeattest_parsing.values import JsonObject

EPOCH: Final = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
PATH: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/nodeattest"


class Leases(FakeApi):
    """An API server that may be away, and answers late or never; ``history`` has who held the lease, and since when."""

    def __init__(self) -> None:
        super().__init__()
        self.on_call = self._arrive
        self.trouble: ApiError | None = None
        self.hung = self.loses_answers = False
        self.answer_delay = 0.0
        self.history: list[tuple[float, str]] = []

    async def _arrive(self, _method: str, _path: str) -> None:
        await asyncio.sleep(0.01)
        if self.hung:
            await advance(1000)
        if self.trouble is not None:
            raise self.trouble

    async def create(self, path: str, body: JsonObject) -> JsonObject:
        return await self._stored(await super().create(path, body))

    async def replace(self, path: str, body: JsonObject) -> JsonObject:
        return await self._stored(await super().replace(path, body))

    async def _stored(self, lease: JsonObject) -> JsonObject:
        holder = text(lease, "spec", "holderIdentity")
        if not self.history or self.history[-1][1] != holder:
            self.history.append((now(), holder))
        await advance(self.answer_delay)
        if self.loses_answers:
            raise Unreachable("reset")
        return lease

    @property
    def lease(self) -> JsonObject:
        return self.objects[PATH]

    @property
    def version(self) -> str:
        return text(self.objects.get(PATH), "metadata", "resourceVersion")

    async def await_write(self) -> None:
        """Wait until the lease is written again."""
        before = self.version
        while self.version == before:
            await asyncio.sleep(0.01)


class Candidate:
    """An elector, and when it led."""

    def __init__(self, leases: Leases, identity: str, *, skew: float = 0.0) -> None:
        self.terms: list[tuple[float, float]] = []
        self.elector = LeaseElector(
            leases,
            namespace="kube-system",
            name="nodeattest",
            identity=identity,
            clock=lambda: now() + 1e6 + skew,
            now=lambda: EPOCH + dt.timedelta(seconds=now() + skew),
            random=lambda: 0.5,
            annotations={"version": "2"},
        )

    async def lead(self) -> None:
        begun = now()
        assert self.elector.is_leader
        try:
            await advance(10_000)
        finally:
            await advance(0.5)  # Cleaning up takes its time.
            self.terms.append((begun, now()))

    def start(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.elector.run(self.lead))


@pytest.fixture
def leases() -> Leases:
    return Leases()


@pytest.fixture
def candidate(leases: Leases) -> Candidate:
    return Candidate(leases, "one")


async def stop(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@virtually
async def test_the_first_leads_the_second_waits_and_follows_once_the_first_has_stopped_and_released(
    leases: Leases,
) -> None:
    first, second = Candidate(leases, "one"), Candidate(leases, "two", skew=-7200)
    one = first.start()
    await advance(0.1)
    two = second.start()
    await advance(299.9)
    assert (first.elector.is_leader, second.elector.is_leader, second.elector.leader) == (True, False, "one")
    renewed = text(leases.lease, "spec", "renewTime")
    assert renewed > "2026-01-01T00:04:55"
    assert leases.lease["spec"] == {
        "holderIdentity": "one",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T00:00:00.010000Z",
        "renewTime": renewed,
        "leaseTransitions": 0,
    }
    await stop(one)
    await advance(5)
    assert second.elector.is_leader
    assert [holder for _at, holder in leases.history] == ["one", "", "two"]
    assert first.terms[0][1] <= leases.history[1][0] < 301, "released after the work has ended"
    assert dig(leases.lease, "spec", "leaseTransitions") == 1
    await stop(two)


@pytest.mark.parametrize("skew", [-3600.0, 0.0, 3600.0])
@virtually
async def test_a_crashed_leader_is_followed_after_its_lease_and_not_before(skew: float, leases: Leases) -> None:
    spec: JsonObject = {"holderIdentity": "dead", "leaseDurationSeconds": 20, "leaseTransitions": 4}
    theirs: JsonObject = {"version": "1", "theirs": "kept"}
    leases.put(PATH, {"metadata": {"annotations": theirs}, "spec": {**spec, "renewTime": "1999"}})
    task = Candidate(leases, "next", skew=skew).start()
    await advance(60)
    taken, holder = leases.history[0]
    assert holder == "next"
    # The wall clocks and the stale renewTime play no part: twenty seconds from the first sight of it.
    assert 20 <= taken <= 20 + 2 * 2.2
    assert dig(leases.lease, "spec", "leaseTransitions") == 5
    assert dig(leases.lease, "metadata", "annotations") == {"version": "2", "theirs": "kept"}
    await stop(task)


@pytest.mark.parametrize("way", ["refused", "hung"])
@virtually
async def test_a_leader_without_server_stops_before_its_lease_ends(
    way: str, leases: Leases, candidate: Candidate
) -> None:
    task = candidate.start()
    await advance(21)
    leases.hung, leases.trouble = way == "hung", Unreachable("down") if way == "refused" else None
    with pytest.raises(LostLease):
        await task
    begun, ended = candidate.terms[0]
    assert begun < 1
    assert 21 + 8 <= ended <= 21 + 10 + 0.6
    assert not candidate.elector.is_leader
    assert [holder for _at, holder in leases.history] == ["one"]  # Not released: it is not ours to give.


@virtually
async def test_the_deadline_counts_from_the_beginning_of_the_last_renewal(leases: Leases, candidate: Candidate) -> None:
    task = candidate.start()
    await advance(1)
    leases.answer_delay = 4.0
    await leases.await_write()
    stored = now()  # The server may count the lease's life from here on; we must not count from the answer.
    await advance(4.1)
    assert candidate.elector.is_leader
    leases.hung = True
    with pytest.raises(LostLease):
        await task
    assert candidate.terms[0][1] <= stored + 10 + 0.6


@virtually
async def test_a_renewal_whose_answer_was_lost_is_found_out(leases: Leases, candidate: Candidate) -> None:
    task = candidate.start()
    await advance(9)
    leases.loses_answers = True
    await advance(5)
    leases.loses_answers = False
    await advance(30)
    assert candidate.elector.is_leader
    assert dig(leases.lease, "spec", "leaseTransitions") == 0
    await stop(task)


@virtually
async def test_a_stop_amid_a_renewal_releases_all_the_same(leases: Leases, candidate: Candidate) -> None:
    task = candidate.start()
    await advance(1)
    leases.answer_delay = 0.5
    await leases.await_write()
    leases.answer_delay = 0.0
    await stop(task)
    assert leases.history[-1][1] == ""


@virtually
async def test_work_that_swallows_its_cancellation_still_loses_the_lease(leases: Leases, candidate: Candidate) -> None:
    async def stubborn() -> None:
        with suppress(asyncio.CancelledError):
            await advance(1000)

    task = asyncio.create_task(candidate.elector.run(stubborn))
    await advance(5)
    leases.trouble = Unreachable("down")
    with pytest.raises(LostLease):
        await task


@virtually
async def test_leadership_ends_by_time_alone_while_the_loop_stands_still(candidate: Candidate) -> None:
    async def lead() -> None:
        assert candidate.elector.is_leader
        spend(10.0)  # No await: no renewal could run, nor any cancellation arrive.
        assert not candidate.elector.is_leader

    await candidate.elector.run(lead)


@virtually
async def test_at_no_time_do_two_lead_through_random_outages(leases: Leases) -> None:
    candidates = [Candidate(leases, name, skew=skew) for name, skew in (("a", 0.0), ("b", 500.0), ("c", -500.0))]

    async def live(candidate: Candidate) -> None:
        while True:
            with suppress(LostLease):
                await candidate.elector.run(candidate.lead)

    tasks = [asyncio.create_task(live(candidate)) for candidate in candidates]
    for length in (3, 9, 30, 1, 14, 50, 11, 25):
        await advance(40)
        leases.trouble = Unreachable("down") if length % 2 else None
        leases.hung = length % 2 == 0
        for _ in range(length * 4):
            await advance(0.25)
            assert sum(candidate.elector.is_leader for candidate in candidates) <= 1
        leases.trouble, leases.hung = None, False
    await advance(40)
    assert sum(candidate.elector.is_leader for candidate in candidates) == 1
    await stop(*tasks)
    terms = sorted(term for candidate in candidates for term in candidate.terms)
    assert len(terms) >= 4
    assert all(ended <= begun for (_begun, ended), (begun, _ended) in pairwise(terms))


@pytest.mark.parametrize(
    ("way", "why"),
    [
        ("taken", "held by thief"),
        ("taken and given back", "another's meanwhile"),
        ("made anew", "another's meanwhile"),
        ("released", "held by nobody"),
        ("deleted", "held by nobody"),
    ],
)
@virtually
async def test_a_term_with_another_in_between_is_two(way: str, why: str, leases: Leases, candidate: Candidate) -> None:
    task = candidate.start()
    await advance(9)
    spec: JsonObject = {**mapping(leases.lease, "spec")}
    match way:
        case "taken" | "released":
            leases.put(PATH, {**leases.lease, "spec": spec | {"holderIdentity": "thief" if way == "taken" else ""}})
        case "taken and given back":
            leases.put(PATH, {**leases.lease, "spec": spec | {"leaseTransitions": 2}})
        case _:
            leases.remove(PATH)
            if way == "made anew":
                leases.put(PATH, {"spec": spec})
    left = leases.version
    assert candidate.elector.is_leader
    assert not await candidate.elector.still_leads()
    with pytest.raises(LostLease, match=why):
        await task
    assert now() < 9 + 2 + 0.6
    assert leases.version == left


@pytest.mark.parametrize("wrong", [{"identity": ""}, {"renew_deadline": 15.0}, {"retry_period": 9.0}])
def test_settings_by_which_two_could_lead_are_refused(leases: Leases, wrong: dict[str, str | float]) -> None:
    settings = {"namespace": "n", "name": "l", "identity": "i", **wrong}
    with pytest.raises(ValueError, match="renew_deadline"):
        LeaseElector(leases, **settings)  # type: ignore[arg-type]


@virtually
async def test_a_lease_that_cannot_be_read_says_nothing(leases: Leases, candidate: Candidate) -> None:
    task = candidate.start()
    await advance(5)
    leases.trouble = Unreachable("down")
    with pytest.raises(Unreachable):
        await candidate.elector.still_leads()
    leases.trouble, leases.hung = None, True
    with pytest.raises(Unreachable, match="half the renew deadline"):
        await candidate.elector.still_leads()
    await stop(task)


@virtually
async def test_each_who_asks_gets_a_read_that_began_later_and_many_share_one(
    leases: Leases, candidate: Candidate
) -> None:
    task = candidate.start()
    await advance(1)
    elector, before = candidate.elector, leases.requests
    assert all(await asyncio.gather(*(elector.still_leads() for _ in range(100))))
    assert leases.requests == before + 1
    first, second = asyncio.create_task(elector.still_leads()), asyncio.create_task(elector.still_leads())
    await advance(0.01)
    later = asyncio.create_task(elector.still_leads())
    await advance(0)
    first.cancel()
    assert await second  # who gives up takes no read from others
    leases.remove(PATH)  # after that read began
    assert not await later
    assert leases.requests == before + 3
    await stop(task)
