"""The gateway's keys and tokens: a key is published before it signs, and replicas share one Secret."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from typing import Any

import jwt as pyjwt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polling import until

from nodeattest_identity.addon.gateway import keyset as keysets
from nodeattest_identity.addon.gateway.front_proxy import UserInfo
from nodeattest_identity.addon.gateway.keyset import LIFETIME, SECRET_NAME, KeySet, KeyStore
from nodeattest_identity.issuer.documents import MAX_AGE
from nodeattest_identity.issuer.keys import KeysError
from nodeattest_identity.proxy.refusals import RefusalError
from nodeattest_identity.tokens.jwt import signing_key
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.kubeconfig import read_kubeconfig
from nodeattest_parsing.objects import text
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_sandbox.fleet import create_namespace

SCHEDULE = keysets.RotationSchedule()
DAY = 86_400.0
JANE = UserInfo(user="jane@example.com", uid="7", groups=("team", "system:authenticated"))


@pytest.mark.parametrize("algorithm", ["ES256", "RS256"])
def test_a_token_names_its_user_and_one_service_and_ends_within_a_minute(algorithm: keysets.Algorithm) -> None:
    key = signing_key(keysets.generate_key(algorithm))
    token = keysets.mint_token(key, "https://gateway.example", JANE, "kube-system/dashboard", now=1_800_000_000.5)
    public: Any = key.verifying.public
    unchecked = {"verify_exp": False, "verify_nbf": False, "verify_iat": False}
    claims = pyjwt.decode(token, public, algorithms=[algorithm], audience="kube-system/dashboard", options=unchecked)  # type: ignore[arg-type]
    assert claims.pop("jti")
    assert claims == {
        "iss": "https://gateway.example",
        "sub": "jane@example.com",
        "aud": "kube-system/dashboard",
        "iat": 1_800_000_000,
        "nbf": 1_800_000_000,
        "exp": 1_800_000_000 + LIFETIME,
        "uid": "7",
        "groups": ["team", "system:authenticated"],
    }
    assert LIFETIME <= 60
    assert pyjwt.get_unverified_header(token) == {"alg": algorithm, "kid": key.verifying.kid, "typ": "JWT"}
    many = UserInfo(user="jane", groups=tuple(f"group-{number:060}" for number in range(100)))
    with pytest.raises(RefusalError, match="431: expected a name and groups that fit"):
        keysets.mint_token(key, "https://gateway.example", many, "a/b", now=0)


def step(keyset: KeySet, now: float, schedule: keysets.RotationSchedule = SCHEDULE) -> KeySet:
    return keysets.rotate(keyset, now, schedule, lambda: keysets.generate_key("ES256")) or keyset


def test_a_successor_is_published_longer_than_documents_are_kept_and_an_old_key_until_its_tokens_have_expired() -> None:
    assert (SCHEDULE.ahead > MAX_AGE, SCHEDULE.behind > LIFETIME) == (True, True)
    first, announced = step(KeySet(), 0), SCHEDULE.period - SCHEDULE.ahead
    assert step(first, announced - 1) == first
    both = step(first, announced)
    old, new = both.keys
    assert both.signer(announced + MAX_AGE) is old.signing
    assert both.signer(new.signs_from) is new.signing
    assert new.signs_from > announced + SCHEDULE.ahead
    assert old in step(both, new.signs_from + LIFETIME).keys
    assert step(both, new.signs_from + SCHEDULE.behind).keys == (new,)


def test_a_replica_whose_clock_is_behind_signs_with_what_it_has() -> None:
    keyset = step(KeySet(), 1000)
    assert keyset.signer(10) is keyset.keys[0].signing
    assert KeySet().signer(10) is None


@given(st.lists(st.floats(min_value=60, max_value=3 * DAY), min_size=1, max_size=12))
def test_at_no_time_signs_a_key_that_was_not_published_long_enough(pauses: list[float]) -> None:
    schedule = keysets.RotationSchedule(period=2 * DAY)
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
    first, second = json.loads(keysets.encode_keyset(step(step(KeySet(), 0), SCHEDULE.period)))["keys"]
    sets: list[object] = [
        [],
        {},
        {"keys": []},
        {"keys": [first] * 2},
        {"keys": [second, first]},
        {"keys": [{**first, "more": 1}]},
        {"keys": [{"key": first["key"]}]},
        *({"keys": [{**first, "signsFrom": odd}]} for odd in (True, -1, 1.5)),
        *({"keys": [{**first, "key": odd}]} for odd in ("no key", "\u00fc")),
        {"keys": [1]},
        {"keys": [first], "other": 1},
    ]
    twice = json.dumps({"keys": [first]}).replace('"keys"', '"keys": [], "keys"', 1)
    return [b"", twice.encode(), *(json.dumps(each).encode() for each in sets)]


@pytest.mark.parametrize("data", spoilt())
def test_spoilt_keys_are_refused_and_not_quoted(data: bytes) -> None:
    with pytest.raises(KeysError) as error:
        keysets.parse_keyset(data)
    assert "PRIVATE" not in str(error.value)


class Replicas:
    """Gateways' key stores of one namespace, and the time."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        create_namespace(plane.client(), namespace)
        self.client = ApiClient(read_kubeconfig(plane.admin_kubeconfig))
        self.namespace, self.now, self.clock = namespace, 1_800_000_000.0, 0.0
        self.path = paths.core_path("secrets", SECRET_NAME, namespace=namespace)

    def add(self) -> KeyStore:
        return KeyStore(self.client, self.namespace, SCHEDULE, "ES256", now=lambda: self.now, clock=lambda: self.clock)

    async def stored(self) -> bytes:
        return base64.b64decode(text(await self.client.get(self.path), "data", "keys.json"))

    def signers(self, *stores: KeyStore) -> set[str]:
        return {signer.verifying.kid for store in stores if (signer := store.signer(self.now))}


