"""JWTs under an issuer's keys: the good ones are proved, everything else is refused for its own reason."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import jwt as pyjwt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_kit import (
    AUDIENCE,
    EXPECTED,
    ISSUER,
    NOW,
    bad_tokens,
    claims,
    elliptic,
    header,
    rsa_key,
    token,
)

from nodeattest_identity.issuer.keys import KeysError
from nodeattest_identity.tokens.jwt import Claims, Expected, mint, parse, read_signing_key, signing_key, verify
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason

ALL = [rsa_key(), elliptic(), elliptic(bits=384), elliptic(bits=521)]
KEYS = tuple(key.verifying for key in ALL)
ES = elliptic()


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


BAD = {
    "expired": Reason.JWT_EXPIRED,
    "another issuer by a slash": Reason.JWT_ISSUER_MISMATCH,
    "another audience": Reason.JWT_AUDIENCE_MISMATCH,
    "an unknown key": Reason.JWT_KEY_UNKNOWN,
    "a known kid over another key": Reason.JWT_SIGNATURE_INVALID,
    "not yet valid": Reason.JWT_NOT_YET_VALID,
    "alg none": Reason.JWT_MALFORMED,
    "an unknown crit": Reason.JWT_MALFORMED,
    "HS256 under the public key": Reason.JWT_ALGORITHM_NOT_ALLOWED,
    "no kid": Reason.JWT_MALFORMED,
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("bits", [0, 256, 384, 521])
def test_each_bad_token_is_refused_for_its_reason(bits: int, name: str) -> None:
    key, stranger = (elliptic(which, bits=bits) if bits else rsa_key(which) for which in (0, 1))
    assert verdict(bad_tokens(key, stranger, NOW, ISSUER)[name]) == BAD[name]


PLAIN = json.dumps(claims()).encode()[:-1]
SPOILT: dict[str, object] = {
    "no exp: a token of an old Secret": claims(exp=None),
    "no aud: a token of an old Secret": claims(aud=None),
    "no sub": claims(sub=None),
    "aud empty": claims(aud=[]),
    "aud with a number": claims(aud=[AUDIENCE, 1]),
    "aud of too many": claims(aud=[AUDIENCE] * 65),
    "iss a list": claims(iss=[ISSUER]),
    "exp a text": claims(exp=str(NOW + 60)),
    "exp beyond what JSON holds": claims(exp=2**53 + 1),
    "jti a number": claims(jti=5),
    "NaN": b'{"exp":NaN}',
    "a number that other readers round": claims(extra=10**30),
    "deeply nested": b'{"a":' * 700 + b"1" + b"}" * 700,
    "sub twice": PLAIN + b',"sub":"x"}',
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
        ({"alg": "RS256"}, Reason.JWT_ALGORITHM_NOT_ALLOWED),
        ({"kid": ""}, Reason.JWT_MALFORMED),
        ({"kid": 7}, Reason.JWT_MALFORMED),
        ({"kid": "x" * 1025}, Reason.JWT_MALFORMED),
        ({"kid": "\x1b[2J\n"}, Reason.JWT_KEY_UNKNOWN),
        ({"kid": KEYS[0].kid}, Reason.JWT_ALGORITHM_NOT_ALLOWED),
        ({"typ": 1}, Reason.JWT_MALFORMED),
        ({"cty": "JWT"}, Reason.JWT_MALFORMED),
        ({"x5u": "https://evil.example"}, Reason.JWT_MALFORMED),
        ({"zip": "DEF"}, Reason.JWT_MALFORMED),
    ],
)
def test_a_header_with_one_thing_spoilt_is_refused_though_the_signature_is_right(
    changed: dict[str, object], reason: Reason
) -> None:
    assert verdict(token(ES, header(ES, **changed))) == reason


@pytest.mark.parametrize("changed", [{"typ": "jwt"}, {"typ": None}, {"x5t": "AAAA", "x5t#S256": "AAAA"}])
def test_headers_that_other_issuers_write_are_taken(changed: dict[str, object]) -> None:
    assert isinstance(verdict(token(ES, header(ES, **changed))), Claims)


GOOD = token(ES)


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


@pytest.mark.parametrize(
    ("now", "whether"), [(NOW - 5, True), (NOW - 5.1, False), (NOW + 604.9, True), (NOW + 605, False)]
)
def test_clocks_may_differ_by_five_seconds(now: float, whether: bool) -> None:
    assert isinstance(verdict(GOOD, now=now), Claims) is whether


def test_a_token_may_be_demanded_to_be_short_and_for_one_audience() -> None:
    short = Expected(issuer=ISSUER, audiences=frozenset({AUDIENCE}), longest_lifetime=600)
    assert isinstance(verdict(GOOD, short), Claims)
    assert verdict(token(ES, given_claims=claims(exp=NOW + 601)), short) == Reason.JWT_LIFETIME_TOO_LONG
    assert verdict(token(ES, given_claims=claims(exp=NOW + 610, iat=None)), short) == Reason.JWT_LIFETIME_TOO_LONG
    single = Expected(issuer=ISSUER, audiences=frozenset({AUDIENCE}), single_audience=True)
    assert isinstance(verdict(token(ES, given_claims=claims(aud=AUDIENCE)), single), Claims)
    two = token(ES, given_claims=claims(aud=[AUDIENCE, "other.example"]))
    assert isinstance(verdict(two), Claims)
    assert verdict(two, single) == Reason.JWT_AUDIENCE_MISMATCH


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
    try:
        unverified = parse(data)
    except Denied as denied:
        reason = denied.reason
    else:
        assert unverified.token == data
        return
    assert reason in {Reason.JWT_MALFORMED, Reason.JWT_ALGORITHM_NOT_ALLOWED}
