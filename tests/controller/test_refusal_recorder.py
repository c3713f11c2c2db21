"""Refused requests on their way to a machine's record: who asked, and how often they are written."""

from __future__ import annotations

from dataclasses import replace

import pytest
from node_attested_kit import ledger, machine, refusal

from nodeattest_controller.controllers.node_attested.refusal_recorder import (
    NODES_BURST,
    RECORD_BURST,
    RECORD_RATE,
    RECORDS_BURST,
    SILENT,
    UnwrittenRefusals,
)
from nodeattest_controller.model.refusals import MAX_MESSAGE, MAX_NAME, Requester
from nodeattest_providers.errors import Reason
from nodeattest_providers.names import NodeName, ProviderID

BAD = Reason.PCR_VALUE_NOT_ALLOWED
ME = machine(0)
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
    unwritten = UnwrittenRefusals(Clock())
    assert unwritten.note(refusal(BAD, message=f"{BAD}: expected a, got b", **changes), ledger(ME))
    [found] = unwritten.get(ME.provider_id)
    assert (found.requester, found.reason, found.request) == (expected, BAD, "csr-1")
    assert found.message == "expected a, got b"


def test_what_is_held_until_it_is_written_is_cut_already() -> None:
    unwritten = UnwrittenRefusals(Clock())
    made_up = "a\n" * 250_000
    unwritten.note(refusal(BAD, message=made_up, request_name=made_up), ledger(ME))
    [held] = unwritten.get(ME.provider_id)
    assert (len(held.message), len(held.request)) == (MAX_MESSAGE, MAX_NAME)
    assert "\n" not in held.message + held.request


def test_a_node_that_is_bound_to_no_name_is_not_the_machines_own() -> None:
    unwritten = UnwrittenRefusals(Clock())
    unwritten.note(refusal(BAD), replace(ledger(ME), node_name=NodeName("")))
    assert unwritten.get(ME.provider_id)[0].requester is Requester.OTHER


@pytest.mark.parametrize("reason", sorted(SILENT))
def test_how_first_requests_end_is_not_recorded(reason: Reason) -> None:
    unwritten = UnwrittenRefusals(Clock())
    assert not unwritten.note(refusal(reason), ledger(ME))
    assert unwritten.due() == set()


def test_a_flood_is_written_a_few_times_and_takes_no_write_of_the_nodes_own() -> None:
    clock = Clock()
    unwritten = UnwrittenRefusals(clock)
    assert [unwritten.note(refusal(BAD, **TOKEN), ledger(ME)) for _ in range(1_000)].count(True) == RECORD_BURST
    for number in range(2 * RECORDS_BURST):
        unwritten.note(refusal(BAD, provider_id=ProviderID(f"sandbox://node-{number}"), **TOKEN), ledger(ME))
    assert unwritten.note(refusal(BAD), ledger(ME))
    clock.seconds = 1 / RECORD_RATE
    assert unwritten.note(refusal(BAD, **TOKEN), ledger(ME))


@pytest.mark.parametrize("other", [{**TOKEN, "username": "system:bootstrap:ghijkl"}, ADMIN, STRANGER])
def test_one_requesters_flood_takes_no_record_of_another(other: dict[str, object]) -> None:
    unwritten = UnwrittenRefusals(Clock())
    for _ in range(2 * RECORD_BURST):
        unwritten.note(refusal(BAD, **TOKEN), ledger(ME))
    assert unwritten.note(refusal(BAD, **other), ledger(ME))


@pytest.mark.parametrize(("changes", "most"), [(TOKEN, RECORDS_BURST), ({}, NODES_BURST)])
def test_a_cluster_writes_no_more_at_once(changes: dict[str, object], most: int) -> None:
    unwritten = UnwrittenRefusals(Clock())
    for number in range(2 * most):
        unwritten.note(refusal(BAD, provider_id=ProviderID(f"sandbox://{number}"), **changes), ledger(ME))
    assert len(unwritten.due()) == most


def test_what_came_during_a_write_is_still_due() -> None:
    unwritten = UnwrittenRefusals(Clock())
    unwritten.note(refusal(BAD), ledger(ME))
    written = unwritten.get(ME.provider_id)
    unwritten.note(refusal(BAD, **TOKEN), ledger(ME))
    unwritten.forget(ME.provider_id, written)
    assert unwritten.due() == {ME.provider_id}
    unwritten.forget(ME.provider_id, unwritten.get(ME.provider_id))
    assert unwritten.due() == set()
