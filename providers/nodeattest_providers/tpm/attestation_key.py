"""Attestation keys: keys that sign only what their TPM made itself.

Promises: returns only for a restricted signing key, made in and never to leave its TPM, of a closed set of algorithms.
Source: TCG TPM 2.0 Library, Part 2 §8.3 TPMA_OBJECT, Part 1 §16 "Names", §26.5 "Qualified Name";
docs/wire-format.md §2, §4.7.
"""

from __future__ import annotations

from typing import Final

from cryptography.hazmat.primitives.asymmetric import rsa

from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import Reason
from nodeattest_providers.tpm.key_templates import AK_ATTRIBUTES, AK_POLICY
from nodeattest_providers.tpm.public_area import PublicArea
from nodeattest_providers.tpm.structures import Alg, digest

_SECTION: Final = "TPM protocol §2"
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
    # 1
    _require(checks, ak.attributes == AK_ATTRIBUTES, "attributes", f"0x{AK_ATTRIBUTES:08x}", f"0x{ak.attributes:08x}")
    # 2
    _require(checks, ak.name_alg is Alg.SHA256, "nameAlg", Alg.SHA256.name, ak.name_alg.name)
    _require(checks, ak.policy == AK_POLICY, "authPolicy", AK_POLICY.hex(), ak.policy.hex() or "none")
    _require(checks, ak.symmetric is None, "symmetric algorithm", "none", "one")
    # 3
    expected = Alg.RSASSA if isinstance(ak.key, rsa.RSAPublicKey) else Alg.ECDSA
    got = " with ".join(alg.name for alg in ak.scheme) if ak.scheme else "none"
    _require(checks, ak.scheme == (expected, Alg.SHA256), "scheme", f"{expected.name} with SHA256", got)
    bits = _KEY_BITS[expected]
    _require(checks, ak.key.key_size == bits, "key size", f"{bits} bits", f"{ak.key.key_size} bits")
    # 4
    _require(checks, ak.spki != ek.spki, "another key", "not the endorsement key", "the endorsement key")


def qualified_name(ak: PublicArea) -> bytes:
    """Compute the Qualified Name of a primary key of the endorsement hierarchy (§4.7).

    Keys of the owner hierarchy, whose resetCount the TPM obfuscates, have another.
    """
    return ak.name_alg.to_bytes(2, "big") + digest(ak.name_alg, _ENDORSEMENT_HIERARCHY + ak.name)


def _require(checks: Checks, passed: bool, name: str, expected: str, got: str) -> None:
    checks.require(
        passed,
        f"attestation key: {name}",
        section=_SECTION,
        reason=Reason.ATTESTATION_KEY_NOT_ALLOWED,
        expected=expected,
        got=expected if passed else got,
        remedy=_REMEDY,
    )
