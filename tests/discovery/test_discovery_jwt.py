"""JWTs of proposal 000: what we write others read, and of what others write only the one good form is taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jwt_kit import CLAIMS, HEADER, NOW, TOKEN, jwt

from nodeattest_discovery.jwt import LONGEST, mint, parse, verify
from nodeattest_discovery.token import BootstrapToken
from nodeattest_parsing.strict_base64 import encode_base64url
from nodeattest_providers.errors import Denied, Reason


def verdict(text: bytes, *, token: BootstrapToken | None = TOKEN, now: float = NOW, audience: str | None = None) -> str:
    """Return the id that was proved, or the reason of the refusal."""
    try:
        unverified = parse(text)
        verify(unverified, token, now=now, audience=audience)
    except Denied as denied:
        return denied.reason if TOKEN.secret not in str(denied) else "a refusal that shows the secret"
    return unverified.token_id


def test_what_we_mint_is_proved_and_has_these_very_bytes() -> None:
    minted = mint(TOKEN, NOW + 0.9)
    header, claims, _ = minted.split(".")
    assert header == encode_base64url(b'{"alg":"HS256","kid":"abcdef","typ":"JWT"}')
    assert claims == encode_base64url(b'{"sub":"abcdef","iat":1800000000,"exp":1800000060}')
    assert verdict(minted.encode()) == TOKEN.id


@pytest.mark.parametrize(
    ("header", "claims"),
    [
        pytest.param({"alg": "HS256", "kid": TOKEN.id}, CLAIMS, id="no typ"),
        pytest.param(HEADER | {"typ": "jwt"}, CLAIMS, id="another typ"),
        pytest.param({"alg": "HS256", "typ": "JWT"}, CLAIMS, id="no kid"),
        pytest.param(HEADER | {"kid": "abcdef\n"}, CLAIMS | {"sub": "abcdef\n"}, id="kid and a line end"),
        pytest.param(HEADER | {"kid": 123456}, CLAIMS | {"sub": 123456}, id="kid a number"),
        pytest.param([HEADER], CLAIMS, id="header a list"),
        pytest.param(HEADER, {"exp": NOW + 60}, id="no sub"),
        pytest.param(HEADER, CLAIMS | {"exp": str(NOW + 60)}, id="exp text"),
        pytest.param(HEADER, CLAIMS | {"exp": 2**53 + 1}, id="exp beyond what JSON holds"),
        pytest.param(HEADER, CLAIMS | {"exp": NOW}, id="expired this very second"),
        pytest.param(HEADER, {"sub": TOKEN.id, "exp": NOW + LONGEST + 1}, id="exp too far ahead"),
        pytest.param(HEADER, CLAIMS | {"iat": NOW + 61}, id="issued after it expires"),
        pytest.param(HEADER, CLAIMS | {"iat": NOW - 100}, id="lasts too long"),
        pytest.param(HEADER, CLAIMS | {"iat": None}, id="iat null"),
        pytest.param(HEADER, CLAIMS | {"aud": ["cluster-1", "another"]}, id="several audiences"),
        pytest.param(HEADER, CLAIMS | {"nbf": NOW + 50}, id="a claim that we do not know"),
        pytest.param(HEADER, b'{"sub":"abcdef","exp":1,"exp":1800000060}', id="exp twice"),
    ],
)
def test_a_jwt_with_one_thing_spoilt_is_refused_though_its_signature_is_right(header: object, claims: object) -> None:
    assert verdict(jwt(header, claims), audience="cluster-1") == Reason.DISCOVERY_REQUEST_REFUSED


def test_a_token_without_a_secret_proves_nothing() -> None:
    with pytest.raises(Denied, match="no token"):
        verify(parse(jwt(secret="")), BootstrapToken(TOKEN.id, ""), now=NOW)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_every_byte_counts(part: int) -> None:
    parts = jwt().split(b".")
    for at in range(len(parts[part])):
        for other in (b"A", b"9"):
            spoilt = parts[part][:at] + other + parts[part][at + 1 :]
            if spoilt != parts[part]:
                text = b".".join([*parts[:part], spoilt, *parts[part + 1 :]])
                assert verdict(text) == Reason.DISCOVERY_REQUEST_REFUSED


def test_clocks_may_differ_by_less_than_a_minute() -> None:
    assert verdict(mint(TOKEN, NOW + 60).encode()) == TOKEN.id
    assert verdict(mint(TOKEN, NOW - 59).encode()) == TOKEN.id
    assert verdict(mint(TOKEN, NOW + 61).encode()) == Reason.DISCOVERY_REQUEST_REFUSED
    assert verdict(mint(TOKEN, NOW - 60).encode()) == Reason.DISCOVERY_REQUEST_REFUSED


@given(st.binary(max_size=300) | st.text(max_size=100).map(str.encode))
def test_any_bytes_are_refused_and_no_other_exception_comes_out(data: bytes) -> None:
    assert verdict(data) == Reason.DISCOVERY_REQUEST_REFUSED
    assert verdict(jwt(data, CLAIMS)) == Reason.DISCOVERY_REQUEST_REFUSED
    assert verdict(jwt(HEADER, data)) == Reason.DISCOVERY_REQUEST_REFUSED
