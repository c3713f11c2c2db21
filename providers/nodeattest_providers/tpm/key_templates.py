"""The keys that we make and accept, byte by byte, and what an attestation key signs: quotes.

Source: TCG EK Credential Profile 2.5, Annex B.3 and B.4; TPM 2.0 Library, Part 2 §8.3, §10.11.1, §10.12, §11.3.4,
§12.2.4, Part 1 §16 "Names", §26.5 "Qualified Name"; FIPS 186-5 §6; RFC 8017 §8.2; docs/wire-format.md §2, §4.7.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from nodeattest_providers.errors import Reason
from nodeattest_providers.node_interface import length_prefix
from nodeattest_providers.tpm.structures import Alg, Curve, PcrSelection, PublicArea, Reader, digest, sized

if TYPE_CHECKING:
    from nodeattest_providers.checks import Checks


_LOW_ATTRIBUTES: Final = 0x000300B2
"""fixedTPM, fixedParent, sensitiveDataOrigin, adminWithPolicy, restricted, decrypt (Annex B.3.3)."""
_HIGH_ATTRIBUTES: Final = 0x000300F2
"""The same with userWithAuth (Annex B.4.4)."""
_POLICY_SECRET: Final = bytes.fromhex("837197674484b3f81a90cc8d46a5d724fd52d76e06520b64f2a1da1b331469aa")
"""PolicySecret(endorsement hierarchy), SHA-256 (Annex B.6.2)."""
_POLICY_A_SHA384: Final = bytes.fromhex(
    "8bbf2266537c171cb56e403c4dc1d4b64f432611dc386e6f532050c3278c930e143e8bb1133824ccb431053871c6db53"
)
"""The same, SHA-384."""
_POLICY_C_SHA256: Final = bytes.fromhex("3767e2edd43ff45a3a7e1eaefcef78643dca964632e7aad82c673a30d8633fde")
"""PolicyAuthorizeNV of TCG's policy index, SHA-256 (Annex B.6.4)."""
_POLICY_C_SHA384: Final = bytes.fromhex(
    "d6032ce61f2fb3c240eb3cf6a33237ef2b6a16f4293c22b455e261cffd217ad5b4947c2d73e63005eed2dc2b3593d165"
)
_POLICY_B_SHA256: Final = bytes.fromhex("ca3d0a99a2b93906f7a3342414efcfb3a385d44cd1fd459089d19b5071c0b7a0")
"""PolicyOR of PolicyA and PolicyC, SHA-256 (Annex B.6.5)."""
_POLICY_B_SHA384: Final = bytes.fromhex(
    "b26e7d28d11a50bc53d882bcf5fd3a1a074148bb35d3b4e4cb1c0ad9bde419cacb47ba09699646150f9fc000f3f80e12"
)

AK_ATTRIBUTES: Final = 0x00050472
"""fixedTPM, fixedParent, sensitiveDataOrigin, userWithAuth, noDA, restricted, sign; nothing else (TPM protocol §2).

Without noDA, three power losses bring TPM_RC_LOCKOUT at the next quote (§4.1)."""
EK_CHAIN_INDEX: Final = 0x01C00100
"""First NV index of the endorsement certificate chain (EK Credential Profile §2.2.1.5.2)."""
EK_CHAIN_LAST: Final = 0x01C001FF


@dataclass(frozen=True, slots=True)
class EndorsementTemplate:
    """One of TCG's templates."""

    name: str
    tcg_name: str
    name_alg: Alg
    certificate_index: int
    nonce_index: int | None
    """NV index of a nonce that goes into ``unique`` where the manufacturer stored one (low range only)."""
    policy_branches: tuple[bytes, ...]
    """Branches of the PolicyOR that follows PolicySecret in the high range; none in the low.

    The high range takes the empty password too, but as these keys lack noDA a TPM in lockout refuses that after three
    power losses, while it never refuses the endorsement hierarchy's policy."""
    prefix: bytes = field(repr=False)
    """The public area up to ``unique``."""
    unique_sizes: tuple[int, ...]
    """Sizes of the fields of ``unique`` in the creation template: all zeros in the low range, empty in the high."""

    def creation(self, nonce: bytes = b"") -> bytes:
        """Write the TPMT_PUBLIC to create the key with; a nonce starts the first field of ``unique``."""
        first, *rest = self.unique_sizes
        return self.prefix + sized(nonce.ljust(first, b"\x00")) + b"".join(sized(bytes(size)) for size in rest)


