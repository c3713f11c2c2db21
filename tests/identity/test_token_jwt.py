"""JWTs under an issuer's keys: the good ones are proved, everything else is refused for its own reason (D11)."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import jwt as pyjwt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_kit import AUDIENCE, EXPECTED, ISSUER, NOW, claims, elliptic, header, rsa_key, token

from nodeattest_identity.issuer.keys import KeysError
from nodeattest_identity.tokens.jwt import Claims, Expected, mint, parse, read_signing_key, signing_key, verify
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason

ALL = [rsa_key(), elliptic(), elliptic(bits=384), elliptic(bits=521)]
KEYS = tuple(key.verifying for key in ALL)
ES = elliptic()
GOOD = token(ES)


def verdict(text: bytes | str, expected: Expected = EXPECTED, now: float = NOW + 1) -> Claims | Reason:
    """Return the claims, or the reason of a refusal that quotes no part of the token."""
    try:
        return verify(text, KEYS, expected, now)
    except Denied as denied:
        refused = denied
    data = text.encode() if isinstance(text, str) else text
    long = [part for part in data.split(b".") if len(part) > 20]
    assert not any(part[:20] in str(refused).encode() for part in long), "a refusal that quotes the token"
    assert all((refused.expected, refused.got, refused.remedy))
    return refused.reason


@pytest.mark.parametrize("bits", [0, 256, 384, 521])
def test_a_signature_of_each_algorithm_proves_its_own_key_only(bits: int) -> None:
    key, stranger = (elliptic(which, bits=bits) if bits else rsa_key(which) for which in (0, 1))
    assert isinstance(verdict(token(key)), Claims)
    assert verdict(token(stranger, header(key))) == Reason.JWT_SIGNATURE_INVALID
    assert verdict(token(stranger)) == Reason.JWT_KEY_UNKNOWN


PLAIN = json.dumps(claims()).encode()[:-1]
SPOILT: dict[str, object] = {
    "no exp": claims(exp=None),
    "no aud": claims(aud=None),
    "no sub": claims(sub=None),
    "aud empty": claims(aud=[]),
    "aud with a number": claims(aud=[AUDIENCE, 1]),
    "aud of too many": claims(aud=[AUDIENCE] * 65),
    "iss a list": claims(iss=[ISSUER]),
    "exp beyond what JSON holds": claims(exp=2**53 + 1),
    "jti a number": claims(jti=5),
    "NaN": b'{"exp":NaN}',
    "a number that other readers round": claims(extra=10**30),
    "twice within": PLAIN + b',"x":{"y":1,"y":2}}',
    "half a character": PLAIN + b',"x":"\\ud800"}',
}


@pytest.mark.parametrize("spoilt", SPOILT.values(), ids=SPOILT.keys())
def test_claims_with_one_thing_spoilt_are_refused_though_the_signature_is_right(spoilt: object) -> None:
    assert verdict(token(ES, given_claims=spoilt)) == Reason.JWT_MALFORMED


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"alg": "PS256"}, Reason.JWT_ALGORITHM_NOT_ALLOWED),
        ({"alg": ["ES256"]}, Reason.JWT_ALGORITHM_NOT_ALLOWED),
        ({"kid": ""}, Reason.JWT_MALFORMED),
        ({"kid": 7}, Reason.JWT_MALFORMED),
        ({"kid": "x" * 1025}, Reason.JWT_MALFORMED),
        ({"kid": "\x1b[2J\n"}, Reason.JWT_KEY_UNKNOWN),
        ({"kid": KEYS[0].kid}, Reason.JWT_ALGORITHM_NOT_ALLOWED),
        ({"typ": 1}, Reason.JWT_MALFORMED),
        ({"cty": "JWT"}, Reason.JWT_MALFORMED),
        ({"zip": "DEF"}, Reason.JWT_MALFORMED),
        ({"typ": "jwt"}, None),
        ({"typ": None}, None),
        ({"x5t": "AAAA", "x5t#S256": "AAAA"}, None),
    ],
)
def test_a_header_with_one_thing_spoilt_is_refused_and_what_other_issuers_write_is_taken(
    changed: dict[str, object], reason: Reason | None
) -> None:
    found = verdict(token(ES, header(ES, **changed)))
    assert isinstance(found, Claims) if reason is None else found == reason


@given(st.integers(0, len(GOOD)), st.integers(0, 1), st.binary(max_size=2))
def test_no_byte_of_a_token_can_be_changed_added_or_left_out(position: int, without: int, put: bytes) -> None:
    changed = GOOD[:position] + put + GOOD[position + without :]
    assert isinstance(verdict(changed), Claims) is (changed == GOOD)


def test_no_last_letter_of_a_part_can_be_spelt_otherwise() -> None:
    ends = [at - 1 for at in (*(at for at, byte in enumerate(GOOD) if byte == ord(".")), len(GOOD))]
    for at in ends:
        for byte in range(256):
            changed = GOOD[:at] + bytes([byte]) + GOOD[at + 1 :]
            assert isinstance(verdict(changed), Claims) is (changed == GOOD)


@pytest.mark.parametrize(("late", "whether"), [(-5, True), (-5.1, False), (604.9, True), (605, False)])
def test_clocks_may_differ_by_five_seconds(late: float, whether: bool) -> None:
    assert isinstance(verdict(GOOD, now=NOW + late), Claims) is whether


SHORT = Expected(issuer=ISSUER, audiences=frozenset({AUDIENCE}), longest_lifetime=600)
SINGLE = Expected(issuer=ISSUER, audiences=frozenset({AUDIENCE}), single_audience=True)
TWO = [AUDIENCE, "other.example"]


@pytest.mark.parametrize(
    ("expected", "changed", "reason"),
    [
        (SHORT, {}, None),
        (SHORT, {"exp": NOW + 601}, Reason.JWT_LIFETIME_TOO_LONG),
        (SHORT, {"exp": NOW + 610, "iat": None}, Reason.JWT_LIFETIME_TOO_LONG),
        (SINGLE, {"aud": AUDIENCE}, None),
        (EXPECTED, {"aud": TWO}, None),
        (SINGLE, {"aud": TWO}, Reason.JWT_AUDIENCE_MISMATCH),
    ],
)
def test_a_token_may_be_demanded_to_be_short_and_for_one_audience(
    expected: Expected, changed: dict[str, object], reason: Reason | None
) -> None:
    found = verdict(token(ES, given_claims=claims(**changed)), expected)  # type: ignore[arg-type]
    assert isinstance(found, Claims) if reason is None else found == reason


def test_what_we_mint_is_exactly_what_kubernetes_demands_and_we_and_others_take_it() -> None:
    now, said = int(datetime.now(UTC).timestamp()), {"subject": "jane@example.com", "audience": AUDIENCE}
    extra: JsonObject = {"groups": ["dev"], "uid": "7"}
    for key in (rsa_key(), ES):
        minted = mint(key, issuer=ISSUER, now=now + 0.9, lifetime=60, extra=extra, **said)
        assert list(pyjwt.get_unverified_header(minted).items()) == list(header(key).items())
        proved = verdict(minted, now=now)
        assert isinstance(proved, Claims)
        assert (proved.subject, bool(proved.jwt_id), proved.extra) == ("jane@example.com", True, extra)
        public: Any = key.verifying.public
        read = pyjwt.decode(minted, public, algorithms=[key.verifying.alg], audience=AUDIENCE, issuer=ISSUER)
        assert list(read) == ["iss", "sub", "aud", "iat", "nbf", "exp", "jti", "groups", "uid"]
        assert (read["iat"], read["nbf"], read["exp"]) == (now, now, now + 60)
    for name in ("iss", "sub", "aud", "exp"):
        with pytest.raises(ValueError, match="other names"):
            mint(ES, issuer=ISSUER, now=NOW, lifetime=60, extra={name: "b"}, **said)


def test_keys_that_relying_parties_do_not_take_do_not_sign() -> None:
    for refused in (elliptic(bits=384).private, ES.verifying.public, "a key"):
        with pytest.raises(KeysError):
            signing_key(refused)
    with pytest.raises(KeysError) as said:
        read_signing_key(b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n")
    assert "c2VjcmV0" not in str(said.value)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_token_of_one_spelling_or_refused(data: bytes) -> None:
    with suppress(Denied):
        assert parse(data).token == data
