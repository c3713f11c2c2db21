"""Writes tpm.json, the published vectors of ``tpm/v1``.

Run ``python tests/vectors/generate_tpm.py``: no diff is right.

The formulas are written out once more, from the documents (TPM 2.0 Library Part 1, the wire format) and not from the
code under test: KDFa and KDFe as loops, CFB on AES blocks, HKDF on HMAC. Everything comes from constants here.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from generate import b64url, hkdf, lp, sha256, spki

FOLDER: Final = Path(__file__).parent
JSON = dict[str, object]

MASTER: Final = sha256(b"master key of the vectors")
CLUSTER_UID: Final = "b0c5b5a0-3a35-4f2e-9a6e-5a1f0c1d2e3f"
MACHINE_UID: Final = "1f6f7c1e-6b43-4a0c-8f55-7f3d5f2f9b10"
FIRST_UID: Final = "5d9a3b56-2f0c-4d7e-8a61-0f6f5c1b9a11"
REQUEST: Final = b"the envelope of the first request, as it stands in spec.request"
CSR: Final = b"the PKCS#10 DER of both requests"
USERNAME: Final = "system:bootstrap:abcdef"
CREATED: Final = 1_767_225_600  # 2026-01-01T00:00:00Z
PIN: Final = "sha256:" + "ab" * 32
EVIDENCE: Final = "tpm/v1"
SIGNER: Final = "cluster.x-k8s.io/kube-apiserver-client-kubelet-tpm"

P256_PREFIX: Final = (
    "0023000b000300b20020837197674484b3f81a90cc8d46a5d724fd52d76e06520b64f2a1da1b331469aa"
    "0006008000430010" + "0003" + "0010"
)
P384_PREFIX: Final = (
    "0023000c000300f20030b26e7d28d11a50bc53d882bcf5fd3a1a074148bb35d3b4e4cb1c0ad9bde419cacb47ba09699646150f9fc000f3f80e12"
    "0006010000430010" + "0004" + "0010"
)
AK_POLICY: Final = sha256(lp(b"nodeattest/v1/attestation-key-policy"))


def sized(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data


def coordinates(key: ec.EllipticCurvePrivateKey) -> tuple[bytes, bytes]:
    octets = key.curve.key_size // 8
    point = key.public_key().public_numbers()
    return point.x.to_bytes(octets, "big"), point.y.to_bytes(octets, "big")


def ak_prefix() -> str:
    """P-256 with ECDSA and SHA-256, the marking authPolicy, no symmetric algorithm, no KDF."""
    return "0023000b00050472" + sized(AK_POLICY).hex() + "0010" + "0018000b" + "0003" + "0010"


def public_area(prefix: str, key: ec.EllipticCurvePrivateKey) -> bytes:
    x, y = coordinates(key)
    return bytes.fromhex(prefix) + sized(x) + sized(y)


def name_of(public: bytes) -> bytes:
    algorithm = {b"\x00\x0b": "sha256", b"\x00\x0c": "sha384"}[public[2:4]]
    return public[2:4] + hashlib.new(algorithm, public).digest()


def kdfa(algorithm: str, key: bytes, label: bytes, context: bytes, bits: int) -> bytes:
    """Part 1 §11.4.10.2."""
    out, counter = b"", 0
    while len(out) * 8 < bits:
        counter += 1
        message = counter.to_bytes(4, "big") + label + b"\x00" + context + bits.to_bytes(4, "big")
        out += hmac.digest(key, message, algorithm)
    return out[: bits // 8]


def kdfe(algorithm: str, z: bytes, label: bytes, context: bytes, bits: int) -> bytes:
    """Part 1 §11.4.10.3."""
    out, counter = b"", 0
    while len(out) * 8 < bits:
        counter += 1
        out += hashlib.new(algorithm, counter.to_bytes(4, "big") + z + label + b"\x00" + context).digest()
    return out[: bits // 8]


def cfb(key: bytes, data: bytes) -> bytes:
    """SP 800-38A §6.3 with whole blocks and an initial vector of zeros."""
    out, register = b"", bytes(16)
    for start in range(0, len(data), 16):
        encryptor = Cipher(AES(key), ECB()).encryptor()  # noqa: S305 - one block of CFB
        stream = encryptor.update(register) + encryptor.finalize()
        register = bytes(a ^ b for a, b in zip(data[start : start + 16], stream, strict=False))
        out += register
    return out


def credential(
    algorithm: str,
    aes_bits: int,
    ek: ec.EllipticCurvePrivateKey,
    ephemeral: ec.EllipticCurvePrivateKey,
    *,
    name: bytes,
    secret: bytes,
) -> JSON:
    """Part 1 §24 and Annex C.6.3."""
    digest_bits = hashlib.new(algorithm).digest_size * 8
    (x, y), (ek_x, _) = coordinates(ephemeral), coordinates(ek)
    seed = kdfe(algorithm, ephemeral.exchange(ec.ECDH(), ek.public_key()), b"IDENTITY", x + ek_x, digest_bits)
    identity = cfb(kdfa(algorithm, seed, b"STORAGE", name, aes_bits), sized(secret))
    integrity_key = kdfa(algorithm, seed, b"INTEGRITY", b"", digest_bits)
    integrity = hmac.digest(integrity_key, identity + name, algorithm)
    return {
        "random": random_of(ephemeral).hex(),
        "seed": seed.hex(),
        "blob": (sized(integrity) + identity).hex(),
        "encryptedSecret": (sized(x) + sized(y)).hex(),
    }


def random_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The random bytes from which this ephemeral scalar comes: scalar = 1 + bytes mod (order - 1)."""
    return (key.private_numbers().private_value - 1).to_bytes(key.curve.key_size // 8 + 8, "big")


def context_of(ak_name: bytes, ek: ec.EllipticCurvePrivateKey) -> bytes:
    return lp(
        CLUSTER_UID.encode(),
        FIRST_UID.encode(),
        sha256(REQUEST),
        USERNAME.encode(),
        ak_name,
        sha256(spki(ek)),
        MACHINE_UID.encode(),
        str(CREATED).encode(),
    )


def label(purpose: str) -> bytes:
    return f"nodeattest/v1/{purpose}".encode()


def binding() -> bytes:
    return sha256(lp(label("binding"), EVIDENCE.encode(), PIN.encode(), SIGNER.encode(), sha256(CSR)))


def exchange(kind: str, algorithm: str, aes_bits: int, prefix: str, curve: type[ec.SECP256R1 | ec.SECP384R1]) -> JSON:
    ek, ephemeral = ec.derive_private_key(0xE4, curve()), ec.derive_private_key(0xEFE, curve())
    ak = ec.derive_private_key(0xA4, ec.SECP256R1())
    ek_public, ak_public = public_area(prefix, ek), public_area(ak_prefix(), ak)
    ak_name = name_of(ak_public)
    ctx, bound = context_of(ak_name, ek), binding()
    secret, nonce = (hkdf(MASTER, lp(label(purpose)) + ctx) for purpose in ("secret", "nonce"))
    made = credential(algorithm, aes_bits, ek, ephemeral, name=ak_name, secret=secret)
    mac = hmac.digest(secret, lp(label("proof"), FIRST_UID.encode(), sha256(CSR), bound), "sha256")
    challenge: JSON = {
        "v": 1,
        "uid": FIRST_UID,
        "spki": "sha256:" + sha256(b"the SPKI of the node's key").hex(),
        "n": b64url(nonce),
        "blob": b64url(bytes.fromhex(str(made["blob"]))),
        "secret": b64url(bytes.fromhex(str(made["encryptedSecret"]))),
        "pcrs": {"bank": "sha256", "select": [0, 7]},
    }
    return {
        "evidence": EVIDENCE,
        "endorsementKey": kind,
        "ekPublic": ek_public.hex(),
        "ekName": name_of(ek_public).hex(),
        "ekFingerprint": "sha256:" + sha256(spki(ek)).hex(),
        "akPublic": ak_public.hex(),
        "akName": ak_name.hex(),
        "akQualifiedName": "000b" + sha256(bytes.fromhex("4000000b") + ak_name).hex(),
        "binding": bound.hex(),
        "context": ctx.hex(),
        "secret": secret.hex(),
        "nonce": nonce.hex(),
        "credential": made,
        "challenge": json.dumps(challenge, sort_keys=True, separators=(",", ":")),
        "mac": mac.hex(),
        "extraData": sha256(lp(label("quote"), nonce, FIRST_UID.encode(), bound)).hex(),
    }


def content() -> bytes:
    vectors: JSON = {
        "masterKey": MASTER.hex(),
        "clusterUID": CLUSTER_UID,
        "machineUID": MACHINE_UID,
        "firstUID": FIRST_UID,
        "request": REQUEST.decode(),
        "csr": CSR.decode(),
        "username": USERNAME,
        "created": CREATED,
        "clusterPin": PIN,
        "signerName": SIGNER,
        "exchanges": [
            exchange(*key)
            for key in (
                ("ecc-p256", "sha256", 128, P256_PREFIX, ec.SECP256R1),
                ("ecc-p384", "sha384", 256, P384_PREFIX, ec.SECP384R1),
            )
        ],
    }
    return (json.dumps(vectors, indent=2) + "\n").encode()


if __name__ == "__main__":
    (FOLDER / "tpm.json").write_bytes(content())
