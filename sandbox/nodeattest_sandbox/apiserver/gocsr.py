"""PKCS#10 as Go's crypto/x509 reads it: what kube-apiserver stores, and what it does not.

Promises: for one certificate request, the verdict of ``x509.ParseCertificateRequest`` and ``CheckSignature``, as far as
attackers care: Go overlooks the version, the order of SETs, parameters of ECDSA and values of attributes behind the
first, which stricter readers refuse; it knows fewer curves, and shifts a signature that has unused bits. A sandbox
that refused more than the real server would hide those requests from the program that must refuse them.
Source: go/src/crypto/x509/x509.go (parseCertificateRequest, parseCSRExtensions, checkSignature), encoding/asn1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

__all__ = ["problem_of"]

_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_INTEGER: Final = 0x02
_BIT_STRING: Final = 0x03
_OCTET_STRING: Final = 0x04
_ATTRIBUTES: Final = 0xA0
_TEXT_NAMES: Final = frozenset({0x81, 0x82, 0x86})
"""rfc822Name, dNSName, uniformResourceIdentifier."""
_IP_NAME: Final = 0x87
_STRINGS: Final = {0x0C: "utf-8", 0x13: "ascii", 0x16: "ascii"}
"""Strings whose content Go checks: UTF8String, PrintableString, IA5String."""
_LONG_FORM: Final = 0x80
_MULTIPLE_BYTES: Final = 0x1F
_EXTENSION_REQUEST: Final = bytes.fromhex("2a864886f70d01090e")
_SUBJECT_ALT_NAME: Final = bytes.fromhex("551d11")
_CURVES: Final = (ec.SECP224R1, ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
_ECDSA: Final = {
    bytes.fromhex("2a8648ce3d0401"): hashes.SHA1(),  # noqa: S303 - Go lets a request have it, though no certificate
    bytes.fromhex("2a8648ce3d040302"): hashes.SHA256(),
    bytes.fromhex("2a8648ce3d040303"): hashes.SHA384(),
    bytes.fromhex("2a8648ce3d040304"): hashes.SHA512(),
}
_RSA: Final = {
    bytes.fromhex("2a864886f70d010105"): hashes.SHA1(),  # noqa: S303 - Go lets a request have it (RSA)
    bytes.fromhex("2a864886f70d01010b"): hashes.SHA256(),
    bytes.fromhex("2a864886f70d01010c"): hashes.SHA384(),
    bytes.fromhex("2a864886f70d01010d"): hashes.SHA512(),
}
_ED25519: Final = bytes.fromhex("2b6570")


class _UnreadableError(ValueError):
    """What Go would not read."""


def problem_of(der: bytes) -> str:
    """Tell why Go does not take the request; an empty string when it does."""
    try:
        _check(der)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        return f"asn1: {error}"
    except InvalidSignature:
        return "x509: the signature does not verify"
    return ""


def _check(der: bytes) -> None:
    tag, content, rest = _element(der)
    if tag != _SEQUENCE or rest:
        raise _UnreadableError("trailing data, or no SEQUENCE")
    info, (_, algorithm), (signature_tag, signature), *_ = _elements(content, 3)
    (version_tag, _), (_, subject), spki, (attributes_tag, attributes), *_ = _elements(info[1], 4)
    if (version_tag, signature_tag, attributes_tag) != (_INTEGER, _BIT_STRING, _ATTRIBUTES):
        raise _UnreadableError("another structure")
    _check_subject(subject)
    _check_extensions(attributes)
    key = _key(_written(*spki))
    (_, kind), *_ = _elements(algorithm, 1)
    _verify(key, kind, _right_aligned(signature), _written(*info))


def _key(spki: bytes) -> PublicKeyTypes:
    """Read a key; of an elliptic curve only by the curve's name, with both coordinates."""
    key = load_der_public_key(spki)
    plain = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if isinstance(key, ec.EllipticCurvePublicKey) and plain != spki:
        raise _UnreadableError("failed to unmarshal elliptic curve point")
    return key


