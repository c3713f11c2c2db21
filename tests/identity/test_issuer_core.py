"""Keys, URLs and documents of an issuer: what passes, what is refused, and that nothing private comes out."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Final

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)  # fmt: skip
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeattest_identity.issuer.documents import DocumentError, UrlError, documents, issuer_url, parse_configuration
from nodeattest_identity.issuer.keys import KeysError, VerifyingKey, read_jwks, read_pem, verifying_key
from nodeattest_parsing.strict_base64 import encode_base64url

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
ISSUER = "https://issuer.example/c1"
JWKS_URI = "https://issuer.example/c1/openid/v1/jwks"
RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
RSA_PEM = RSA.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
PUBLIC_PEM = EC.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
PRIVATE = {"d", "p", "q", "dp", "dq", "qi", "oth", "k"}


def pem(key: PrivateKey, form: PrivateFormat | None) -> bytes:
    if form is None:
        return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def jwk(key: VerifyingKey) -> dict[str, object]:
    return json.loads(documents(ISSUER, JWKS_URI, [key]).jwks)["keys"][0]


def jwks(*members: object) -> bytes:
    return json.dumps({"keys": [*members]}).encode()


def test_keys_stay_in_the_files_order_and_private_ones_leave_their_public_half() -> None:
    (first, second) = read_pem(b"a comment\n" + RSA_PEM + PUBLIC_PEM)
    assert (first.alg, second.alg) == ("RS256", "ES256")
    assert first.spki == verifying_key(RSA.public_key()).spki
    assert second.public.public_numbers() == EC.public_key().public_numbers()


RUBBISH = b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"
REFUSED_PEM: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "no block": lambda: b"ssh-rsa AAAA",
    "another name at the end": lambda: PUBLIC_PEM.replace(b"END PUBLIC", b"END PRIVATE"),
    "no key in a key's block": lambda: RUBBISH,
    "a certificate request": lambda: PUBLIC_PEM.replace(b"PUBLIC KEY", b"CERTIFICATE REQUEST"),
    "P-224": lambda: pem(ec.generate_private_key(ec.SECP224R1()), None),
    "RSA-1024": lambda: pem(rsa.generate_private_key(65537, 1024), PrivateFormat.PKCS8),  # noqa: S505 - refused
    "a key under a password": lambda: EC.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"password")
    ),
    "a good key and a bad one": lambda: PUBLIC_PEM + RUBBISH,
    "a file beyond the limit": lambda: PUBLIC_PEM + b"#" * (1 << 20),
}


@pytest.mark.parametrize("make", REFUSED_PEM.values(), ids=REFUSED_PEM.keys())
def test_a_file_that_cannot_be_published_whole_is_refused_and_not_quoted(make: Callable[[], bytes]) -> None:
    data = make()
    with pytest.raises(KeysError) as refused:
        read_pem(data)
    assert "expected" in str(refused.value)
    lines = [line for line in data.decode("latin-1").splitlines() if line and not line.startswith("-----")]
    assert not any(line[:24] in str(refused.value) for line in lines if len(line) > 12)


GOOD_RSA, GOOD_EC = jwk(verifying_key(RSA.public_key())), jwk(verifying_key(EC.public_key()))
REFUSED_JWKS: dict[str, bytes] = {
    "no JSON": b"{",
    "a text": jwks("key"),
    "a private member": jwks({**GOOD_EC, "d": "AAAA"}),
    "a symmetric key": jwks({"kty": "oct", "kid": "1", "k": "AAAA"}),
    "a list as kty": jwks({**GOOD_EC, "kty": []}),
    "an object as curve": jwks({**GOOD_EC, "crv": {}}),
    "another curve": jwks({**GOOD_EC, "crv": "secp256k1"}),
    "a key to encrypt with": jwks({**GOOD_RSA, "use": "enc"}),
    "another algorithm": jwks({**GOOD_RSA, "alg": "HS256"}),
    "no kid": jwks({key: value for key, value in GOOD_RSA.items() if key != "kid"}),
    "a long kid": jwks({**GOOD_RSA, "kid": "k" * 1025}),
    "a number as kid": jwks({**GOOD_RSA, "kid": 1}),
    "two of one kid": jwks(GOOD_RSA, {**GOOD_EC, "kid": GOOD_RSA["kid"]}),
    "padding": jwks({**GOOD_RSA, "e": "AQAB=="}),
    "base64 of the other alphabet": jwks({**GOOD_RSA, "n": f"+/{str(GOOD_RSA['n'])[2:]}"}),
    "a line end inside": jwks({**GOOD_EC, "x": f"{GOOD_EC['x']}\n"}),
    "an exponent of 1": jwks({**GOOD_RSA, "e": "AQ"}),
    "an exponent of 33 bits": jwks({**GOOD_RSA, "e": "AQAAAAE"}),
    "more keys than the limit": jwks(*({**GOOD_RSA, "kid": f"{number}"} for number in range(129))),
    "a short coordinate": jwks({**GOOD_EC, "x": "AAAA"}),
    "a point off its curve": jwks({**GOOD_EC, "x": GOOD_EC["y"], "y": GOOD_EC["x"]}),
    "a modulus of 64 KiB": jwks({**GOOD_RSA, "n": "f" * 87380}),
    "a member twice": jwks(GOOD_RSA).replace(b'"kid"', b'"kid": "another", "kid"', 1),
    "two sets of keys": jwks(GOOD_RSA).replace(b'"keys"', b'"keys": [], "keys"', 1),
    "a set beyond the limit": jwks({**GOOD_RSA, "note": "x" * (1 << 20)}),
}


@pytest.mark.parametrize("body", REFUSED_JWKS.values(), ids=REFUSED_JWKS.keys())
def test_a_key_set_with_anything_odd_is_refused(body: bytes) -> None:
    with pytest.raises(KeysError, match="expected"):
        read_jwks(body)


def short_rsa(bits: int) -> dict[str, object]:
    """Make a key as others write it; its modulus is no product of two primes, which nobody can see."""
    modulus = base64.urlsafe_b64encode((2 ** (bits - 1) + 2**64 + 1).to_bytes(bits // 8)).decode().rstrip("=")
    return {**GOOD_RSA, "kid": "odd", "n": modulus}


ALWAYS_REFUSED = {
    "a member twice", "two sets of keys", "a private member", "a symmetric key", "a text", "two of one kid", "no JSON",
    "a set beyond the limit", "more keys than the limit",
}  # fmt: skip
UNUSABLE: dict[str, dict[str, object]] = {
    **{name: json.loads(body)["keys"][0] for name, body in REFUSED_JWKS.items() if name not in ALWAYS_REFUSED},
    "RSA of 1024 bits": short_rsa(1024),
    "RSA of 16384 bits": short_rsa(16384),
    "no kty": {key: value for key, value in GOOD_EC.items() if key != "kty"},
    "P-224": {**GOOD_EC, "crv": "P-224"},
    "nothing": {},
}


@pytest.mark.parametrize("odd", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_a_key_that_a_relying_party_cannot_use_hides_no_other(odd: dict[str, object]) -> None:
    odd = {**odd, "kid": "odd"} if odd.get("kid") in {GOOD_EC["kid"], GOOD_RSA["kid"]} else odd
    for members in ((odd, GOOD_EC, GOOD_RSA), (GOOD_EC, GOOD_RSA, odd)):
        found = read_jwks(jwks(*members), skip_unusable=True)
        assert [key.kid for key in found] == [GOOD_EC["kid"], GOOD_RSA["kid"]]
        with pytest.raises(KeysError, match="expected"):
            read_jwks(jwks(*members))
    with pytest.raises(KeysError, match="at least one key that verifies tokens, got none; of the first: "):
        read_jwks(jwks(odd), skip_unusable=True)


@pytest.mark.parametrize(
    "member", [{"d": "AAAA"}, {"kty": "oct", "k": "AAAA"}, {"kty": "OKP", "d": "A"}, {"use": "enc", "d": "A"}]
)
def test_a_private_member_refuses_the_set_also_in_a_key_that_is_not_used(member: dict[str, str]) -> None:
    with pytest.raises(KeysError, match="private"):
        read_jwks(jwks(GOOD_RSA, {**GOOD_EC, "kid": "2", **member}), skip_unusable=True)


@given(st.binary(max_size=400))
def test_any_bytes_give_keys_or_an_error_of_ours(data: bytes) -> None:
    for read in (read_pem, read_jwks):
        with pytest.raises(KeysError):
            read(data)


@pytest.mark.parametrize(
    "text",
    [
        "https://issuer.example", "https://issuer.example/", "https://account.blob.core.windows.net/$web/",
        "https://10.0.0.1:6443", "https://[::1]:6443/a",
    ],
)  # fmt: skip
def test_an_issuer_is_kept_byte_for_byte(text: str) -> None:
    assert issuer_url(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "issuer.example", "http://issuer.example", "https://", "https://issuer.example?x",
        "https://issuer.example#x", "https://user@issuer.example", "https://issuer.example:99999",
        "https://issuer.example/a b", "https://issuer.example\\evil.example", "https://issuer.examplé",
        "https://[::1", "https://-issuer.example", "https://issuer.example/" + "a" * 2048,
    ],
)  # fmt: skip
def test_what_kube_apiserver_or_a_url_parser_may_take_otherwise_is_no_issuer(text: str) -> None:
    with pytest.raises(UrlError, match="expected the https URL"):
        issuer_url(text)


def test_no_keys_and_two_keys_of_one_name_give_no_documents() -> None:
    key, other = verifying_key(RSA.public_key()), verifying_key(EC.public_key())
    with pytest.raises(KeysError, match="at least one key"):
        documents(ISSUER, JWKS_URI, [])
    with pytest.raises(KeysError, match="one kid"):
        documents(ISSUER, JWKS_URI, [key, VerifyingKey(other.public, key.kid, other.alg)])
    assert documents(ISSUER, JWKS_URI, [key, key]).keys == (key,)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b'{"issuer":1,"jwks_uri":"https://a.example"}', b'{"issuer":"https://a.example"}',
        b'{"issuer":"https://a.example","jwks_uri":"http://a.example/jwks"}',
        b'{"issuer":"https://a.example?x","jwks_uri":"https://a.example/jwks"}', b'{"issuer":"' + b"a" * 70_000 + b'"}',
        b'{"issuer":"https://a.example","jwks_uri":"https://b.example","jwks_uri":"https://a.example"}',
    ],
)  # fmt: skip
def test_a_configuration_that_says_too_little_is_not_believed(body: bytes) -> None:
    with pytest.raises(DocumentError, match="expected"):
        parse_configuration(body)


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()], ids=lambda one: one.name)
def test_coordinates_are_as_long_as_the_field(curve: ec.EllipticCurve) -> None:
    size = (curve.key_size + 7) // 8
    keys = (ec.derive_private_key(number, curve).public_key() for number in range(1, 20_000))
    short = next(key for key in keys if key.public_numbers().x.bit_length() <= 8 * (size - 1))
    shown = jwk(verifying_key(short))
    assert len(base64.urlsafe_b64decode(str(shown["x"]) + "==")) == size
    assert read_jwks(jwks(shown))[0].public.public_numbers() == short.public_numbers()


# Nothing private comes out

MEMBERS: Final = {
    "RSA": ["use", "kty", "kid", "alg", "n", "e"],
    "EC": ["use", "kty", "kid", "crv", "alg", "x", "y"],
}
CURVES: Final[list[tuple[ec.EllipticCurve, int]]] = [
    (ec.SECP256R1(), 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551 - 1),
    (ec.SECP384R1(), 2**384 - 2**190),
    (ec.SECP521R1(), 2**521 - 2**260),
]
"""With the largest private key, or one a little smaller."""
RSA_KEYS: Final = [rsa.generate_private_key(*kind) for kind in ((65537, 2048), (3, 2048), (65537, 3072))]
"""Made once: each takes a tenth of a second."""


@st.composite
def elliptic(draw: st.DrawFn) -> ec.EllipticCurvePrivateKey:
    curve, largest = draw(st.sampled_from(CURVES))
    return ec.derive_private_key(draw(st.integers(1, largest)), curve)


def secrets(key: PrivateKey) -> list[int]:
    """Tell every number that only the private key has."""
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return [key.private_numbers().private_value]
    numbers = key.private_numbers()
    return [numbers.d, numbers.p, numbers.q, numbers.dmp1, numbers.dmq1, numbers.iqmp]


FORMS: Final = st.sampled_from([PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL, None])
FILES: Final = st.lists(st.tuples(st.one_of(st.sampled_from(RSA_KEYS), elliptic()), FORMS), min_size=1, max_size=4)


@settings(max_examples=40)  # reading an RSA key checks its primes
@given(FILES)
def test_no_private_member_and_no_private_number_ever_comes_out(
    file: list[tuple[PrivateKey, PrivateFormat | None]],
) -> None:
    keys = read_pem(b"".join(pem(key, form) for key, form in file))
    made = documents("https://issuer.example", "https://issuer.example/jwks", keys)
    for member in json.loads(made.jwks)["keys"]:
        assert [*member] == MEMBERS[member["kty"]]
    for key, _ in file:
        for secret in secrets(key):
            written = encode_base64url(secret.to_bytes((secret.bit_length() + 7) // 8))
            if len(written) > 16:  # a tiny number stands in any text by chance
                assert written not in made.jwks.decode()
    assert read_jwks(made.jwks) == made.keys
    wanted = dict.fromkeys(verifying_key(key.public_key()).kid for key, _ in file)
    assert [key.kid for key in made.keys] == [*wanted]
