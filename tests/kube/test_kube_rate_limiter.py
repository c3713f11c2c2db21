"""Token buckets: exact, fair to whoever waits, and bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodeattest_kube.periodic import RateLimiter


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_passes_at_once_and_then_so_much_a_second() -> None:
    clock = Clock()
    buckets = RateLimiter(burst=3, per_second=2.0, clock=clock)
    assert [buckets.take("a") for _ in range(5)] == [True, True, True, False, False]
    clock.now += 0.5
    assert [buckets.take("a") for _ in range(2)] == [True, False]
    clock.now += 3600
    assert [buckets.take("a") for _ in range(4)] == [True, True, True, False]


def test_who_waits_has_a_turn_of_its_own_in_the_order_of_asking() -> None:
    clock = Clock()
    buckets = RateLimiter(burst=2, per_second=4.0, clock=clock)
    assert [buckets.reserve("a", 60.0) for _ in range(5)] == [0.0, 0.0, 0.25, 0.5, 0.75]
    clock.now += 0.75
    assert buckets.reserve("a", 60.0) == 0.25


def test_a_turn_that_would_come_too_late_is_not_taken() -> None:
    buckets = RateLimiter(burst=1, per_second=1.0, clock=Clock())
    assert buckets.reserve("a", 0.0) == 0.0
    assert buckets.reserve("a", 0.5) is None
    assert buckets.reserve("a", 1.0) == 1.0


def test_what_is_remembered_is_bounded_and_the_least_used_is_forgotten() -> None:
    buckets = RateLimiter(burst=1, per_second=1.0, clock=Clock(), remembered=3)
    for key in "abcad":
        buckets.take(key)
    assert len(buckets) == 3
    assert buckets.take("b")  # forgotten, hence full


@given(st.lists(st.floats(0.0, 5.0), max_size=80), st.integers(1, 6), st.sampled_from([0.5, 1.0, 8.0]))
def test_never_more_passes_than_burst_and_rate_allow(pauses: list[float], burst: int, rate: float) -> None:
    clock = Clock()
    buckets = RateLimiter(burst=burst, per_second=rate, clock=clock)
    passed: list[float] = []
    for pause in pauses:
        clock.now += pause
        if buckets.take("a"):
            passed.append(clock.now)
    for first, begun in enumerate(passed):
        for last in range(first, len(passed)):
            assert last - first + 1 <= burst + (passed[last] - begun) * rate + 1e-6


def test_a_bucket_that_is_full_again_is_forgotten_and_nothing_passes_that_would_not_have() -> None:
    clock = Clock()
    buckets = RateLimiter(burst=3, per_second=1.0, clock=clock)
    for number in range(100):
        buckets.take(number)
    for _ in range(3):
        buckets.take("used up")
    assert len(buckets) == 101
    clock.now += 1.0
    buckets.take("other")
    assert len(buckets) == 2
    assert [buckets.take("used up") for _ in range(2)] == [True, False]
