"""Tokens of the gateway: for one user and one service, a minute at most, verified by parties that are not ours."""

from __future__ import annotations

import base64
import json

import jwt as pyjwt
import pytest

from nodeattest_identity.addon.gateway.errors import StatusError
from nodeattest_identity.addon.gateway.front_proxy import UserInfo
from nodeattest_identity.addon.gateway.keyset import Algorithm, generate_key
from nodeattest_identity.addon.gateway.tokens import LIFETIME, TokenCache
from nodeattest_identity.tokens.jwt import SigningKey, signing_key

ISSUER = "https://gateway.example"
JANE = UserInfo(user="jane@example.com", uid="7", groups=("team", "system:authenticated"))


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.5

    def __call__(self) -> float:
        return self.now


def tokens(clock: Clock, key: SigningKey | None = None) -> TokenCache:
    chosen = key or signing_key(generate_key("ES256"))
    return TokenCache(ISSUER, lambda _: chosen, now=clock)


@pytest.mark.parametrize("algorithm", ["ES256", "RS256"])
def test_a_token_names_its_user_and_one_service_and_ends_within_a_minute(algorithm: Algorithm) -> None:
    clock, key = Clock(), signing_key(generate_key(algorithm))
    minted = tokens(clock, key).token(JANE, "kube-system/dashboard")
    claims = pyjwt.decode(
        minted.token,
        key.verifying.public,
        algorithms=[algorithm],
        audience="kube-system/dashboard",
        issuer=ISSUER,
        options={"verify_exp": False, "verify_nbf": False, "verify_iat": False},
    )
    start = int(clock.now)
    assert claims.pop("jti")
    assert claims == {
        "iss": ISSUER,
        "sub": "jane@example.com",
        "aud": "kube-system/dashboard",
        "iat": start,
        "nbf": start,
        "exp": start + LIFETIME,
        "uid": "7",
        "groups": ["team", "system:authenticated"],
    }
    assert LIFETIME <= 60
    assert pyjwt.get_unverified_header(minted.token) == {"alg": algorithm, "kid": key.verifying.kid, "typ": "JWT"}


def test_a_token_is_used_again_for_the_same_until_ten_seconds_before_its_end() -> None:
    clock = Clock()
    made = tokens(clock)
    first = made.token(JANE, "a/b")
    clock.now += LIFETIME - 11
    assert made.token(JANE, "a/b") is first
    clock.now += 1
    assert made.token(JANE, "a/b") is not first
    assert made.minted == 2


@pytest.mark.parametrize(
    "other",
    [
        (UserInfo(user="jim", uid="7", groups=JANE.groups), "a/b"),
        (UserInfo(user=JANE.user, uid="8", groups=JANE.groups), "a/b"),
        (UserInfo(user=JANE.user, uid="7", groups=("team",)), "a/b"),
        (UserInfo(user=JANE.user, uid="7", groups=JANE.groups), "a/c"),
    ],
)
def test_nobody_gets_what_was_made_for_another(other: tuple[UserInfo, str]) -> None:
    made = tokens(Clock())
    first, second = made.token(JANE, "a/b"), made.token(*other)
    assert first.token != second.token
    who, audience = other
    claims = json.loads(base64.urlsafe_b64decode(second.token.split(".")[1] + "=="))
    assert (claims["sub"], claims["uid"], tuple(claims["groups"]), claims["aud"]) == (
        who.user, who.uid, who.groups, audience,
    )  # fmt: skip


def test_without_a_key_nothing_is_signed() -> None:
    made = TokenCache(ISSUER, lambda _: None, now=Clock())
    with pytest.raises(StatusError) as refused:
        made.token(JANE, "a/b")
    assert refused.value.status == 503


def test_a_user_who_fits_into_no_header_is_told_so() -> None:
    with pytest.raises(StatusError) as refused:
        tokens(Clock()).token(UserInfo(user="jane", groups=tuple(f"group-{i:060}" for i in range(100))), "a/b")
    assert refused.value.status == 431
