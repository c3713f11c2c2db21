"""Who should own what: total, bounded, steady, and never taken from somebody who may be at work."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from nodeattest_kube.shard_placement import MemberState, Snapshot, decide, most_each, owners

NAMES = st.sampled_from([f"member-{letter}" for letter in "abcdef"])
SHARDS = st.frozensets(st.sampled_from([f"ns/c{number}" for number in range(30)]))


@given(shards=SHARDS, members=st.frozensets(NAMES, min_size=1))
def test_every_shard_has_one_owner_and_nobody_has_more_than_its_part(
    shards: frozenset[str], members: frozenset[str]
) -> None:
    placed = owners(shards, members)
    assert placed.keys() == shards
    assert set(placed.values()) <= members
    assert max(Counter(placed.values()).values(), default=0) <= most_each(len(shards), len(members))
    assert placed == owners(sorted(shards, reverse=True), sorted(members))


def test_nobody_owns_anything_where_nobody_is() -> None:
    assert owners({"a"}, set()) == {}


def test_most_is_a_quarter_above_the_even_share_rounded_up() -> None:
    assert [most_each(shards, members) for shards, members in ((0, 3), (1, 3), (8, 2), (9, 2), (100, 3))] == [
        0,
        1,
        5,
        6,
        42,
    ]


def test_a_member_that_leaves_moves_little_besides_its_own() -> None:
    shards = [f"fleet-{number % 7}/cluster-{number}" for number in range(1000)]
    members = [f"replica-{number}" for number in range(5)]
    before, after = owners(shards, members), owners(shards, members[:-1])
    moved = sum(before[shard] != after[shard] for shard in shards)
    left = sum(owner == members[-1] for owner in before.values())
    assert left <= moved <= left + 100  # a tenth of all, for room


def test_a_shard_that_comes_moves_almost_nothing() -> None:
    shards = [f"fleet/cluster-{number}" for number in range(200)]
    members = ["a", "b", "c"]
    before, after = owners(shards, members), owners([*shards, "fleet/new"], members)
    assert sum(before[shard] != after[shard] for shard in shards) <= 2


STATES = st.dictionaries(NAMES, st.sampled_from(MemberState))


@given(
    wanted=SHARDS,
    states=STATES,
    holders=st.dictionaries(st.sampled_from([f"ns/c{number}" for number in range(30)]), NAMES | st.just("")),
    held=SHARDS,
)
def test_no_shard_is_claimed_or_discarded_whose_holder_may_be_at_work(
    wanted: frozenset[str], states: dict[str, MemberState], holders: dict[str, str], held: frozenset[str]
) -> None:
    me = "member-a"
    members = {**states, me: MemberState.LIVE}
    for holder in holders.values():
        if holder:
            members.setdefault(holder, MemberState.MISSING)
    snapshot = Snapshot(me=me, wanted=wanted, members=members, holders=holders, held=held)
    live = [name for name, state in members.items() if state is MemberState.LIVE]
    decision = decide(snapshot, owners(wanted, live))
    may_work = {MemberState.LIVE, MemberState.MISSING, MemberState.EXPIRED}
    for shard in decision.claim | decision.discard:
        holder = holders.get(shard, "")
        assert holder in {"", me} or members[holder] not in may_work
    assert decision.claim.isdisjoint(held)
    assert not decision.discard & wanted
    assert all(members[name] is MemberState.EXPIRED for name in decision.end)
    assert all(members[name] is MemberState.ENDED for name in decision.delete)
    assert not decision.delete & set(holders.values())
    # What is held is kept, given up or lost, and what is another's is nothing that we could give up.
    assert all(holders.get(shard) == me for shard in decision.release)
    assert decision.lost == {shard for shard in held if holders.get(shard) != me}
