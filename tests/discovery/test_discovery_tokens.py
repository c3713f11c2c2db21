"""Bootstrap tokens, the signatures and JWTs that they make, and CA pins."""

from __future__ import annotations

import hashlib
import re

import pytest
from core_kit import CLAIMS, HEADER, KEY, TOKEN, certificate, jwt
from core_kit import JWT_NOW as NOW
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import example, given
from hypothesis import strategies as st

from nodeattest_discovery import jws, pins, token
from nodeattest_discovery.jwt import LONGEST, mint, parse, verify
from nodeattest_discovery.pins import CaPin
from nodeattest_discovery.token import BootstrapToken
from nodeattest_parsing.strict_base64 import encode_base64url
from nodeattest_providers import der
from nodeattest_providers.der import Tag
from nodeattest_providers.errors import Denied, Reason

SECRET = "0123456789abcdef"
SOUND = f"abcdef.{SECRET}"
NO_TOKENS = [
    "",
    "abcdef",
    SECRET,
    f"abcdefg.{SECRET}",
    f"abcdef.{SECRET}0",
    f"abcdef:{SECRET}",
    f"abcdef..{SECRET}",
    f"ABCDEF.{SECRET}",
    f"{SOUND}\n",
    f" {SOUND}",
    f"{SOUND}\0",
    f"abcdef.{SECRET[:-1]}\u0663",
    f"abcdef.{SECRET[:-1]}\ud800",
]
"""What is no token, here and to kubeadm."""
texts = st.text(st.sampled_from("abz059AZ.:\n \u0663"), max_size=30) | st.text(max_size=30)


@given(texts)
@example(f"{SOUND}\n")
def test_a_text_is_a_token_exactly_if_the_pattern_of_kubernetes_says_so(text: str) -> None:
    # k8s.io/cluster-bootstrap token/api/types.go, BootstrapTokenPattern; \z of Go is \Z of Python
    pattern = re.compile(r"\A([a-z0-9]{6})\.([a-z0-9]{16})\Z")
    if pattern.match(text):
        assert token.parse(text).reveal() == text
    else:
        with pytest.raises(Denied):
            token.parse(text)


def test_no_representation_shows_a_secret() -> None:
    made = token.parse(SOUND)
    assert SECRET not in f"{made!r} {made} {[made]}"


# Signatures of cluster-info: the bytes of kube-controller-manager


CONTENT = b"Hello from the other side. I must have called a thousand times."
JOSHUA = BootstrapToken("joshua", "my voice is my passcode")
OF_JOSHUA = "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9.."
SIGNATURE = OF_JOSHUA + "VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8"


@pytest.mark.parametrize(
    ("content", "key", "signature"),
    [
        # k8s.io/cluster-bootstrap token/jws/jws_test.go
        (CONTENT, JOSHUA, SIGNATURE),
        (b"", JOSHUA, OF_JOSHUA + "7Ui1ALizW4jXphVUB7xUqC9vLYLL9RZeOFfVLoB7Tgk"),
        (CONTENT, BootstrapToken("joshua", ""), OF_JOSHUA + "UfkqvDGiIFxrMnFseDj9LYJOLNrvjW8aHhF71mvvAs8"),
        # kubernetes pkg/controller/bootstrap/bootstrapsigner_test.go
        (
            b"payload",
            BootstrapToken("abc123", "tokenSecret"),
            "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiYzEyMyJ9..QSxpUG7Q542CirTI2ECPSZjvBOJURUW5a7XqFpNI958",
        ),
    ],
    ids=["content", "no content", "no secret", "signer"],
)
def test_kubernetes_own_vectors_come_out_byte_for_byte(content: bytes, key: BootstrapToken, signature: str) -> None:
    assert jws.sign(content, key) == signature
    assert jws.is_valid(signature, content, key)


@given(st.binary(), st.from_regex(r"[a-z0-9]{6}\.[a-z0-9]{16}", fullmatch=True), st.text())
def test_a_signature_holds_for_what_was_signed_and_any_text_has_an_answer(
    content: bytes, text: str, other: str
) -> None:
    key = token.parse(text)
    signature = jws.sign(content, key)
    assert jws.is_valid(signature, content, key)
    assert jws.is_valid(other, content, key) is (other == signature)


# JWTs of proposal 000


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


# CA pins


@pytest.mark.parametrize("key", [KEY, ed25519.Ed25519PrivateKey.generate(), rsa.generate_private_key(65537, 2048)])
@pytest.mark.parametrize("version", [1, 3])
def test_a_pin_is_the_hash_of_the_key_alone(key: CertificateIssuerPrivateKeyTypes, version: int) -> None:
    spki = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    made = [certificate(key), certificate(key, name="renewed", number=8)]
    if version == 1:
        made = [of_version_1(each) for each in made]
    assert {pins.pin_of(each) for each in made} == {CaPin(hashlib.sha256(spki).digest())}


def of_version_1(made: x509.Certificate) -> x509.Certificate:
    """Write a certificate without version and extensions; its signature does not matter here."""
    signed, *rest = der.elements(made.public_bytes(Encoding.DER), Tag.SEQUENCE, at_most=3)
    fields = der.elements(signed, Tag.SEQUENCE, at_most=10)[1:-1]
    return x509.load_der_x509_certificate(sequence(sequence(*fields), *rest))


def sequence(*content: bytes) -> bytes:
    inside = b"".join(content)
    return (
        bytes([Tag.SEQUENCE, 0x82]) + len(inside).to_bytes(2, "big") + inside
        if len(inside) > 255
        else (bytes([Tag.SEQUENCE, *([0x81] if len(inside) > 127 else []), len(inside)]) + inside)
    )
