"""When the gateway's keys change: nobody ever meets a signature by a key that he could not have read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_identity.addon.gateway.keyset import (
    KeySet,
    KeySetError,
    RotationSchedule,
    encode_keyset,
    generate_key,
    parse_keyset,
    rotate,
)
from nodeattest_identity.addon.gateway.tokens import LIFETIME
from nodeattest_identity.issuer.documents import MAX_AGE

SCHEDULE = RotationSchedule()
DAY = 86_400.0


def step(keyset: KeySet, now: float, schedule: RotationSchedule = SCHEDULE) -> KeySet:
    return rotate(keyset, now, schedule, lambda: generate_key("ES256")) or keyset


def test_a_successor_is_published_longer_than_documents_are_kept_before_it_signs() -> None:
    assert SCHEDULE.ahead > MAX_AGE
    assert SCHEDULE.behind > LIFETIME
    first = step(KeySet(), 0)
    assert step(first, SCHEDULE.period - SCHEDULE.ahead - 1) == first
    announced = SCHEDULE.period - SCHEDULE.ahead
    both = step(first, announced)
    old, new = both.keys
    assert both.signer(announced + MAX_AGE) is old.signing
    assert both.signer(new.signs_from) is new.signing
    assert new.signs_from > announced + SCHEDULE.ahead


def test_an_old_key_stays_published_until_its_tokens_have_ended() -> None:
    both = step(step(KeySet(), 0), SCHEDULE.period - SCHEDULE.ahead)
    old, new = both.keys
    assert old in step(both, new.signs_from + LIFETIME).keys
    assert step(both, new.signs_from + SCHEDULE.behind).keys == (new,)


def test_a_replica_whose_clock_is_behind_signs_with_what_it_has() -> None:
    keyset = step(KeySet(), 1000)
    assert keyset.signer(10) is keyset.keys[0].signing
    assert KeySet().signer(10) is None


@given(st.lists(st.floats(min_value=60, max_value=3 * DAY), min_size=1, max_size=12))
def test_at_no_time_signs_a_key_that_was_not_published_long_enough(pauses: list[float]) -> None:
    schedule = RotationSchedule(period=2 * DAY)
    now, published, keyset = 0.0, dict[str, float](), KeySet()
    for pause in pauses:
        keyset = step(keyset, now, schedule)
        for key in keyset.published:
            published.setdefault(key.kid, now)
        signer = keyset.signer(now)
        assert signer is not None
        since = published[signer.verifying.kid]
        assert since == 0 or now - since >= schedule.ahead
        assert signer.verifying in keyset.published
        assert len(keyset.keys) <= 3
        now += pause


def spoilt() -> list[bytes]:
    both = step(step(KeySet(), 0), SCHEDULE.period)
    good = json.loads(encode_keyset(both))
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
        json.dumps({"keys": [first]}).replace('"keys"', '"keys": [], "keys"', 1).encode(),
    ]


@pytest.mark.parametrize("data", spoilt())
def test_spoilt_keys_are_refused_and_not_quoted(data: bytes) -> None:
    with pytest.raises(KeySetError) as error:
        parse_keyset(data)
    assert "PRIVATE" not in str(error.value)