def _uint16s(*values: int) -> bytes:
    return b"".join(value.to_bytes(2, "big") for value in values)


def _prefix(kind: Alg, name_alg: Alg, attributes: int, policy: bytes, parameters: bytes) -> bytes:
    return _uint16s(kind, name_alg) + attributes.to_bytes(4, "big") + sized(policy) + parameters


def _rsa(name_alg: Alg, attributes: int, policy: bytes) -> bytes:
    """Write a storage key: AES-128-CFB, no scheme, 2048 bits, default exponent."""
    parameters = _uint16s(Alg.AES, 128, Alg.CFB, Alg.NULL, 2048) + bytes(4)
    return _prefix(Alg.RSA, name_alg, attributes, policy, parameters)


def _ecc(name_alg: Alg, attributes: int, policy: bytes, curve: Curve, aes_bits: int) -> bytes:
    """Write a storage key: AES-CFB, no scheme, a curve, no KDF."""
    parameters = _uint16s(Alg.AES, aes_bits, Alg.CFB, Alg.NULL, curve, Alg.NULL)
    return _prefix(Alg.ECC, name_alg, attributes, policy, parameters)


def _low(name: str, tcg_name: str, index: int, prefix: bytes, unique_sizes: tuple[int, ...]) -> EndorsementTemplate:
    """Make a template of the low range: a nonce may stand behind the certificate, and no branches."""
    return EndorsementTemplate(name, tcg_name, Alg.SHA256, index, index + 1, (), prefix, unique_sizes)


_HIGH_SHA256: Final = (_POLICY_SECRET, _POLICY_C_SHA256)
_HIGH_SHA384: Final = (_POLICY_A_SHA384, _POLICY_C_SHA384)
_P256: Final = _ecc(Alg.SHA256, _LOW_ATTRIBUTES, _POLICY_SECRET, Curve.P256, 128)
_P256_HIGH: Final = _ecc(Alg.SHA256, _HIGH_ATTRIBUTES, _POLICY_B_SHA256, Curve.P256, 128)
_P384_HIGH: Final = _ecc(Alg.SHA384, _HIGH_ATTRIBUTES, _POLICY_B_SHA384, Curve.P384, 256)
_RSA: Final = _rsa(Alg.SHA256, _LOW_ATTRIBUTES, _POLICY_SECRET)
_RSA_HIGH: Final = _rsa(Alg.SHA256, _HIGH_ATTRIBUTES, _POLICY_B_SHA256)

EK_TEMPLATES: Final = (
    _low("ecc-p256", "L-2", 0x01C0000A, _P256, (32, 32)),
    EndorsementTemplate("ecc-p256-high", "H-2", Alg.SHA256, 0x01C00014, None, _HIGH_SHA256, _P256_HIGH, (0, 0)),
    EndorsementTemplate("ecc-p384", "H-3", Alg.SHA384, 0x01C00016, None, _HIGH_SHA384, _P384_HIGH, (0, 0)),
    _low("rsa2048", "L-1", 0x01C00002, _RSA, (256,)),
    EndorsementTemplate("rsa2048-high", "H-1", Alg.SHA256, 0x01C00012, None, _HIGH_SHA256, _RSA_HIGH, (0,)),
)
"""In the order in which a node prefers them: elliptic curves cost a TPM a fraction of RSA (7 ms against 45)."""

AK_POLICY: Final = hashlib.sha256(length_prefix(b"nodeattest/v1/attestation-key-policy")).digest()
"""The attestation key's authPolicy: a mark, which no other agent's key carries (§2).

An agent that answers for strangers does so with a key that is not ours. The mark opens nothing: the digest that policy
commands arrive at is that of other bytes (Part 1 §19.7), and the key is used by its empty password."""


