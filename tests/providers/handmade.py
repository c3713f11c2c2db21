"""PKCS#10 requests written DER element by DER element, since no library writes most of what an attacker may send."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from nodeattest_providers.csr import PrivateKey
from nodeattest_providers.names import PROVIDER_ID_OID

P256 = ec.generate_private_key(ec.SECP256R1())
P384 = ec.generate_private_key(ec.SECP384R1())
RSA = rsa.generate_private_key(65537, 2048)


# DER, written by hand so that anything can be written.
def tlv(tag: int, *content: bytes) -> bytes:
    body = b"".join(content)
    if len(body) < 128:
        return bytes([tag, len(body)]) + body
    size = len(body).to_bytes((len(body).bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(size)]) + size + body


def seq(*content: bytes) -> bytes:
    return tlv(0x30, *content)


def integer(value: int) -> bytes:
    return tlv(2, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def oid(text: str) -> bytes:
    encoded = x509.NameAttribute(x509.ObjectIdentifier(text), "x", _validate=False)
    return x509.Name([encoded]).public_bytes()[4:][2 : -len(tlv(0x0C, b"x"))]


def utf8(text: str) -> bytes:
    return tlv(0x0C, text.encode())


def attribute(kind: str, value: bytes) -> bytes:
    return seq(oid(kind), value)


def rdn(*attributes: bytes) -> bytes:
    return tlv(0x31, *attributes)


CN, ORG, OU, SERIAL_NUMBER, X509_UID = "2.5.4.3", "2.5.4.10", "2.5.4.11", "2.5.4.5", "1.3.6.1.4.1.57683.2"
NODES = rdn(attribute(ORG, utf8("system:nodes")))
NODE = rdn(attribute(CN, utf8("system:node:n-0")))
EXTENSION_REQUEST = "1.2.840.113549.1.9.14"
SAN, BASIC_CONSTRAINTS, KEY_USAGE, EXT_KEY_USAGE = "2.5.29.17", "2.5.29.19", "2.5.29.15", "2.5.29.37"
NAME_CONSTRAINTS = "2.5.29.30"
TRUE = bytes.fromhex("0101ff")
FALSE = bytes.fromhex("010100")
ECDSA_SHA256 = bytes.fromhex("300a06082a8648ce3d040302")
RSA_SHA256 = bytes.fromhex("300d06092a864886f70d01010b0500")


def extension(kind: str, value: bytes, critical: bytes = b"") -> bytes:
    return seq(oid(kind), critical, tlv(4, value))


PROVIDER_ID = extension(PROVIDER_ID_OID, utf8("aws:///eu/i-1"))


def extension_request(*extensions: bytes) -> bytes:
    return attribute(EXTENSION_REQUEST, tlv(0x31, seq(*extensions)))


def spki_of(key: PrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def sign_ecdsa(data: bytes) -> bytes:
    return P256.sign(data, ec.ECDSA(hashes.SHA256()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A request of parts; each default is what is allowed."""

    version: bytes = b"\x02\x01\x00"
    subject: tuple[bytes, ...] = (NODES, NODE)
    spki: bytes = spki_of(P256)
    attributes: tuple[bytes, ...] = (extension_request(PROVIDER_ID),)
    algorithm: bytes = ECDSA_SHA256
    sign: Callable[[bytes], bytes] = sign_ecdsa

    def der(self) -> bytes:
        info = seq(self.version, seq(*self.subject), self.spki, tlv(0xA0, *self.attributes))
        return seq(info, self.algorithm, tlv(3, b"\0", self.sign(info)))


def extended(*extensions: bytes) -> Made:
    return Made(attributes=(extension_request(*extensions),))


def named(common_name: str) -> Made:
    return Made(subject=(NODES, rdn(attribute(CN, utf8(common_name)))))


def with_san(*names: bytes) -> Made:
    return extended(PROVIDER_ID, extension(SAN, seq(*names)))


def with_key(spki: bytes) -> Made:
    return Made(spki=spki)


def rsa_spki(modulus: int, exponent: int = 65537) -> bytes:
    key = seq(integer(modulus), integer(exponent))
    return seq(seq(oid("1.2.840.113549.1.1.1"), b"\x05\x00"), tlv(3, b"\0", key))
