"""Retired keys: none is forgotten while it could still serve, and the list does not grow for ever."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from builders import CREATED

from nodeattest_controller.model.retired_keys import (
    KEEP_ENDED,
    RetiredKey,
    live_keys,
    parse_retired,
    render_retired,
    retire,
)
from nodeattest_providers.names import Purpose

DAY = timedelta(days=1)


def keys(count: int, *, days: int, name: str = "k") -> list[RetiredKey]:
    return [RetiredKey(spki=f"{name}-{n}", serial="1", not_after=CREATED + days * DAY) for n in range(count)]


def test_keys_of_live_certificates_are_never_forgotten() -> None:
    live, ended = keys(200, days=1, name="live"), keys(200, days=-1, name="ended")
    kept = retire([*live, *ended], keys(1, days=1, name="new"), CREATED)
    assert [key for key in kept if key.not_after > CREATED] == [*live, *keys(1, days=1, name="new")]
    assert live_keys(kept, Purpose.CLIENT, CREATED) == 201


def test_of_ended_ones_the_newest_are_kept() -> None:
    kept = retire(keys(KEEP_ENDED, days=-2, name="old"), keys(2, days=-1, name="new"), CREATED)
    assert len(kept) == KEEP_ENDED
    assert [key.spki for key in kept[-2:]] == ["new-0", "new-1"]
    assert kept[0].spki == "old-2"


def test_a_certificate_that_ends_this_second_has_ended() -> None:
    assert live_keys(keys(1, days=0), Purpose.CLIENT, CREATED) == 0


def test_what_is_written_is_read_again_and_nonsense_is_left_out() -> None:
    known = (*keys(3, days=1), replace(keys(1, days=1)[0], first_request_uid="f-1", purpose=Purpose.SERVING))
    assert parse_retired({"retiredKeys": [*render_retired(known)]}) == known
    assert parse_retired({"retiredKeys": ["x", {"spki": "s"}, {"notAfter": "2026-01-01T00:00:00Z"}]}) == ()