def _attestation_key() -> bytes:
    parameters = _uint16s(Alg.NULL, Alg.ECDSA, Alg.SHA256, Curve.P256, Alg.NULL)
    unique = hashlib.sha256(b"nodeattest/v1/attestation-key").digest()
    prefix = _prefix(Alg.ECC, Alg.SHA256, AK_ATTRIBUTES, AK_POLICY, parameters)
    return prefix + sized(unique) + sized(bytes(32))


AK_TEMPLATE: Final = _attestation_key()
"""A primary key of the endorsement hierarchy with a ``unique`` of our own, the same key after each reset and after
TPM2_Clear, and shared with no other agent, whose challenges it could otherwise be made to answer (§2)."""


_REMEDY: Final = "attest with the key that kubelet-authenticator makes in the TPM"
_ENDORSEMENT_HIERARCHY: Final = (0x4000000B).to_bytes(4, "big")
"""TPM_RH_ENDORSEMENT."""
_KEY_BITS: Final = {Alg.RSASSA: 2048, Alg.ECDSA: 256}


def check_attestation_key(checks: Checks, ak: PublicArea, ek: PublicArea) -> None:
    """Check the public area of an attestation key.

    1. Attributes exactly fixedTPM, fixedParent, sensitiveDataOrigin, userWithAuth, noDA, restricted, sign.
    2. nameAlg SHA-256, the authPolicy that marks our keys, no symmetric algorithm.
    3. RSASSA-2048 or ECDSA P-256, with SHA-256.
    4. It is another key than the endorsement key.
    """
    from nodeattest_providers.checks import Rules  # the node has no use for it

    rules = Rules(checks, "TPM protocol §2", Reason.ATTESTATION_KEY_NOT_ALLOWED, _REMEDY, "attestation key: ")
    # 1
    rules.equal("attributes", f"0x{AK_ATTRIBUTES:08x}", f"0x{ak.attributes:08x}")
    # 2
    rules.equal("nameAlg", Alg.SHA256.name, ak.name_alg.name)
    rules.equal("authPolicy", AK_POLICY.hex(), ak.policy.hex() or "none")
    rules.require(ak.symmetric is None, "symmetric algorithm", "none", "one")
    # 3
    scheme = Alg.RSASSA if isinstance(ak.key, rsa.RSAPublicKey) else Alg.ECDSA
    got = " with ".join(alg.name for alg in ak.scheme or ()) or "none"
    rules.equal("scheme", f"{scheme.name} with {Alg.SHA256.name}", got)
    rules.equal("key size", f"{_KEY_BITS[scheme]} bits", f"{ak.key.key_size} bits")
    # 4
    rules.require(ak.spki != ek.spki, "another key", "not the endorsement key", "the endorsement key")


def qualified_name(ak: PublicArea) -> bytes:
    """Compute the Qualified Name of a primary key of the endorsement hierarchy (§4.3).

    Keys of the owner hierarchy, whose resetCount the TPM obfuscates, have another.
    """
    return ak.name_alg.to_bytes(2, "big") + digest(ak.name_alg, _ENDORSEMENT_HIERARCHY + ak.name)


_MAX_ECC: Final = 64
_MAX_RSA: Final = 512


@dataclass(frozen=True, slots=True)
class Signature:
    """A TPMT_SIGNATURE; ``value`` is DER for ECDSA, as ``cryptography`` takes it."""

    scheme: Alg
    hash_alg: Alg
    value: bytes = field(repr=False)


def parse_signature(raw: bytes) -> Signature:
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
    if (signature.scheme, signature.hash_alg) != ak.scheme or signature.hash_alg is not Alg.SHA256:
        return False
    try:
        if isinstance(ak.key, rsa.RSAPublicKey):
            ak.key.verify(signature.value, message, padding.PKCS1v15(), hashes.SHA256())
        else:
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
