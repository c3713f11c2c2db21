"""CMS SignedData: what a cloud's metadata service signs, read strictly enough to be verified by one signature.

DER, one content, one signer, RSASSA-PKCS1-v1_5 with SHA-2. A signature over signed attributes is also one over a
content of the same bytes without attributes (RFC 5652 §5.4), so a content that could be attributes is refused.
Source: RFC 5652 §3, §5; RFC 3370 §3.2, RFC 5754 §3.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from nodeattest_providers.certificate_chain import X509_ERRORS
from nodeattest_providers.der import NotDer, Oid, Tag, elements, integer, octets, oid, tag_of
from nodeattest_providers.errors import Denied, Reason

MAX_SIZE: Final = 32 * 1024
"""Bytes of a document; Azure's have about 4 KiB with one certificate, AWS's 1 KiB."""
MAX_CERTIFICATES: Final = 8
"""Embedded certificates; Azure embeds one, AWS none."""
MAX_CERTIFICATE: Final = 8 * 1024
_MIN_BITS: Final = 2048
_MAX_ATTRIBUTES: Final = 8
"""Signed attributes; AWS sends four at most."""
_MAX_VALUE: Final = 1024
"""Bytes of a signed attribute that is not parsed, and of an issuer's name."""
_MAX_SERIAL: Final = 24
"""Bytes of a serial number with its tag and length; RFC 5280 §4.1.2.2 allows 20."""