def _check_subject(subject: bytes) -> None:
    for tag, rdn in _read(subject):
        if tag != _SET:
            raise _UnreadableError("an RDN that is no SET")
        for _, attribute in _read(rdn):
            _, (value_tag, value), *_ = _elements(attribute, 2)
            value.decode(_STRINGS.get(value_tag, "latin-1"))


def _check_extensions(attributes: bytes) -> None:
    """Merge all extensionRequests, of each its first value; an OID may come once."""
    seen: set[bytes] = set()
    for _, attribute in _read(attributes):
        (_, kind), (values_tag, values), *_ = _elements(attribute, 2)
        if kind != _EXTENSION_REQUEST or values_tag != _SET or not values:
            continue
        (_, extensions), *_ = _elements(values, 1)
        for _, extension in _read(extensions):
            (_, oid), *_, (tag, value) = _elements(extension, 2)
            if tag != _OCTET_STRING:
                raise _UnreadableError("an extension without value")
            if oid in seen:
                raise _UnreadableError("certificate request contains duplicate requested extensions")
            seen.add(oid)
            if oid == _SUBJECT_ALT_NAME:
                _check_names(value)


def _check_names(value: bytes) -> None:
    """Read four kinds of names; others are not looked at."""
    tag, names, rest = _element(value)
    if tag != _SEQUENCE or rest:
        raise _UnreadableError("no list of names")
    for tag, name in _read(names):
        if tag in _TEXT_NAMES:
            name.decode("ascii")
        elif tag == _IP_NAME and len(name) not in {4, 16}:
            raise _UnreadableError(f"cannot parse IP address of length {len(name)}")


def _verify(key: PublicKeyTypes, kind: bytes, signature: bytes, signed: bytes) -> None:
    if kind in _ECDSA and isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, _CURVES):
        key.verify(signature, signed, ec.ECDSA(_ECDSA[kind]))
    elif kind in _RSA and isinstance(key, rsa.RSAPublicKey):
        key.verify(signature, signed, padding.PKCS1v15(), _RSA[kind])
    elif kind == _ED25519 and isinstance(key, ed25519.Ed25519PublicKey):
        key.verify(signature, signed)
    else:
        raise _UnreadableError("cannot verify signature: algorithm unimplemented, or not the key's")


def _right_aligned(bits: bytes) -> bytes:
    """Shift unused bits away, as encoding/asn1 BitString.RightAlign does."""
    unused = bits[0] if bits else 8
    if unused > 7 or (unused and (len(bits) == 1 or bits[-1] & ((1 << unused) - 1))):  # noqa: PLR2004 - bits of a byte
        raise _UnreadableError("invalid padding bits in BIT STRING")
    return (int.from_bytes(bits[1:], "big") >> unused).to_bytes(len(bits) - 1, "big")


def _elements(content: bytes, at_least: int) -> list[tuple[int, bytes]]:
    """Read a SEQUENCE's elements; Go overlooks what is behind those that it knows."""
    found = list(_read(content))
    if len(found) < at_least:
        raise _UnreadableError("sequence truncated")
    return found


def _read(content: bytes) -> Iterator[tuple[int, bytes]]:
    while content:
        tag, value, content = _element(content)
        yield tag, value


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """Split off the first element: tag, content, what follows. Lengths are definite and in their shortest form."""
    if len(data) < 2 or data[0] & _MULTIPLE_BYTES == _MULTIPLE_BYTES:  # noqa: PLR2004 - tag and length
        raise _UnreadableError("truncated tag or length")
    length, start = data[1], 2
    if length & _LONG_FORM:
        start += length & ~_LONG_FORM
        octets = data[2:start]
        length = int.from_bytes(octets, "big")
        if not octets or octets[0] == 0 or length < _LONG_FORM:
            raise _UnreadableError("indefinite length found (not DER), or superfluous leading zeros in length")
    if start + length > len(data):
        raise _UnreadableError("data truncated")
    return data[0], data[start : start + length], data[start + length :]


def _written(tag: int, content: bytes) -> bytes:
    """Write an element again, in the one form that was read."""
    size = len(content)
    if size < _LONG_FORM:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, _LONG_FORM | len(length)]) + length + content
