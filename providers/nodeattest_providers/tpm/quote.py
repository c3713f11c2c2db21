"""TPMS_ATTEST of a quote and TPMT_SIGNATURE, read strictly; a signature counts by the key's own scheme and hash only.

Source: TCG TPM 2.0 Library, Part 2 §10.11.1, §10.12.4, §10.12.12, §11.3.4; FIPS 186-5 §6; RFC 8017 §8.2.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from nodeattest_providers.errors import Reason
from nodeattest_providers.tpm.structures import Alg, PcrSelection, PublicArea, Reader

_MAX_ECC: Final = 64
_MAX_RSA: Final = 512


@dataclass(frozen=True, slots=True)
class Signature:
    """A TPMT_SIGNATURE; ``value`` is DER for ECDSA, as ``cryptography`` takes it."""

    scheme: Alg
    hash_alg: Alg
    value: bytes = field(repr=False)


def parse_signature(raw: bytes) -> Signature:
    """Parse TPMT_SIGNATURE: ECDSA or RSASSA, anything else is ``Denied``."""
    reader = Reader(raw, what="quote signature", reason=Reason.QUOTE_MALFORMED)
    scheme = reader.alg("scheme", Alg.ECDSA, Alg.RSASSA)
    hash_alg = reader.alg("hash", Alg.SHA256, Alg.SHA384, Alg.SHA512)
    if scheme is Alg.RSASSA:
        value = reader.sized("signature", _MAX_RSA)
    else:
        r = int.from_bytes(reader.sized("signatureR", _MAX_ECC), "big")
        s = int.from_bytes(reader.sized("signatureS", _MAX_ECC), "big")
        value = encode_dss_signature(r, s)
    reader.end()
    return Signature(scheme, hash_alg, value)


def signature_is_valid(ak: PublicArea, signature: Signature, message: bytes) -> bool:
    """Return whether the attestation key signed ``message`` with exactly its own scheme, RSASSA or ECDSA on SHA-256."""
    if (signature.scheme, signature.hash_alg) != ak.scheme or signature.hash_alg is not Alg.SHA256:
        return False
    try:
        match ak.key:
            case rsa.RSAPublicKey():
                ak.key.verify(signature.value, message, padding.PKCS1v15(), hashes.SHA256())
            case ec.EllipticCurvePublicKey():
                ak.key.verify(signature.value, message, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


_MAGIC: Final = 0xFF544347
"""TPM_GENERATED_VALUE: a restricted key signs nothing that starts so, unless the TPM made it (Part 2 §6.2)."""
_QUOTE: Final = 0x8018
"""TPM_ST_ATTEST_QUOTE."""
_MAX_NAME: Final = 2 + 64
"""Bytes of a Name: algorithm and the largest digest."""
_MAX_EXTRA: Final = 64
"""Bytes of extraData; ours has 32."""
_MAX_DIGEST: Final = 64


@dataclass(frozen=True, slots=True)
class Quote:
    """A TPMS_ATTEST of type quote."""

    raw: bytes = field(repr=False)
    qualified_signer: bytes
    extra_data: bytes = field(repr=False)
    clock: int
    """Milliseconds."""
    reset_count: int
    restart_count: int
    safe: bool
    selections: tuple[PcrSelection, ...]
    pcr_digest: bytes


def parse_quote(raw: bytes) -> Quote:
    """Parse TPMS_ATTEST (without the TPM2B length); anything but a quote is ``Denied``."""
    reader = Reader(raw, what="quote", reason=Reason.QUOTE_MALFORMED)
    magic = reader.number(4)
    if magic != _MAGIC:
        raise reader.wrong(f"magic 0x{_MAGIC:08x}", f"0x{magic:08x}")
    kind = reader.number(2)
    if kind != _QUOTE:
        raise reader.wrong(f"type TPM_ST_ATTEST_QUOTE 0x{_QUOTE:04x}", f"0x{kind:04x}")
    signer = reader.sized("qualifiedSigner", _MAX_NAME)
    extra = reader.sized("extraData", _MAX_EXTRA)
    clock, resets, restarts, safe = reader.number(8), reader.number(4), reader.number(4), _yes_no(reader)
    reader.number(8)  # firmwareVersion: obfuscated for some keys, not checked
    selections = PcrSelection.read(reader)
    pcr_digest = reader.sized("pcrDigest", _MAX_DIGEST)
    reader.end()
    return Quote(
        raw=raw,
        qualified_signer=signer,
        extra_data=extra,
        clock=clock,
        reset_count=resets,
        restart_count=restarts,
        safe=safe,
        selections=selections,
        pcr_digest=pcr_digest,
    )


def _yes_no(reader: Reader) -> bool:
    """Read TPMI_YES_NO, which is 0 or 1 and nothing else (Part 2 §9.2)."""
    value = reader.number(1)
    if value > 1:
        raise reader.wrong("safe 0 or 1", str(value))
    return bool(value)