_NULL: Final = b"\x05\x00"
_CERTIFICATES: Final = 0xA0
"""[0] IMPLICIT CertificateSet (RFC 5652 §5.1)."""
_DATA: Final[Oid] = (1, 2, 840, 113549, 1, 7, 1)
_SIGNED_DATA: Final[Oid] = (1, 2, 840, 113549, 1, 7, 2)
_CONTENT_TYPE: Final[Oid] = (1, 2, 840, 113549, 1, 9, 3)
_MESSAGE_DIGEST: Final[Oid] = (1, 2, 840, 113549, 1, 9, 4)
_HASHES: Final[dict[str, hashes.HashAlgorithm]] = {
    "sha256": hashes.SHA256(),
    "sha384": hashes.SHA384(),
    "sha512": hashes.SHA512(),
}
_DIGESTS: Final[dict[Oid, str]] = {
    (2, 16, 840, 1, 101, 3, 4, 2, 1): "sha256",
    (2, 16, 840, 1, 101, 3, 4, 2, 2): "sha384",
    (2, 16, 840, 1, 101, 3, 4, 2, 3): "sha512",
    (1, 2, 840, 113549, 1, 1, 11): "sha256",  # Azure's spelling
}
_SIGNATURES: Final[dict[Oid, frozenset[str]]] = {
    (1, 2, 840, 113549, 1, 1, 1): frozenset(_HASHES),  # rsaEncryption: the digest algorithm decides
    (1, 2, 840, 113549, 1, 1, 11): frozenset({"sha256"}),
    (1, 2, 840, 113549, 1, 1, 12): frozenset({"sha384"}),
    (1, 2, 840, 113549, 1, 1, 13): frozenset({"sha512"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """Who says to have signed, and how; a claim until ``SignedData.signed_by`` holds."""

    issuer: bytes
    serial: int
    digest: str
    """``sha256``, ``sha384`` or ``sha512``."""
    signed_attributes: bytes | None = field(repr=False)
    """DER of the SET that was signed in place of the content; None where the content itself was."""
    message_digest: bytes | None = field(repr=False)
    signature: bytes = field(repr=False)

    def is_named_by(self, certificate: x509.Certificate) -> bool:
        try:
            return certificate.serial_number == self.serial and certificate.issuer.public_bytes() == self.issuer
        except X509_ERRORS:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedData:
    """A well-formed document; nothing about it is proved."""

    content: bytes = field(repr=False)
    certificates: tuple[x509.Certificate, ...] = field(repr=False)
    """What was embedded, in its order; untrusted."""
    signer: Signer

    def signed_by(self, certificate: x509.Certificate) -> bool:
        """Return whether this certificate's key signed this content.

        1. The digest of the content is the signed one, where attributes were signed (RFC 5652 §5.4).
        2. The key is an RSA key, and not a weak one.
        3. The signature is right.
        """
        signer = self.signer
        # 1
        if signer.message_digest is not None:
            digest = hashlib.new(signer.digest, self.content).digest()
            if not hmac.compare_digest(digest, signer.message_digest):
                return False
        signed = self.content if signer.signed_attributes is None else signer.signed_attributes
        try:
            # 2
            key = certificate.public_key()
            if not isinstance(key, rsa.RSAPublicKey) or key.key_size < _MIN_BITS:
                return False
            # 3
            key.verify(signer.signature, signed, padding.PKCS1v15(), _HASHES[signer.digest])
        except (InvalidSignature, *X509_ERRORS):
            return False
        return True


def parse(der: bytes, *, limit: int = MAX_SIZE) -> SignedData:
    """Read a document of at most ``limit`` bytes, which is a ContentInfo (RFC 5652 §3); anything else is ``Denied``."""
    if len(der) > limit:
        raise _malformed(f"{len(der)} bytes, more than {limit}")
    try:
        return _signed_data(_wrapped(der, _SIGNED_DATA))
    except NotDer as error:
        raise _malformed(str(error)) from None


def _wrapped(der: bytes, kind: Oid) -> bytes:
    """Read ContentInfo or EncapsulatedContentInfo (RFC 5652 §3, §5.2) of this kind; a detached content is none."""
    found, wrapped = _exactly(2, elements(der, Tag.SEQUENCE, at_most=2))
    if oid(found) != kind:
        raise NotDer("a content of another kind")
    return _only(elements(wrapped, Tag.CONTENT, at_most=1))


def _signed_data(der: bytes) -> SignedData:
    """Read SignedData (RFC 5652 §5.1), of version 1: plain data, whose signer is not named by a key identifier."""
    version, algorithms, inner, *behind = _at_least(4, elements(der, Tag.SEQUENCE, at_most=5))
    digest = _digest(_only(elements(algorithms, Tag.SET, at_most=1)))
    content = octets(_wrapped(inner, _DATA), Tag.OCTET_STRING)
    certificates = _certificates(behind[0]) if len(behind) > 1 else ()
    signer = _signer(_only(elements(behind[-1], Tag.SET, at_most=1)), content)
    if integer(version) != 1:
        raise NotDer("a version that does not go with the signer")
    if signer.digest != digest:
        raise NotDer("a digest algorithm that is not announced")
    return SignedData(content=content, certificates=certificates, signer=signer)


def _certificates(der: bytes) -> tuple[x509.Certificate, ...]:
    """Read CertificateSet; nothing but X.509 certificates in it. A list of revocations in its place is no [0]."""
    if tag_of(der) != _CERTIFICATES:
        raise NotDer("something else than certificates before the signer")
    return tuple(_certificate(each) for each in elements(der, Tag.CONTENT, at_most=MAX_CERTIFICATES))


def _certificate(der: bytes) -> x509.Certificate:
    if tag_of(der) != Tag.SEQUENCE or len(der) > MAX_CERTIFICATE:
        raise NotDer("an embedded certificate of another kind or size")
    try:
        certificate = x509.load_der_x509_certificate(der)
    except X509_ERRORS:
        raise NotDer("an embedded certificate that cannot be read") from None
    if certificate.serial_number <= 0:  # RFC 5280 §4.1.2.2; the library only warns, until it raises ValueError
        raise NotDer("an embedded certificate whose serial number is not positive")
    return certificate


def _signer(der: bytes, content: bytes) -> Signer:
    """Read SignerInfo (RFC 5652 §5.3), of version 1: issuer and serial number, and no unsigned attributes."""
    version, named, algorithm, *rest = _at_least(5, elements(der, Tag.SEQUENCE, at_most=6))
    if integer(version) != 1:
        raise NotDer("a signer's version that does not go with its name")
    issuer, serial = _exactly(2, elements(named, Tag.SEQUENCE, at_most=2))
    if tag_of(issuer) != Tag.SEQUENCE or len(issuer) > _MAX_VALUE or len(serial) > _MAX_SERIAL:
        raise NotDer("a signer's issuer or serial number that none has")
    digest = _digest(algorithm)
    attributes = message_digest = None
    if tag_of(rest[0]) == Tag.ATTRIBUTES:
        attributes, message_digest = _attributes(rest[0])
        rest = rest[1:]
    elif _could_be_attributes(content):
        raise NotDer("a content that could be signed attributes")
    signature_algorithm, signature = _exactly(2, tuple(rest))
    if digest not in _SIGNATURES.get(_algorithm(signature_algorithm), ()):
        raise NotDer("a signature algorithm other than RSA PKCS#1 v1.5 with the signer's digest")
    return Signer(
        issuer=issuer,
        serial=integer(serial),
        digest=digest,
        signed_attributes=attributes,
        message_digest=message_digest,
        signature=octets(signature, Tag.OCTET_STRING),
    )


def _attributes(der: bytes) -> tuple[bytes, bytes]:
    """Read SignedAttributes (RFC 5652 §5.3, §11.1, §11.2); returns what was signed, and the digest in it."""
    found = elements(der, Tag.ATTRIBUTES, at_most=_MAX_ATTRIBUTES)
    if list(found) != sorted(found):
        raise NotDer("signed attributes out of order")  # X.690 §11.6: they are signed as DER
    values: dict[Oid, bytes] = {}
    for attribute in found:
        kind, value = _exactly(2, elements(attribute, Tag.SEQUENCE, at_most=2))
        if len(value) > _MAX_VALUE:
            raise NotDer("a signed attribute larger than any in use")
        if oid(kind) in values:
            raise NotDer("a signed attribute twice")
        values[oid(kind)] = _only(elements(value, Tag.SET, at_most=1))
    if _CONTENT_TYPE not in values or _MESSAGE_DIGEST not in values:
        raise NotDer("signed attributes without content type and message digest")
    if oid(values[_CONTENT_TYPE]) != _DATA:
        raise NotDer("a signed content type that is not the content's")
    signed = bytes((Tag.SET,)) + der[1:]  # §5.4: signed with the tag of a SET, not with [0]
    return signed, octets(values[_MESSAGE_DIGEST], Tag.OCTET_STRING)


def _could_be_attributes(content: bytes) -> bool:
    try:
        elements(content, Tag.SET, at_most=len(content))
    except NotDer:
        return False
    return True


def _digest(der: bytes) -> str:
    name = _DIGESTS.get(_algorithm(der))
    if name is None:
        raise NotDer("a digest algorithm other than SHA-256, SHA-384 and SHA-512")
    return name


def _algorithm(der: bytes) -> Oid:
    """Read AlgorithmIdentifier; its parameters are NULL or absent (RFC 5754 §2, §3)."""
    kind, *parameters = _at_least(1, elements(der, Tag.SEQUENCE, at_most=2))
    if any(each != _NULL for each in parameters):
        raise NotDer("an algorithm with parameters")
    return oid(kind)


def _only(found: tuple[bytes, ...]) -> bytes:
    return _exactly(1, found)[0]


def _exactly(count: int, found: tuple[bytes, ...]) -> tuple[bytes, ...]:
    if len(found) != count:
        raise NotDer(f"{len(found)} elements in place of {count}")
    return found


def _at_least(count: int, found: tuple[bytes, ...]) -> tuple[bytes, ...]:
    if len(found) < count:
        raise NotDer(f"{len(found)} elements in place of {count}")
    return found


def _malformed(got: str) -> Denied:
    return Denied(
        Reason.PLATFORM_DOCUMENT_MALFORMED,
        expected="a signed document as the platform's metadata service gives it",
        got=got,
        remedy="send the document of this machine's metadata service unchanged",
    )
