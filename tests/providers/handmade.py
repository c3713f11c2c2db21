"""PKCS#10 requests written DER element by DER element, since no library writes most of what an attacker may send."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from nodeattest_providers.identifiers import PROVIDER_ID_OID
from nodeattest_providers.keys import PrivateKey

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


def generated_spki(curve: ec.EllipticCurve, *, point: str = "uncompressed") -> bytes:
    key = ec.generate_private_key(curve).public_key()
    whole = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    if point == "uncompressed":
        return whole
    packed = key.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint)
    return seq(whole[2:23], tlv(3, b"\0", packed))


def explicit_p256() -> bytes:
    """P-256 by its parameters instead of its name (RFC 3279 §2.3.5)."""
    prime = 2**256 - 2**224 + 2**192 + 2**96 - 1
    curve = seq(tlv(4, (prime - 3).to_bytes(32, "big")), tlv(4, b"\x5a" * 32))
    field = seq(oid("1.2.840.10045.1.1"), integer(prime))
    parameters = seq(integer(1), field, curve, tlv(4, b"\x04" * 65), integer(2**256 - 1), integer(1))
    return seq(seq(oid("1.2.840.10045.2.1"), parameters), tlv(3, b"\0", spki_of(P256)[26:]))


def roca_modulus() -> int:
    """A number of the fingerprint: a power of 65537 modulo every small prime, 2048 bits, odd."""
    primorial = 1
    for number in range(3, 168):
        if all(number % divisor for divisor in range(2, number)):
            primorial *= number
    modulus = pow(65537, 12345, primorial) + ((1 << 2047) // primorial + 1) * primorial
    return modulus if modulus % 2 else modulus + primorial


def sign_with(key: PrivateKey, algorithm: hashes.HashAlgorithm) -> Callable[[bytes], bytes]:
    def sign(data: bytes) -> bytes:
        if isinstance(key, rsa.RSAPrivateKey):
            return key.sign(data, padding.PKCS1v15(), algorithm)
        return key.sign(data, ec.ECDSA(algorithm))

    return sign


def sign_pss(data: bytes) -> bytes:
    return RSA.sign(data, padding.PSS(padding.MGF1(hashes.SHA256()), 32), hashes.SHA256())


def with_bad_signature() -> bytes:
    der = bytearray(Made().der())
    der[-1] ^= 1
    return bytes(der)


def with_unused_bits(*, last_bit: int) -> bytes:
    """A good signature whose BIT STRING says that its last bit is none: readers that drop the bit find it good."""
    while (der := bytearray(Made().der()))[-1] & 1 != last_bit:
        pass
    at = next(at for at in range(len(der) - 80, len(der)) if der[at] == 3 and der[at + 1] == len(der) - at - 2)
    assert der[at + 2] == 0
    der[at + 2] = 1
    return bytes(der)


def signed_by_another_key() -> bytes:
    return Made(sign=sign_with(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())).der()


def general(number: int, *content: bytes, constructed: bool = False) -> bytes:
    return tlv((0xA0 if constructed else 0x80) | number, *content)


OTHER_NAME = general(0, oid("1.3.6.1.4.1.311.20.2.3"), tlv(0xA0, utf8("victim")), constructed=True)
DIRECTORY_NAME = general(4, seq(NODE), constructed=True)
VICTIM = rdn(attribute(CN, utf8("system:node:victim")))
MASTERS = rdn(attribute(ORG, utf8("system:masters")))
CA_TRUE = extension(BASIC_CONSTRAINTS, seq(TRUE), TRUE)
DNS = general(2, b"n-0")
