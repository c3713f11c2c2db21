"""How old a request is, whatever the controller's clock says."""

from __future__ import annotations

from datetime import timedelta

import pytest
from builders import CREATED

from nodeattest_controller.ages import REMEMBERED, Ages


class Clocks:
    def __init__(self, ahead: timedelta) -> None:
        self.ahead = ahead
        self.elapsed = 0.0

    def ages(self) -> Ages:
        return Ages(lambda: CREATED + self.ahead + timedelta(seconds=self.elapsed), lambda: self.elapsed)


@pytest.mark.parametrize("minutes", [-10, 0, 6, 600])
def test_a_fresh_request_is_young_by_any_clock(minutes: int) -> None:
    clocks = Clocks(timedelta(minutes=minutes))
    ages = clocks.ages()
    assert ages.age("u", CREATED) == timedelta(0)
    clocks.elapsed = 30
    assert ages.age("u", CREATED) == timedelta(seconds=30)


def test_a_request_is_no_older_than_its_creation() -> None:
    clocks = Clocks(timedelta(0))
    ages = clocks.ages()
    ages.age("u", CREATED)
    clocks.elapsed = 100
    assert ages.age("u", CREATED + timedelta(seconds=90)) == timedelta(seconds=10)


def test_what_is_remembered_is_bounded() -> None:
    ages = Clocks(timedelta(0)).ages()
    for number in range(REMEMBERED + 10):
        ages.age(f"u-{number}", CREATED)
    assert len(ages) == REMEMBERED
    ages.forget(f"u-{REMEMBERED}")
    ages.forget("never seen")
    assert len(ages) == REMEMBERED - 1
