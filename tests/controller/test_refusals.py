"""What a record keeps of refused requests: sums, bounds, and what it does with what it cannot read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from nodeattest_controller.model.refusals import (
    KEEP,
    MAX_MESSAGE,
    MAX_REASONS,
    RecordedRefusal,
    Requester,
    merge_refusals,
    parse_refusals,
    render_refusals,
)
from nodeattest_kube.jsontypes import JsonObject

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def refused(
    reason: str, seconds: int = 0, who: Requester = Requester.NODE, *, request: str = "", message: str = ""
) -> RecordedRefusal:
    at = NOW + timedelta(seconds=seconds)
    return RecordedRefusal(requester=who, reason=reason, first=at, last=at, request=request, message=message)


def test_the_same_reason_of_the_same_requester_is_added_up() -> None:
    [found] = merge_refusals(
        [refused("A", 5, request="second", message="m2")], [refused("A", 0, request="first", message="m1")], NOW
    )
    assert (found.count, found.first, found.last) == (2, NOW, NOW + timedelta(seconds=5))
    assert (found.request, found.message) == ("second", "m2")


def test_a_token_pushes_out_nothing_that_the_node_was_refused_for() -> None:
    own = [refused(f"Own{number}") for number in range(MAX_REASONS)]
    flood = [refused(f"Token{number}", number, Requester.BOOTSTRAP) for number in range(100)]
    kept = merge_refusals(own, flood, NOW)
    assert {one.reason for one in kept if one.requester is Requester.NODE} == {one.reason for one in own}
    tokens = [one.reason for one in kept if one.requester is Requester.BOOTSTRAP]
    assert tokens == [f"Token{number}" for number in range(99, 99 - MAX_REASONS, -1)]


def test_an_entry_ends_some_time_after_its_last_request() -> None:
    assert merge_refusals([refused("A")], [], NOW + KEEP)
    assert merge_refusals([refused("A")], [], NOW + KEEP + timedelta(seconds=1)) == ()


def test_what_is_written_is_read_again_cut_and_printable() -> None:
    written = render_refusals([refused("A", request="csr-1", message="x" * MAX_MESSAGE + "y")])
    [found] = parse_refusals({"status": {"refusals": [*written]}})
    assert (found.reason, found.request, found.requester, found.count) == ("A", "csr-1", Requester.NODE, 1)
    assert found.message == "x" * (MAX_MESSAGE - 1) + "…"
    [hostile] = render_refusals([refused("A", message="a\x1b[2J\nb")])
    assert str(hostile["message"]).isprintable()


def test_what_cannot_be_read_is_none() -> None:
    good = render_refusals([refused("A")])[0]
    broken: list[JsonObject] = [
        {**good, "requester": "Ghost"}, {**good, "lastTime": "soon"}, {**good, "reason": ""}, {},
    ]  # fmt: skip
    assert parse_refusals({"status": {"refusals": [*broken, good]}}) == parse_refusals({"status": {"refusals": [good]}})
    assert parse_refusals({}) == ()
