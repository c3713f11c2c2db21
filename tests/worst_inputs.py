"""The worst inputs known: for each parser, what takes the most CPU or memory among inputs of its size limit.

Add an input here when one is found that costs more than it should.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from clouds import cms
from fuzz.target import NOW, TPM_KEY, USAGES
from nodeattest_parsing.strict_base64 import encode_base64url
from nodeattest_parsing.values import JsonObject

_SLOW_BITS: Final = 3072
"""OpenSSL bounds the exponent of longer RSA keys (OPENSSL_RSA_SMALL_MODULUS_BITS)."""


def to_json(value: object) -> bytes:
    """Write JSON without blanks."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def filled(before: bytes, unit: bytes, after: bytes, size: int, most: int | None = None) -> bytes:
    """Repeat a unit between two ends, to at most so many bytes and so many times."""
    count = (size - len(before) - len(after)) // len(unit)
    return before + unit * (count if most is None else min(count, most)) + after


def _put(document: object, size: int, unit: str, *, most: int | None = None) -> bytes:
    """Put units where a document has the text ``@@``."""
    before, _, after = to_json(document).partition(b'"@@"')
    inside = filled(b"", unit.encode(), b"", size - len(before) - len(after), most)
    return before + inside[:-1] + after


def json_lists(size: int, wrap: object = "@@", *, most: int | None = None) -> bytes:
    """Fill in empty lists: three bytes each, and seventy in memory."""
    return _put({"x": ["@@"], "o": wrap} if wrap == "@@" else wrap, size, "[],", most=most)


def json_numbers(size: int, wrap: object, *, most: int | None = None) -> bytes:
    """Fill in numbers that are converted: the longest that fits."""
    return _put(wrap, size, "-9223372036854775808,", most=most)


def json_nested(size: int, depth: int = 400) -> bytes:
    """Write levels, again and again."""
    return filled(b'{"x":[', b"[" * depth + b"]" * depth + b",", b"0]}", size)


def json_escapes(size: int, wrap: object) -> bytes:
    """Fill in one text of escapes, surrogates in pairs among them."""
    before, _, after = to_json(wrap).partition(b'"@@"')
    return filled(before + b'"', rb"\ud83d\ude00", b'"' + after, size)


def yaml_flow(size: int, most: int) -> bytes:
    """Write a flow sequence of empty flow mappings."""
    return filled(b"a: [", b"{},", b"]\n", size, most)


