"""What a record keeps of refused requests: the last ones, bounds, and what it does with what it cannot read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from nodeattest_controller.model.refusals import (
    KEEP,
    MAX_MESSAGE,
    MAX_REASONS,
    RecordedRefusal,
    Requester,
    latest_refusals,
    parse_refusals,
    render_refusals,
)
from nodeattest_kube.jsontypes import JsonObject

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def refused(
    reason: str, seconds: int = 0, who: Requester = Requester.NODE, *, request: str = "", message: str = ""
) -> RecordedRefusal:
    at = NOW + timedelta(seconds=seconds)
    return RecordedRefusal(requester=who, reason=reason, time=at, request=request, message=message)


def test_of_one_reason_of_a_requester_the_last_request_stays() -> None:
    last = refused("A", 5, request="second", message="m2")
    assert latest_refusals([last, refused("A", 0, request="first", message="m1")], NOW) == (last,)


def test_a_token_pushes_out_nothing_that_the_node_was_refused_for() -> None:
    own = [refused(f"Own{number}") for number in range(MAX_REASONS)]
    flood = [refused(f"Token{number}", number, Requester.BOOTSTRAP) for number in range(100)]
    kept = latest_refusals([*own, *flood], NOW)
    assert {one.reason for one in kept if one.requester is Requester.NODE} == {one.reason for one in own}
    tokens = [one.reason for one in kept if one.requester is Requester.BOOTSTRAP]
    assert tokens == [f"Token{number}" for number in range(99, 99 - MAX_REASONS, -1)]


def test_an_entry_ends_some_time_after_its_last_request() -> None:
    assert latest_refusals([refused("A")], NOW + KEEP)
    assert latest_refusals([refused("A")], NOW + KEEP + timedelta(seconds=1)) == ()


def test_what_is_written_is_read_again_cut_and_printable() -> None:
    written = render_refusals([refused("A", request="csr-1", message="x" * MAX_MESSAGE + "y")])
    [found] = parse_refusals({"status": {"refusals": [*written]}})
    assert (found.reason, found.request, found.requester, found.time) == ("A", "csr-1", Requester.NODE, NOW)
    assert found.message == "x" * (MAX_MESSAGE - 1) + "…"
    [hostile] = render_refusals([refused("A", message="a\x1b[2J\nb")])
    assert str(hostile["message"]).isprintable()


def test_what_cannot_be_read_is_none() -> None:
    good = render_refusals([refused("A")])[0]
    broken: list[JsonObject] = [
        {**good, "requester": "Ghost"}, {**good, "time": "soon"}, {**good, "reason": ""}, {},
    ]  # fmt: skip
    assert parse_refusals({"status": {"refusals": [*broken, good]}}) == parse_refusals({"status": {"refusals": [good]}})
    assert parse_refusals({}) == ()
