"""What a metadata service signs: CMS SignedData in the two forms that clouds send.

Promises: ``azure_form`` is DER with one certificate, no signed attributes and sha256WithRSAEncryption in place of the
digest algorithm; ``aws_form`` is streamed BER without certificates, with signed attributes. Both as recorded from the
real services. ``Document`` gives every part by itself, so that a test can spoil one.
Leaves to others: the content, keys and certificates.
Source: RFC 5652 §3, §5, §11; X.690 §8.1.3.6.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from clouds.authority import Authority, Key

DATA: Final = bytes.fromhex("06092a864886f70d010701")
SIGNED_DATA: Final = bytes.fromhex("06092a864886f70d010702")
CONTENT_TYPE: Final = bytes.fromhex("06092a864886f70d010903")
MESSAGE_DIGEST: Final = bytes.fromhex("06092a864886f70d010904")
SIGNING_TIME: Final = bytes.fromhex("06092a864886f70d010905")
SHA256: Final = bytes.fromhex("0609608648016503040201")
RSA: Final = bytes.fromhex("06092a864886f70d010101")
RSA_SHA256: Final = bytes.fromhex("06092a864886f70d01010b")
ECDSA_SHA256: Final = bytes.fromhex("06082a8648ce3d040302")
NULL: Final = b"\x05\x00"
_END: Final = b"\0\0"
_CHUNK: Final = 1000
_LONG_FORM: Final = 0x80


def tlv(kind: int, *contents: bytes) -> bytes:
    content = b"".join(contents)
    size = len(content)
    if size < _LONG_FORM:
        return bytes((kind, size)) + content
    digits = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((kind, _LONG_FORM | len(digits))) + digits + content


def algorithm(oid: bytes, parameters: bytes = NULL) -> bytes:
    return tlv(0x30, oid, parameters)


def attribute(oid: bytes, *values: bytes) -> bytes:
    return tlv(0x30, oid, tlv(0x31, *values))


@dataclass(frozen=True, kw_only=True)
class Document:
    """The parts of a document; ``der`` and ``streamed`` put them together."""

    content: bytes
    signer: bytes
    digest: bytes
    signature_algorithm: bytes
    signature: bytes = b""
    attributes: tuple[bytes, ...] | None = None
    certificates: tuple[bytes, ...] = ()
    content_type: bytes = DATA
    version: int = 1
    signer_version: int = 1
    announced: tuple[bytes, ...] | None = None
    before_signers: bytes = b""
    signer_tail: bytes = b""
    signers: int = 1
    kind: bytes = SIGNED_DATA
    more: bytes = field(default=b"")

    def signed_bytes(self) -> bytes:
        return self.content if self.attributes is None else tlv(0x31, *self.attributes)

    def signed(self, key: Key) -> Document:
        return replace(self, signature=_sign(key, self.signed_bytes()))

    def der(self) -> bytes:
        inner = tlv(0x30, self.content_type, tlv(0xA0, tlv(0x04, self.content)))
        body = tlv(0x30, self._front(), inner, self._behind())
        return tlv(0x30, self.kind, tlv(0xA0, body)) + self.more

    def streamed(self, chunk: int = _CHUNK) -> bytes:
        """Write it as a streaming library does: six containers of indefinite length."""
        parts = [tlv(0x04, self.content[at : at + chunk]) for at in range(0, len(self.content), chunk)]
        content = b"\xa0\x80\x24\x80" + b"".join(parts) + _END * 2
        inner = b"\x30\x80" + self.content_type + content + _END
        body = b"\x30\x80" + self._front() + inner + self._behind() + _END
        return b"\x30\x80" + self.kind + b"\xa0\x80" + body + _END * 2 + self.more

    def _front(self) -> bytes:
        announced = (self.digest,) if self.announced is None else self.announced
        return tlv(0x02, bytes((self.version,))) + tlv(0x31, *announced)

    def _behind(self) -> bytes:
        certificates = tlv(0xA0, *self.certificates) if self.certificates else b""
        return certificates + self.before_signers + tlv(0x31, *([self._signer()] * self.signers))

    def _signer(self) -> bytes:
        attributes = b"" if self.attributes is None else tlv(0xA0, *self.attributes)
        version = tlv(0x02, bytes((self.signer_version,)))
        signature = tlv(0x04, self.signature)
        parts = (version, self.signer, self.digest, attributes, self.signature_algorithm, signature, self.signer_tail)
        return tlv(0x30, *parts)


def named(certificate: x509.Certificate) -> bytes:
    serial = certificate.serial_number
    digits = serial.to_bytes(serial.bit_length() // 8 + 1, "big")
    return tlv(0x30, certificate.issuer.public_bytes(), tlv(0x02, digits))


def azure_form(content: bytes, signing: Authority, more: Sequence[x509.Certificate] = ()) -> Document:
    return Document(
        content=content,
        signer=named(signing.certificate),
        digest=algorithm(RSA_SHA256),
        signature_algorithm=algorithm(RSA),
        certificates=tuple(each.public_bytes(Encoding.DER) for each in (signing.certificate, *more)),
    ).signed(signing.key)


def aws_form(content: bytes, signing: Authority, now: datetime) -> Document:
    time = tlv(0x17, now.strftime("%y%m%d%H%M%SZ").encode())
    return Document(
        content=content,
        signer=named(signing.certificate),
        digest=algorithm(SHA256),
        signature_algorithm=algorithm(RSA_SHA256),
        attributes=(
            attribute(CONTENT_TYPE, DATA),
            attribute(SIGNING_TIME, time),
            attribute(MESSAGE_DIGEST, tlv(0x04, hashlib.sha256(content).digest())),
        ),
    ).signed(signing.key)


def _sign(key: Key, data: bytes) -> bytes:
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(data, padding.PKCS1v15(), hashes.SHA256())
    return key.sign(data, ec.ECDSA(hashes.SHA256()))