def yaml_keys(size: int, most: int) -> bytes:
    """Write a mapping of many keys."""
    keys = b"".join(b"k%d: v\n" % number for number in range(most // 2 - 2))
    return keys[: keys.rfind(b"\n", 0, size) + 1]


def yaml_lines(size: int) -> bytes:
    """Write one plain scalar of many lines."""
    return filled(b"a: b\n", b" c\n", b"", size)


def pem_without_end(size: int) -> bytes:
    """Write blocks that begin and never end: each is looked through to the end of the file."""
    return filled(b"", b"-----BEGIN A-----\n", b"", size)


@cache
def looping_chain(count: int = 4) -> tuple[bytes, ...]:
    """Return a leaf for the endorsement key and self-issued P-521 certificates of one name."""
    keys = [ec.derive_private_key(1000 + number, ec.SECP521R1()) for number in range(count)]
    return _chain([(key.public_key(), key) for key in keys])


@cache
def slow_exponents(count: int = 4) -> tuple[bytes, ...]:
    """Return the same with RSA keys of 3,072 bits whose public exponent is as long: each check costs a private one."""
    signer = rsa.generate_private_key(65537, _SLOW_BITS)  # what it signs has the right form; no signature is right
    modulus = (1 << _SLOW_BITS) - 1
    keys = [rsa.RSAPublicNumbers(modulus - 4 - 2 * number, modulus).public_key() for number in range(count)]
    return _chain([(key, signer) for key in keys])


_Key = rsa.RSAPublicKey | ec.EllipticCurvePublicKey
_Signer = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


def _chain(keys: Sequence[tuple[_Key, _Signer]]) -> tuple[bytes, ...]:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loop")])
    usages = x509.KeyUsage(**{each: each in {"key_cert_sign", "key_agreement"} for each in USAGES})
    made: list[bytes] = []
    leaf = TPM_KEY.public_key(), keys[0][1]
    for number, (public, signer) in enumerate((leaf, *keys)):
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(public)
        builder = builder.serial_number(number + 1).not_valid_before(NOW - timedelta(days=9))
        builder = builder.not_valid_after(NOW + timedelta(days=9)).add_extension(usages, critical=True)
        is_ca = number > 0
        builder = builder.add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        if not is_ca:
            usage = x509.ExtendedKeyUsage([x509.ObjectIdentifier("2.23.133.8.1")])
            builder = builder.add_extension(usage, critical=False)
        is_elliptic = isinstance(signer, ec.EllipticCurvePrivateKey)
        signed = builder.sign(signer, hashes.SHA512(), ecdsa_deterministic=True if is_elliptic else None)
        made.append(signed.public_bytes(Encoding.DER))
    return tuple(made)


def jwks(kind: str, count: int, size: int) -> bytes:
    """Write a key set of many keys of one kind: ``P-521``, ``RSA`` of 8,192 bits, or of one kid."""
    if kind == "P-521":
        numbers = [
            ec.derive_private_key(number + 1, ec.SECP521R1()).public_key().public_numbers() for number in range(16)
        ]
        members = [
            {"kty": "EC", "crv": "P-521", "x": _octets(each.x, 66), "y": _octets(each.y, 66)} for each in numbers
        ]
    else:
        members = [
            {"kty": "RSA", "n": _octets((1 << 8192) - 2 * number - 1, 1024), "e": "AQAB"} for number in range(16)
        ]
    keys: list[bytes] = []
    left = size - 16
    for number in range(count):
        key = to_json({**members[number % 16], "kid": f"{number}"})
        left -= len(key) + 1
        if left < 0:
            break
        keys.append(key)
    return b'{"keys":[' + b",".join(keys) + b"]}"


def _octets(number: int, size: int) -> str:
    return encode_base64url(number.to_bytes(size))


def event_log(size: int, events: int) -> bytes:
    """Write a log of four banks and as many events as it may have, of one PCR."""
    algorithms = {0x04: 20, 0x0B: 32, 0x0C: 48, 0x0D: 64}
    listed = b"".join(_little(each, 2) + _little(length, 2) for each, length in algorithms.items())
    spec = b"Spec ID Event03\0" + bytes(4) + bytes((0, 2, 0, 2)) + _little(len(algorithms), 4) + listed + b"\0"
    head = bytes(4) + _little(3, 4) + bytes(20) + _little(len(spec), 4) + spec
    kept = {0x0B: 32}
    digests = b"".join(_little(each, 2) + b"\1" * length for each, length in kept.items())
    event = _little(4, 4) + _little(13, 4) + _little(len(kept), 4) + digests + _little(0, 4)
    return filled(head, event, b"", size, events - 1)


def _little(number: int, size: int) -> bytes:
    return number.to_bytes(size, "little")


def signed_document(certificates: Sequence[bytes], size: int) -> bytes:
    """Write a SignedData with these certificates, whose first one's key is named as the signer's."""
    issuer = x509.load_der_x509_certificate(certificates[0])
    document = cms.Document(
        content=b"{}",
        signer=cms.named(issuer),
        digest=cms.algorithm(cms.SHA256),
        signature_algorithm=cms.algorithm(cms.ECDSA_SHA256, b""),
        certificates=tuple(certificates),
        signature=b"\x30\x06\x02\x01\x01\x02\x01\x01",
    )
    return document.der()[:size]


_REVIEW: Final[JsonObject] = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "u",
        "operation": "UPDATE",
        "kind": {"group": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfig", "version": "v1beta1"},
        "oldObject": {"apiVersion": "bootstrap.cluster.x-k8s.io/v1beta1", "spec": {"a": {}}},
        "object": {"apiVersion": "bootstrap.cluster.x-k8s.io/v1beta1", "spec": {"a": ["@@"]}},
    },
}


def review_of_different_objects(size: int) -> bytes:
    """Write an admission review of two objects of as many keys as may be, all different."""
    keys: dict[str, JsonObject] = {f"{number:x}": {} for number in range(15_000)}
    review = to_json(_REVIEW).replace(b'{"a":["@@"]}', to_json(keys))
    return review.replace(b'{"a":{}}', to_json(dict.fromkeys(keys, 1)))[: size + 1]


def review_of_a_long_key(size: int) -> bytes:
    """Write the same with one key of characters that a JSON pointer escapes."""
    before, spec, after = review_of_different_objects(size).rpartition(b'"spec":{')
    return before + spec + b'"' + b"/" * (size - len(before + spec + after) - 5) + b'":1,' + after


def review_of_lists(size: int) -> bytes:
    """Write an admission review of as many lists as may be."""
    return json_lists(size, _REVIEW, most=24_000)
