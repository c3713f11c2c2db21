"""CA pins: read as kubeadm reads them, over the very bytes of a key, and worth one certificate each."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
from core_kit import CA, KEY, OTHER_CA, certificate, golden
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nodeattest_discovery import clusterinfo
from nodeattest_discovery import tls as pins
from nodeattest_discovery.tls import CaPin
from nodeattest_providers import der
from nodeattest_providers.der import Tag
from nodeattest_providers.errors import Denied, Reason

DIGITS = "0123456789abcdef" * 4
SOUND = f"sha256:{DIGITS}"
NO_PINS = [
    "",
    ":",
    "sha256",
    "sha256:",
    DIGITS,
    f":{DIGITS}",
    f"sha256:{DIGITS[1:]}",
    f"sha256:{DIGITS}0",
    f"sha256:{DIGITS}00",
    f"sha256:{DIGITS}\n",
    f"sha256:{DIGITS} ",
    f" sha256:{DIGITS}",
    f"sha256: {DIGITS}",
    f"sha256:{DIGITS}:",
    f"sha256:{DIGITS}:{DIGITS}",
    f"sha256:{DIGITS},sha256:{DIGITS}",
    f"sha256:sha256:{DIGITS}",
    f"sha256:0x{DIGITS[2:]}",
    f"sha256:{DIGITS[:-1]}g",
    f"sha256:{DIGITS[:-1]}\u0665",
    f"sha-256:{DIGITS}",
    f"sha1:{DIGITS[:40]}",
    f"sha512:{DIGITS * 2}",
    f"sha512:{DIGITS}",
    f"\u017fha256:{DIGITS}",
    f"sha256;{DIGITS}",
    f"sha256={DIGITS}",
    ":".join(DIGITS[at : at + 2] for at in range(0, 64, 2)),
]


@pytest.mark.parametrize("text", NO_PINS, ids=[ascii(text)[:30] for text in NO_PINS])
def test_what_is_no_pin_is_denied(text: str) -> None:
    with pytest.raises(Denied) as raised:
        pins.parse(text)
    assert raised.value.reason is Reason.CA_PIN_MALFORMED


def test_the_pin_of_a_real_cluster_is_the_one_that_openssl_tells() -> None:
    # openssl x509 -pubkey -noout | openssl pkey -pubin -outform der | openssl dgst -sha256, over its certificate
    info = clusterinfo.parse(golden()["kubeconfig"])
    told = "sha256:4c98b015c6fbe20a237ba402c10f08a847294b6a06167e36fc2fb1417ce85ebf"
    assert [str(pins.pin_of(ca)) for ca in info.ca_certificates] == [told]


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


@pytest.mark.parametrize("bundle", [[CA, OTHER_CA], [OTHER_CA, CA], [OTHER_CA, CA, OTHER_CA]])
def test_a_bundle_is_worth_its_pinned_part(bundle: Sequence[x509.Certificate]) -> None:
    assert pins.select_pinned(bundle, [pins.pin_of(CA)]) == (CA,)


@pytest.mark.parametrize(
    ("bundle", "wanted"),
    [([OTHER_CA], [pins.pin_of(CA)]), ([], [pins.pin_of(CA)]), ([CA], []), ([], []), ([CA], [CaPin(bytes(32))])],
    ids=["another CA", "no CA", "no pin", "neither", "another pin"],
)
def test_a_bundle_without_a_pinned_ca_is_denied(bundle: list[x509.Certificate], wanted: list[CaPin]) -> None:
    with pytest.raises(Denied) as raised:
        pins.select_pinned(bundle, wanted)
    assert raised.value.reason is Reason.CA_NOT_PINNED
