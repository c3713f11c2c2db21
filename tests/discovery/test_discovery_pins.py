"""CA pins: read as kubeadm reads them, over the very bytes of a key, and worth one certificate each."""

from __future__ import annotations

import hashlib

import pytest
from core_kit import KEY, certificate
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nodeattest_discovery import pins
from nodeattest_discovery.pins import CaPin
from nodeattest_providers import der
from nodeattest_providers.der import Tag


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
