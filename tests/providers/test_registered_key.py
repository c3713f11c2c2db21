"""Endorsement keys as operators write them down: each form gives one fingerprint, anything else is refused."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID
from handmade import roca_modulus
from hypothesis import given
from hypothesis import strategies as st
from tpm_world import EkKey, EkKind, new_key, public_of
from worlds import denied_for

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.keys import ENDORSEMENT_FINGERPRINT, endorsement_fingerprint
from nodeattest_providers.tpm.endorsement_key import MAX_KEY_TEXT, read_registered_key
from nodeattest_providers.tpm.structures import sized

KINDS: tuple[EkKind, ...] = ("rsa2048", "ecc-p256", "ecc-p384")
KEYS: dict[EkKind, EkKey] = {kind: new_key(kind) for kind in KINDS}


def spki(key: EkKey, form: Encoding = Encoding.DER) -> bytes:
    return key.public_key().public_bytes(form, PublicFormat.SubjectPublicKeyInfo)


def certificate(key: EkKey) -> x509.Certificate:
    issuer, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "maker")])
    builder = x509.CertificateBuilder(name, x509.Name([]), key.public_key(), 1, now, now + timedelta(days=1))
    return builder.sign(issuer, hashes.SHA256())


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def forms(kind: EkKind) -> dict[str, str]:
    key = KEYS[kind]
    maker = certificate(key)
    return {
        "fingerprint": endorsement_fingerprint(key.public_key()),
        "public key in PEM": spki(key, Encoding.PEM).decode(),
        "public key in PEM of Windows": spki(key, Encoding.PEM).decode().replace("\n", "\r\n"),
        "public key in DER": encoded(spki(key)),
        "certificate in PEM": maker.public_bytes(Encoding.PEM).decode(),
        "certificate in DER": encoded(maker.public_bytes(Encoding.DER)),
        "TPMT_PUBLIC": encoded(public_of(kind, key)),
        "TPM2B_PUBLIC": encoded(sized(public_of(kind, key))),
        "wrapped base64": base64.encodebytes(public_of(kind, key)).decode(),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_form_of_a_key_has_the_same_fingerprint(kind: EkKind) -> None:
    expected = endorsement_fingerprint(KEYS[kind].public_key())
    assert {name: read_registered_key(text) for name, text in forms(kind).items()} == dict.fromkeys(
        forms(kind), expected
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_fingerprint_is_what_openssl_and_sha256sum_print(kind: EkKind) -> None:
    pem = spki(KEYS[kind], Encoding.PEM)
    program = shutil.which("openssl")
    assert program
    der = subprocess.run([program, "pkey", "-pubin", "-outform", "DER"], input=pem, capture_output=True, check=True)
    assert endorsement_fingerprint(KEYS[kind].public_key()) == f"sha256:{hashlib.sha256(der.stdout).hexdigest()}"


P256 = KEYS["ecc-p256"]
COMPRESSED = bytes.fromhex("3039301306072a8648ce3d020106082a8648ce3d030107032200") + P256.public_key().public_bytes(
    Encoding.X962, PublicFormat.CompressedPoint
)
WEAK = rsa.RSAPublicNumbers(65537, roca_modulus()).public_key()
WRONG: list[tuple[str, str, str]] = [
    ("words", "see the delivery note", "base64 of a certificate"),
    ("upper-case hex", "sha256:" + "AB" * 32, "lower-case hex"),
    ("a short fingerprint", "sha256:" + "ab" * 31, "64 lower-case hex"),
    ("an example's zeros", "sha256:" + "0" * 64, "zeros"),
    ("hex of a fingerprint without its algorithm", "ab" * 32, "TCG template"),
    ("two PEM blocks", spki(P256, Encoding.PEM).decode() * 2, "one PEM block"),
    ("PEM with another end", spki(P256, Encoding.PEM).decode().replace("END PUBLIC", "END EC"), "one PEM block"),
    ("a certificate under a public key's label", "-----BEGIN PUBLIC KEY-----\nMAA=\n-----END PUBLIC KEY-----", "read"),
    ("a compressed point", encoded(COMPRESSED), "cannot"),
    ("an Ed25519 key", encoded(bytes.fromhex("302a300506032b6570032100") + bytes(31) + b"\1"), "RSA 2048"),
    ("RSA of 3072 bits", encoded(spki(rsa.generate_private_key(65537, 3072))), "RSA 2048"),
    ("ROCA", encoded(WEAK.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)), "CVE-2017-15361"),
    ("a public area of no template", encoded(b"\x00\x23\x00\x0b" + bytes(80)), "TCG template"),
    ("a size that is not the area's", encoded(b"\x01\x00" + public_of("ecc-p256", P256)), "TCG template"),
    ("too long", "A" * (MAX_KEY_TEXT + 1), f"at most {MAX_KEY_TEXT}"),
]


@pytest.mark.parametrize(("text", "words"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_a_text_that_is_no_endorsement_key_is_denied_with_a_remedy(text: str, words: str) -> None:
    with denied_for(Reason.ENDORSEMENT_KEY_MALFORMED) as denied:
        read_registered_key(text)
    assert words in str(denied.value)
    assert "endorsementFingerprint" in denied.value.remedy


@given(st.text(max_size=200) | st.binary(max_size=200).map(encoded))
def test_any_text_gives_a_fingerprint_or_denied(text: str) -> None:
    with suppress(Denied):
        assert ENDORSEMENT_FINGERPRINT.fullmatch(read_registered_key(text))
