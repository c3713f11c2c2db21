"""Paths, lines, token buckets, and one Secret of many writers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from urllib.parse import unquote

import pytest
from fake_api import FakeApi
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_kube import paths
from nodeattest_kube.answers import OBJECT, LineBuffer, parse_event, parse_json
from nodeattest_kube.errors import Conflict, Forbidden, TooLarge
from nodeattest_kube.periodic import RateLimiter
from nodeattest_kube.secret_store import SecretContent, SecretStore, secret_bytes
from nodeattest_kube.store import MemoryBudget
from nodeattest_parsing.objects import dig
from nodeattest_parsing.values import JsonObject


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../secrets/x", "/" * 100_000])
def test_a_name_cannot_leave_its_segment(name: str) -> None:
    for make in (
        lambda: paths.core_path("secrets", name),
        lambda: paths.core_path("secrets", namespace=name),
        lambda: paths.object_path("g", "v1", "things", "t", subresource=name),
    ):
        with pytest.raises(ValueError, match="segment") as caught:
            make()
        assert len(str(caught.value)) < 200


@given(st.text(min_size=1))
def test_any_name_stays_one_segment(name: str) -> None:
    try:
        path = paths.core_path("secrets", name)
    except ValueError:
        return
    assert path.count("/") == 4
    assert path.isascii()
    assert not {"?", "#", " ", "\n", "\r", "\\"} & set(path)
    assert unquote(path.rpartition("/")[2]) == name


@given(st.lists(st.binary(max_size=12)), st.lists(st.integers(0, 40)))
def test_lines_come_out_as_they_went_in_however_they_are_cut(lines: list[bytes], cuts: list[int]) -> None:
    lines = [line.replace(b"\n", b"") for line in lines]
    stream = b"".join(line + b"\n" for line in lines)
    edges = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    assembler = LineBuffer(12)
    out = [line for start, end in pairwise(edges) for line in assembler.feed(stream[start:end])]
    assert out == [line for line in lines if line.strip()]
    assert not assembler.incomplete


@given(st.binary(max_size=100))
def test_any_bytes_are_an_object_or_a_value_error(body: bytes) -> None:
    with suppress(ValueError):
        assert isinstance(parse_json(body), dict)


def test_the_last_of_duplicate_keys_counts_in_what_an_api_server_says_and_nowhere_else() -> None:
    line = b'{"type":"ADDED","object":{"kind":"A","kind":"Node","metadata":{"name":"n"}}}'
    event = parse_event(line, "/api/v1/nodes", OBJECT.values, None)
    assert event is not None
    assert event.object["kind"] == "Node"
    with pytest.raises(ValueError, match="duplicate"):
        parse_json(line)


def test_a_line_that_never_ends_is_not_waited_for() -> None:
    told: list[int] = []
    buffer = LineBuffer(10, lambda: told.append(1))
    assert buffer.feed(b"x" * 70 + b"\nok\n") == [b"ok"]
    assert told == [1]
    with pytest.raises(TooLarge, match="10 bytes"):
        buffer.feed(b"x" * 90)


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 2000)), max_size=50))
def test_no_more_memory_is_shared_out_than_there_is(steps: list[tuple[str, int]]) -> None:
    budget, shares = MemoryBudget(10_000), dict[str, int]()
    for key, size in steps:
        left = 10_000 - sum(shares.values()) + shares.get(key, 0)
        fits = size * 64 <= left or size <= shares.get(key, -1)
        assert budget.take(key, size) == fits
        if fits:
            shares[key] = size
        assert budget.left == 10_000 - sum(shares.values()) >= 0
    assert {key: budget.of(key) for key in shares} == shares


# Token buckets


@dataclass
class Clock:
    now: float = 1000.0

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
    assert buckets.reserve("a", 0.4) is None, "a turn that would come too late is not taken"
    assert buckets.reserve("a", 0.5) == 0.5


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


# A Secret

PATH = "/api/v1/namespaces/system/secrets/keys"


def store(api: FakeApi) -> SecretStore:
    return SecretStore(api, namespace="system", name="keys")


def counted(secret: JsonObject | None) -> SecretContent | None:
    return SecretContent({"count": str(int(secret_bytes(secret, "count") or b"0") + 1).encode()})


async def test_of_many_writers_at_once_each_counts_and_who_changes_nothing_writes_nothing() -> None:
    api = FakeApi()
    await asyncio.gather(*(store(api).update(counted) for _ in range(4)))
    written = api.writes()
    assert secret_bytes(await store(api).update(lambda _: None), "count") == b"4"
    assert api.writes() == written


async def test_labels_annotations_and_type_of_others_stay() -> None:
    api = FakeApi()
    api.put(PATH, {"type": "kubernetes.io/tls", "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}})
    await store(api).update(lambda _: SecretContent({"k": b"v"}, {"e": "f"}))
    secret = api.objects[PATH]
    assert secret["type"] == "kubernetes.io/tls"
    assert dig(secret, "metadata", "labels") == {"a": "b"}
    assert dig(secret, "metadata", "annotations") == {"c": "d", "e": "f"}


async def test_who_loses_each_time_is_told_so_and_a_refusal_passes() -> None:
    api = FakeApi()
    await store(api).update(counted)

    async def faster(method: str, path: str) -> None:
        if method == "PUT":
            api.put(path, api.objects[path])

    api.on_call = faster
    with pytest.raises(Conflict, match="other writers were faster"):
        await store(api).update(counted)

    async def refused(method: str, path: str) -> None:
        raise Forbidden(403, "Forbidden", f"{method} {path}")

    api.on_call = refused
    with pytest.raises(Forbidden):
        await store(api).update(counted)


@pytest.mark.parametrize("value", ["", "!", "a", None, 7])
def test_a_value_that_is_no_base64_is_none(value: str | int | None) -> None:
    assert secret_bytes({"data": {"k": value}}, "k") is None
    assert secret_bytes(None, "k") is None
