"""How old a request is, whatever the controller's clock says."""

from __future__ import annotations

from datetime import timedelta

import pytest
from builders import CREATED

from nodeattest_controller.controllers.csr.pending_age import LONGEST_WAIT, REMEMBERED, PendingAges


class Clocks:
    def __init__(self, ahead: timedelta) -> None:
        self.ahead = ahead
        self.elapsed = 0.0

    def ages(self) -> PendingAges:
        return PendingAges(lambda: CREATED + self.ahead + timedelta(seconds=self.elapsed), lambda: self.elapsed)


@pytest.mark.parametrize("minutes", [-10, 0, 6, 600])
def test_a_fresh_request_is_young_by_any_clock(minutes: int) -> None:
    clocks = Clocks(timedelta(minutes=minutes))
    ages = clocks.ages()
    assert ages.age("u", CREATED) == timedelta(0)
    clocks.elapsed = 30
    assert ages.age("u", CREATED) == timedelta(seconds=30)


def test_a_flood_does_not_make_what_waits_young_again() -> None:
    clocks = Clocks(timedelta(0))
    ages = clocks.ages()
    uids = [f"u-{number}" for number in range(REMEMBERED + 10)]
    for elapsed in (0, 3600, 7200):
        clocks.elapsed = elapsed
        assert {ages.age(uid, CREATED) for uid in uids} == {timedelta(seconds=elapsed)}


def test_what_went_without_a_word_makes_room_after_a_day() -> None:
    clocks = Clocks(timedelta(minutes=5))
    ages = clocks.ages()
    for number in range(REMEMBERED):
        ages.age(f"gone-{number}", CREATED)
    clocks.elapsed = LONGEST_WAIT + 1
    assert ages.age("new", CREATED) == timedelta(0)
    assert len(ages) == 1