async def test_replicas_that_start_and_rotate_at_once_share_one_key_and_announce_one_successor(
    control_plane: ControlPlane,
) -> None:
    world = Replicas(control_plane, "gateway-rotation")
    async with world.client:
        stores = [world.add() for _ in range(4)]
        for _ in range(2):
            await asyncio.gather(*(store.refresh() for store in stores))
        [old] = world.signers(*stores)
        assert all(store.unready_reason() is None for store in stores)
        world.now += SCHEDULE.period - SCHEDULE.ahead
        for _ in range(2):
            await asyncio.gather(*(store.refresh() for store in stores))
        [(first, new)] = {tuple(key.kid for key in store.keyset.published) for store in stores}
        assert world.signers(*stores) == {old} == {first}
        world.now += SCHEDULE.ahead + 1
        assert world.signers(*stores) == {new}
        world.now += SCHEDULE.behind
        world.clock += SCHEDULE.behind
        assert world.signers(*stores) == set(), "keys that were not compared with the Secret for long sign nothing"
        await stores[0].refresh()
        assert world.signers(*stores) == {new}
        assert [key.kid for key in keysets.parse_keyset(await world.stored()).published] == [new]


async def test_a_secret_that_cannot_be_read_is_reported_and_never_replaced(
    control_plane: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    world = Replicas(control_plane, "gateway-spoilt")
    async with world.client:
        store, fresh = world.add(), world.add()
        await store.refresh()
        spoilt = base64.b64encode(b'{"keys":[]}').decode()
        await world.client.merge_patch(world.path, {"data": {"keys.json": spoilt}})
        with caplog.at_level(logging.WARNING):
            running = asyncio.create_task(fresh.run())
            await until(lambda: "delete it" in (fresh.unready_reason() or ""), state=fresh.unready_reason)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert SECRET_NAME in caplog.text
        assert await world.stored() == b'{"keys":[]}'
        assert (fresh.signer(world.now), store.signer(world.now) is None) == (None, False)
