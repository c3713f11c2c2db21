"""When the gateway's keys change: nobody ever meets a signature by a key that he could not have read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_identity.addon.gateway.minting import LIFETIME
from nodeattest_identity.addon.gateway.ring import Ring, RingError, Schedule, generate, next_ring, read, write
from nodeattest_identity.issuer.documents import MAX_AGE

SCHEDULE = Schedule()
DAY = 86_400.0


def step(ring: Ring, now: float, schedule: Schedule = SCHEDULE) -> Ring:
    return next_ring(ring, now, schedule, lambda: generate("ES256")) or ring


def test_the_first_key_signs_at_once() -> None:
    ring = step(Ring(), 1000.5)
    [key] = ring.keys
    assert ring.signer(1000.5) is key.signing
    assert ring.published == (key.signing.verifying,)
    assert next_ring(ring, 1001, SCHEDULE, lambda: generate("ES256")) is None


def test_a_successor_is_published_longer_than_documents_are_kept_before_it_signs() -> None:
    assert SCHEDULE.ahead > MAX_AGE
    assert SCHEDULE.behind > LIFETIME
    first = step(Ring(), 0)
    assert step(first, SCHEDULE.period - SCHEDULE.ahead - 1) == first
    announced = SCHEDULE.period - SCHEDULE.ahead
    both = step(first, announced)
    old, new = both.keys
    assert both.signer(announced + MAX_AGE) is old.signing
    assert both.signer(new.signs_from) is new.signing
    assert new.signs_from > announced + SCHEDULE.ahead


def test_an_old_key_stays_published_until_its_tokens_have_ended() -> None:
    both = step(step(Ring(), 0), SCHEDULE.period - SCHEDULE.ahead)
    old, new = both.keys
    assert old in step(both, new.signs_from + LIFETIME).keys
    assert step(both, new.signs_from + SCHEDULE.behind).keys == (new,)


def test_a_replica_whose_clock_is_behind_signs_with_what_it_has() -> None:
    ring = step(Ring(), 1000)
    assert ring.signer(10) is ring.keys[0].signing
    assert Ring().signer(10) is None


@given(st.lists(st.floats(min_value=60, max_value=3 * DAY), min_size=1, max_size=12))
def test_at_no_time_signs_a_key_that_was_not_published_long_enough(pauses: list[float]) -> None:
    schedule = Schedule(period=2 * DAY)
    now, published, ring = 0.0, dict[str, float](), Ring()
    for pause in pauses:
        ring = step(ring, now, schedule)
        for key in ring.published:
            published.setdefault(key.kid, now)
        signer = ring.signer(now)
        assert signer is not None
        since = published[signer.verifying.kid]
        assert since == 0 or now - since >= schedule.ahead
        assert signer.verifying in ring.published
        assert len(ring.keys) <= 3
        now += pause


@pytest.mark.parametrize("algorithm", ["ES256", "RS256"])
def test_what_is_written_reads_the_same(algorithm: str) -> None:
    ring = next_ring(Ring(), 5, SCHEDULE, lambda: generate("RS256" if algorithm == "RS256" else "ES256"))
    assert ring is not None
    data = write(ring)
    assert write(read(data)) == data
    assert read(data).published[0].alg == algorithm
    assert "PRIVATE" not in repr(ring)


def spoilt() -> list[bytes]:
    both = step(step(Ring(), 0), SCHEDULE.period)
    good = json.loads(write(both))
    first, second = good["keys"]
    return [
        b"",
        b"{}",
        b"[]",
        json.dumps({"keys": []}).encode(),
        json.dumps({"keys": [first] * 2}).encode(),
        json.dumps({"keys": [second, first]}).encode(),
        json.dumps({"keys": [{**first, "more": 1}]}).encode(),
        json.dumps({"keys": [{"key": first["key"]}]}).encode(),
        json.dumps({"keys": [{**first, "signsFrom": True}]}).encode(),
        json.dumps({"keys": [{**first, "signsFrom": -1}]}).encode(),
        json.dumps({"keys": [{**first, "signsFrom": 1.5}]}).encode(),
        json.dumps({"keys": [{**first, "key": "no key"}]}).encode(),
        json.dumps({"keys": [{**first, "key": "\u00fc"}]}).encode(),
        json.dumps({"keys": [1]}).encode(),
        json.dumps({"keys": [first], "other": 1}).encode(),
    ]


@pytest.mark.parametrize("data", spoilt())
def test_spoilt_keys_are_refused_and_not_quoted(data: bytes) -> None:
    with pytest.raises(RingError) as error:
        read(data)
    assert "PRIVATE" not in str(error.value)
