"""TPM2_MakeCredential without a TPM: encrypt a secret so that only the TPM that holds both keys can read it.

Source: TCG TPM 2.0 Library, Part 1 §24 "Credential Protection", §11.4.10 KDFa and KDFe, Annex B.10.4 (RSA), Annex C.6.3
(ECC); Part 2 §12.4.3 TPM2B_ID_OBJECT.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cryptography.hazmat.decrepit.ciphers.modes import CFB
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.kdf.concatkdf import ConcatKDFHash
from cryptography.hazmat.primitives.kdf.kbkdf import KBKDFHMAC, CounterLocation, Mode

from nodeattest_providers.tpm.structures import Alg, PublicArea, digest_size, sized

_IDENTITY: Final = b"IDENTITY\x00"
_STORAGE: Final = b"STORAGE"
_INTEGRITY: Final = b"INTEGRITY"
_HASHES: Final[dict[Alg, type[hashes.SHA256 | hashes.SHA384 | hashes.SHA512]]] = {
    Alg.SHA256: hashes.SHA256,
    Alg.SHA384: hashes.SHA384,
    Alg.SHA512: hashes.SHA512,
}
_ZERO_IV: Final = bytes(16)
"""Part 1 §24.4: a fresh key each time, hence an initial vector of zeros."""
_EXTRA_SCALAR_OCTETS: Final = 8
"""FIPS 186-5 §A.2.1: 64 bits more than the order, so that the scalar is unbiased."""
_ORDERS: Final = {
    "secp256r1": 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551,
    "secp384r1": int(
        "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFC7634D81F4372DDF581A0DB248B0A77AECEC196ACCC52973", 16
    ),
}
"""SEC 2 §2.4.2 and §2.5.1: order of the base point."""


@dataclass(frozen=True, slots=True)
class Credential:
    """What TPM2_ActivateCredential takes: TPM2B_ID_OBJECT and TPM2B_ENCRYPTED_SECRET, each without its length."""

    blob: bytes = field(repr=False)
    secret: bytes = field(repr=False)


def make_credential(ek: PublicArea, name: bytes, credential: bytes, *, random: Callable[[int], bytes]) -> Credential:
    """Encrypt ``credential`` to the endorsement key, for the key with this Name.

    ``credential`` is no longer than the endorsement key's nameAlg digest; ``random`` gives n unpredictable bytes.
    """
    if len(credential) > digest_size(ek.name_alg):
        raise ValueError("a credential is at most a digest of the nameAlg long")
    if isinstance(ek.key, rsa.RSAPublicKey):
        seed, secret = _share_rsa(ek.key, ek.name_alg, random)
    else:
        seed, secret = _share_ecc(ek.key, ek.name_alg, random)
    return Credential(blob=protect(ek, seed, name, credential), secret=secret)


def protect(ek: PublicArea, seed: bytes, name: bytes, credential: bytes) -> bytes:
    """Write TPMS_ID_OBJECT under a seed that the TPM knows (Part 1 §24.4, §24.5)."""
    if ek.symmetric is None:
        raise ValueError("an endorsement key has a symmetric algorithm")
    _, bits, _ = ek.symmetric
    storage_key = kdfa(ek.name_alg, seed, _STORAGE, name, bits)
    encryptor = Cipher(AES(storage_key), CFB(_ZERO_IV)).encryptor()
    identity = encryptor.update(sized(credential)) + encryptor.finalize()
    integrity_key = kdfa(ek.name_alg, seed, _INTEGRITY, b"", digest_size(ek.name_alg) * 8)
    integrity = hmac.digest(integrity_key, identity + name, ek.name_alg.name)
    return sized(integrity) + identity


def kdfa(alg: Alg, key: bytes, label: bytes, context: bytes, bits: int) -> bytes:
    """Derive ``bits`` by SP 800-108 in counter mode with HMAC (Part 1 §11.4.10.2).

    ``label`` comes without its final zero byte, which is added; ``context`` is contextU, then contextV.
    """
    return KBKDFHMAC(
        algorithm=_HASHES[alg](),
        mode=Mode.CounterMode,
        length=bits // 8,
        rlen=4,
        llen=4,
        location=CounterLocation.BeforeFixed,
        label=label,
        context=context,
        fixed=None,
    ).derive(key)


def kdfe(alg: Alg, z: bytes, other_info: bytes, bits: int) -> bytes:
    """Derive ``bits`` by SP 800-56A concatenation (Part 1 §11.4.10.3).

    ``other_info`` is the label with its final zero byte, PartyUInfo, then PartyVInfo.
    """
    return ConcatKDFHash(algorithm=_HASHES[alg](), length=bits // 8, otherinfo=other_info).derive(z)


def _share_rsa(key: rsa.RSAPublicKey, alg: Alg, random: Callable[[int], bytes]) -> tuple[bytes, bytes]:
    """Choose a seed and encrypt it by OAEP with the nameAlg and the label IDENTITY (Annex B.4, B.10.4)."""
    seed = random(digest_size(alg))
    oaep = padding.OAEP(mgf=padding.MGF1(_HASHES[alg]()), algorithm=_HASHES[alg](), label=_IDENTITY)
    return seed, key.encrypt(seed, oaep)


def _share_ecc(key: ec.EllipticCurvePublicKey, alg: Alg, random: Callable[[int], bytes]) -> tuple[bytes, bytes]:
    """Agree on a seed by ECDH with an ephemeral key, whose point is the encrypted secret (Annex C.6.3)."""
    octets = (key.curve.key_size + 7) // 8
    scalar = int.from_bytes(random(octets + _EXTRA_SCALAR_OCTETS), "big") % (_ORDERS[key.curve.name] - 1) + 1
    ephemeral = ec.derive_private_key(scalar, key.curve)
    point = ephemeral.public_key().public_numbers()
    x, y = point.x.to_bytes(octets, "big"), point.y.to_bytes(octets, "big")
    z = ephemeral.exchange(ec.ECDH(), key)
    own_x = key.public_numbers().x.to_bytes(octets, "big")
    return kdfe(alg, z, _IDENTITY + x + own_x, digest_size(alg) * 8), sized(x) + sized(y)
