"""Budgets: who is over it waits for a turn, the turns come in order, and nobody else pays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeattest_controller.controllers.csr.request_limiter import (
    NODE_BURST,
    NODE_RATE,
    REQUESTER_BURST,
    REQUESTER_RATE,
    LimiterKey,
    OverBudget,
    RequestLimiter,
)
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_providers.errors import Reason

CLUSTER = ClusterKey("fleet/c")
MAX_WAIT = 900.0


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def request(uid: str, *, node: str = "node-0", user: str = "system:bootstrap:abcdef") -> LimiterKey:
    return LimiterKey(cluster=CLUSTER, username=user, node_name=node, uid=uid)


def admitted(budgets: RequestLimiter, asked: LimiterKey, patience: float = MAX_WAIT) -> bool:
    try:
        budgets.admit(asked, patience)
    except OverBudget:
        return False
    return True


def refused(budgets: RequestLimiter, asked: LimiterKey, patience: float = MAX_WAIT) -> OverBudget:
    with pytest.raises(OverBudget) as caught:
        budgets.admit(asked, patience)
    return caught.value


def spend(budgets: RequestLimiter) -> None:
    """Spend all that a requester may have judged at once."""
    for number in range(REQUESTER_BURST):
        assert admitted(budgets, request(f"u-{number}", node=f"node-{number}"))


def test_a_pool_of_hundreds_of_nodes_boots_on_one_token_unhindered() -> None:
    budgets = RequestLimiter(Clock())
    assert all(admitted(budgets, request(f"u-{n}-{step}", node=f"node-{n}")) for step in (1, 2) for n in range(500))


def test_requests_over_a_tokens_budget_get_turns_in_the_order_of_asking() -> None:
    budgets = RequestLimiter(Clock())
    spend(budgets)
    delays = [refused(budgets, request(f"late-{number}", node=f"late-{number}")).delay for number in range(3)]
    assert delays == pytest.approx([1 / REQUESTER_RATE, 2 / REQUESTER_RATE, 3 / REQUESTER_RATE])


def test_a_turn_is_kept_however_often_the_request_is_woken_and_is_used_once() -> None:
    clock = Clock()
    budgets = RequestLimiter(clock)
    spend(budgets)
    late, later = request("late", node="late"), request("later", node="later")
    first = refused(budgets, late)
    assert first.first_time
    again = [refused(budgets, late) for _ in range(50)]
    assert {one.delay for one in again} == {first.delay}
    assert not any(one.first_time for one in again)
    assert refused(budgets, later).delay == pytest.approx(2 / REQUESTER_RATE)
    clock.now += 1 / REQUESTER_RATE
    assert admitted(budgets, late)
    assert not admitted(budgets, late)


def test_another_tokens_another_clusters_and_a_renewing_nodes_requests_are_not_delayed() -> None:
    budgets = RequestLimiter(Clock())
    for number in range(10_000):
        admitted(budgets, request(f"u-{number}", node=f"node-{number}"))
    assert admitted(budgets, request("a", user="system:bootstrap:zzzzzz"))
    assert admitted(budgets, request("b", user="system:node:node-0"))
    assert admitted(budgets, replace(request("c"), cluster=ClusterKey("fleet/other")))


def test_requests_for_one_node_leave_the_tokens_other_nodes_their_budget() -> None:
    budgets = RequestLimiter(Clock())
    passed = sum(admitted(budgets, request(f"u-{number}")) for number in range(5_000))
    assert passed == NODE_BURST
    assert refused(budgets, request("next")).delay is None  # too many have a turn before it
    others = (request(f"v-{number}", node=f"node-{number}") for number in range(1, REQUESTER_BURST - NODE_BURST))
    assert all(admitted(budgets, other) for other in others)


def test_a_turn_that_would_come_too_late_is_not_given_and_takes_nothing() -> None:
    clock = Clock()
    budgets = RequestLimiter(clock)
    for number in range(NODE_BURST):
        assert admitted(budgets, request(f"u-{number}"))
    assert refused(budgets, request("impatient"), patience=1.0).delay is None
    assert refused(budgets, request("patient")).delay == pytest.approx(1 / NODE_RATE)
    assert refused(budgets, request("old"), patience=-5.0).delay is None


def test_what_it_ends_with_says_who_and_what_to_do() -> None:
    budgets = RequestLimiter(Clock())
    spend(budgets)
    denied = refused(budgets, request("late", node="late")).denied()
    assert denied.reason is Reason.REQUESTER_OVER_BUDGET
    assert "20 requests a second" in denied.got
    assert "token" in denied.remedy


def test_telling_costs_a_bounded_number_of_writes() -> None:
    clock = Clock()
    budgets = RequestLimiter(clock)
    spend(budgets)
    told = [refused(budgets, request(f"late-{number}", node=f"late-{number}")) for number in range(5_000)]
    assert sum(one.annotate for one in told) == 20
    assert sum(one.warn for one in told) == 1
    clock.now += 10
    told = [refused(budgets, request(f"more-{number}", node=f"more-{number}")) for number in range(500)]
    assert sum(one.annotate for one in told) == 10
