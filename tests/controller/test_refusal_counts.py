"""Refused requests that are counted for a machine's record: who asked, and how often they are written."""

from __future__ import annotations

from dataclasses import replace

import pytest
from node_attested_kit import ledger, machine, refusal

from nodeattest_controller.controllers.node_attested.refusal_counts import (
    NODES_BURST,
    RECORD_BURST,
    RECORD_RATE,
    RECORDS_BURST,
    SILENT,
    RefusalCounts,
)
from nodeattest_controller.model.refusals import MAX_MESSAGE, MAX_NAME, Requester
from nodeattest_providers.errors import Reason
from nodeattest_providers.names import NodeName, ProviderID

BAD = Reason.PCR_VALUE_NOT_ALLOWED
ME, NEW = machine(0), machine(2, node=False)
TOKEN = {"by_node": False, "username": "system:bootstrap:abcdef"}
STRANGER = {"node_name": NodeName("node-1"), "username": "system:node:node-1"}
ADMIN = {"by_node": False, "username": "kubernetes-admin"}


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Requester.NODE),
        (TOKEN, Requester.BOOTSTRAP),
        (STRANGER, Requester.OTHER),
        (ADMIN, Requester.OTHER),
        ({"by_node": False, "username": "system:node:node-0"}, Requester.OTHER),  # a node without the nodes' group
    ],
)
def test_who_asked_is_what_the_server_authenticated(changes: dict[str, object], expected: Requester) -> None:
    counts = RefusalCounts(Clock())
    assert counts.count(refusal(BAD, message=f"{BAD}: expected a, got b", **changes), ledger(ME))
    [found] = counts.take(ME.provider_id)
    assert (found.requester, found.reason, found.request) == (expected, BAD, "csr-1")
    assert found.message == "expected a, got b"


def test_what_is_held_until_it_is_written_is_cut_already() -> None:
    counts = RefusalCounts(Clock())
    made_up = "a\n" * 250_000
    counts.count(refusal(BAD, message=made_up, request_name=made_up), ledger(ME))
    [held] = counts.take(ME.provider_id)
    assert (len(held.message), len(held.request)) == (MAX_MESSAGE, MAX_NAME)
    assert "\n" not in held.message + held.request


def test_a_node_that_is_bound_to_no_name_is_not_the_machines_own() -> None:
    counts = RefusalCounts(Clock())
    counts.count(refusal(BAD), replace(ledger(ME), node_name=NodeName("")))
    assert counts.take(ME.provider_id)[0].requester is Requester.OTHER


@pytest.mark.parametrize("reason", sorted(SILENT))
def test_how_first_requests_end_is_not_recorded(reason: Reason) -> None:
    counts = RefusalCounts(Clock())
    assert not counts.count(refusal(reason), ledger(ME))
    assert counts.due() == set()


def test_a_flood_is_counted_and_written_a_few_times() -> None:
    clock = Clock()
    counts = RefusalCounts(clock)
    writes = total = 0
    for _request in range(1_000):
        if counts.count(refusal(BAD, **TOKEN), ledger(ME)):
            writes += 1
            total += sum(one.count for one in counts.take(ME.provider_id))
    assert writes == RECORD_BURST
    counts.release()
    assert counts.due() == set()
    clock.seconds = 1 / RECORD_RATE
    counts.release()
    assert total + sum(one.count for one in counts.take(ME.provider_id)) == 1_000


def test_a_flood_by_a_token_takes_no_write_of_the_nodes_own() -> None:
    counts = RefusalCounts(Clock())
    for number in range(2 * RECORDS_BURST):
        one = ProviderID(f"sandbox://node-{number}")
        counts.count(refusal(BAD, provider_id=one, **TOKEN), ledger(ME))
    for _request in range(10):
        counts.count(refusal(BAD, **TOKEN), ledger(ME))
        counts.take(ME.provider_id)
    assert not counts.count(refusal(BAD, **TOKEN), ledger(ME))
    assert counts.count(refusal(BAD), ledger(ME))
    assert Requester.NODE in {one.requester for one in counts.take(ME.provider_id)}


@pytest.mark.parametrize(("changes", "most"), [(TOKEN, RECORDS_BURST), ({}, NODES_BURST)])
def test_a_cluster_writes_no_more_at_once(changes: dict[str, object], most: int) -> None:
    counts = RefusalCounts(Clock())
    for number in range(2 * most):
        counts.count(refusal(BAD, provider_id=ProviderID(f"sandbox://{number}"), **changes), ledger(ME))
    assert len(counts.due()) == most


def test_what_could_not_be_written_is_kept_with_what_came_meanwhile() -> None:
    counts = RefusalCounts(Clock())
    counts.count(refusal(BAD), ledger(ME))
    taken = counts.take(ME.provider_id)
    counts.count(refusal(BAD), ledger(ME))
    counts.put_back(ME.provider_id, taken, due=True)
    assert [one.count for one in counts.take(ME.provider_id)] == [2]
    assert counts.take(ME.provider_id) == ()
    counts.put_back(ME.provider_id, taken, due=False)
    counts.forget(ME.provider_id)
    counts.release()
    assert counts.due() == set()
