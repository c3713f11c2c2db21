"""An endorsement key as an operator writes it down: certificate, public key or fingerprint, read to the fingerprint.

No chain is checked: whoever writes a certificate down vouches for it.
Source: RFC 7468 §5, §13; RFC 5280 §4.1; TPM 2.0 Library, Part 2 §12.2.4 TPMT_PUBLIC, §12.2.5 TPM2B_PUBLIC.
"""

from __future__ import annotations

import re
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.values import ParseError
from nodeattest_providers.certificate_chain import X509_ERRORS
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.keys import (
    ENDORSEMENT_FINGERPRINT,
    FINGERPRINT_FORM,
    check_key_type,
    endorsement_fingerprint,
)
from nodeattest_providers.tpm.endorsement_key import parse_endorsement_key

MAX_KEY_TEXT: Final = 16 << 10
"""Characters; a certificate in PEM has 2000."""
_PEM: Final = re.compile(r"-----BEGIN (CERTIFICATE|PUBLIC KEY)-----([^-]*)-----END \1-----", re.ASCII)
_SEQUENCE: Final = b"\x30"
"""How DER begins. A TPMT_PUBLIC begins with its type, a TPM2B_PUBLIC with a size of some hundred bytes."""
_SIZE: Final = 2
"""Bytes of a TPM2B's size."""
_FORMS: Final = (
    f"{FINGERPRINT_FORM}; or a certificate or public key in PEM; or base64 of a certificate (DER), public key (DER), "
    "TPMT_PUBLIC or TPM2B_PUBLIC"
)


def read_registered_key(text: str) -> str:
    """Return the key's fingerprint; ``Denied`` for anything that is not one endorsement key."""
    text = text.strip()
    if len(text) > MAX_KEY_TEXT:
        raise _malformed(f"at most {MAX_KEY_TEXT} characters", str(len(text)))
    if text.startswith("sha256:"):
        if not ENDORSEMENT_FINGERPRINT.fullmatch(text):
            raise _malformed(FINGERPRINT_FORM, "another spelling, or an example's zeros")
        return text
    block = _PEM.fullmatch(text)
    if text.startswith("-") and block is None:
        raise _malformed("one PEM block CERTIFICATE or PUBLIC KEY", "other PEM, or several blocks")
    if not text:
        raise _malformed(_FORMS, "nothing")
    content = _base64(block[2] if block else text)
    if not block and content[:1] != _SEQUENCE:
        return _of_public_area(content)
    label = block[1] if block else ""
    try:
        key = _load(content, label)
    except X509_ERRORS as error:
        what = f"a {label.lower() or 'certificate or public key'} that can be read"
        raise _malformed(what, f"one that cannot ({type(error).__name__})") from None
    try:
        return endorsement_fingerprint(check_key_type(key))
    except ValueError as error:
        raise _malformed("a key of an endorsement key template", str(error)) from None


def _load(content: bytes, label: str) -> object:
    """Load the public key out of DER; without a label it may be a certificate or a public key."""
    if label != "CERTIFICATE":
        try:
            return _load_spki(content)
        except X509_ERRORS:
            if label:
                raise
    return x509.load_der_x509_certificate(content).public_key()


def _load_spki(content: bytes) -> object:
    """Load a SubjectPublicKeyInfo; no other structure of a key, and no compressed point."""
    key = load_der_public_key(content)
    if key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) != content:
        raise ValueError("not in its one spelling")
    return key


def _of_public_area(content: bytes) -> str:
    has_size = int.from_bytes(content[:_SIZE], "big") == len(content) - _SIZE
    try:
        return parse_endorsement_key(content[_SIZE:] if has_size else content).fingerprint
    except Denied as denied:
        raise _malformed(denied.expected, denied.got) from None


def _base64(text: str) -> bytes:
    try:
        return decode_base64("".join(text.split()))
    except ParseError:
        raise _malformed(_FORMS, "other text") from None


def _malformed(expected: str, got: str) -> Denied:
    return Denied(
        Reason.ENDORSEMENT_KEY_MALFORMED,
        expected=expected,
        got=got,
        remedy="write the endorsementFingerprint that kubelet-authenticator evidence --provider tpm prints there",
    )
