"""Tokens of the gateway: for one user and one service, a minute at most, verified by parties that are not ours."""

from __future__ import annotations

import jwt as pyjwt
import pytest

from nodeattest_identity.addon.gateway.errors import StatusError
from nodeattest_identity.addon.gateway.front_proxy import UserInfo
from nodeattest_identity.addon.gateway.keyset import Algorithm, generate_key
from nodeattest_identity.addon.gateway.tokens import LIFETIME, mint_token
from nodeattest_identity.tokens.jwt import signing_key

ISSUER = "https://gateway.example"
JANE = UserInfo(user="jane@example.com", uid="7", groups=("team", "system:authenticated"))


@pytest.mark.parametrize("algorithm", ["ES256", "RS256"])
def test_a_token_names_its_user_and_one_service_and_ends_within_a_minute(algorithm: Algorithm) -> None:
    key = signing_key(generate_key(algorithm))
    token = mint_token(key, ISSUER, JANE, "kube-system/dashboard", now=1_800_000_000.5)
    claims = pyjwt.decode(
        token,
        key.verifying.public,
        algorithms=[algorithm],
        audience="kube-system/dashboard",
        issuer=ISSUER,
        options={"verify_exp": False, "verify_nbf": False, "verify_iat": False},
    )
    assert claims.pop("jti")
    assert claims == {
        "iss": ISSUER,
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


def test_a_user_who_fits_into_no_header_is_told_so() -> None:
    user = UserInfo(user="jane", groups=tuple(f"group-{number:060}" for number in range(100)))
    with pytest.raises(StatusError) as refused:
        mint_token(signing_key(generate_key("ES256")), ISSUER, user, "a/b", now=0)
    assert refused.value.status == 431
