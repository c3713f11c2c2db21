"""Signs JWTs with a private RSA or P-256 key.

Promises: the header is exactly ``alg``, ``kid`` and ``typ``, of a token JWT, as Kubernetes demands of external
signers; the claims of a token are ``iss, sub, aud, iat, nbf, exp, jti`` and what is given besides. What is minted here,
``jwt`` verifies.
Leaves to others: who may have a token, where the key is kept, how often it is replaced.
Source: companion proposal 003, "Properties of this token"; Kubernetes externaljwt (header), RFC 7519 §4.1.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from joserfc import jws
from joserfc.jwk import ECKey, RSAKey

from nodeattest_identity.issuer.keys import KeysError, VerifyingKey, verifying_key
from nodeattest_kube.jsontypes import JsonObject, JsonValue

__all__ = ["SigningKey", "mint", "read_signing_key", "signing_key"]

_OURS: Final = frozenset({"iss", "sub", "aud", "iat", "nbf", "exp", "jti"})
_ALGORITHMS: Final = ("RS256", "ES256")
_MAX_PEM: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key and the public half by which others verify."""

    private: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey = field(repr=False)
    verifying: VerifyingKey


def signing_key(private: object) -> SigningKey:
    """Take a key of RSA 2048 or more, or P-256: what every relying party verifies; raises ``KeysError``."""
    if not isinstance(private, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        raise KeysError("expected a private key of RSA or P-256, got another kind")
    verifying = verifying_key(private.public_key())
    if verifying.alg not in _ALGORITHMS:
        raise KeysError(f"expected a private key of RSA or P-256, got one for {verifying.alg}")
    return SigningKey(private, verifying)


def read_signing_key(pem: bytes) -> SigningKey:
    """Read one unencrypted private key in PEM (PKCS#8, PKCS#1 or SEC 1); raises ``KeysError``."""
    if len(pem) > _MAX_PEM:
        raise KeysError(f"expected a private key in at most {_MAX_PEM} bytes of PEM, got {len(pem)}")
    try:
        private = load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it is encrypted
        raise KeysError("expected an unencrypted private key in PEM, got something else") from None
    return signing_key(private)


def mint(
    key: SigningKey,
    *,
    issuer: str,
    subject: str,
    audience: str,
    now: float,
    lifetime: int,
    jwt_id: str,
    extra: JsonObject | None = None,
) -> str:
    """Write a token that is good from ``now``, seconds since the epoch, for ``lifetime`` seconds.

    ``jwt_id`` is the caller's, from a source of randomness. ``extra`` may not replace a claim of ours.
    """
    more = extra or {}
    if not issuer or not subject or not audience or lifetime <= 0 or not _OURS.isdisjoint(more):
        raise ValueError("expected issuer, subject, audience, a lifetime, and extra claims of other names")
    start = int(now)
    claims: dict[str, JsonValue] = {
        "iss": issuer,
        "sub": subject,
        "aud": audience,
        "iat": start,
        "nbf": start,
        "exp": start + lifetime,
        "jti": jwt_id,
        **more,
    }
    header = {"alg": key.verifying.alg, "kid": key.verifying.kid, "typ": "JWT"}
    private = key.private
    jwk = RSAKey.import_key(private) if isinstance(private, rsa.RSAPrivateKey) else ECKey.import_key(private)
    payload = json.dumps(claims, separators=(",", ":"), ensure_ascii=False).encode()
    return jws.serialize_compact(header, payload, jwk, algorithms=[key.verifying.alg])
