"""Issuers, their keys and tokens that nobody honest would write, for the tests of those who verify."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from functools import cache
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nodeattest_identity.issuer.keys import VerifyingKey, verifying_key
from nodeattest_identity.tokens.jwt import Expected, SigningKey

NOW: Final = 1_800_000_000
ISSUER: Final = "https://issuer.example/cluster-1"
AUDIENCE: Final = "vault.example"
SUBJECT: Final = "system:serviceaccount:shop:cart"
EXPECTED: Final = Expected(issuer=ISSUER, audiences=frozenset({AUDIENCE}))
_CURVES: Final = {256: ec.SECP256R1(), 384: ec.SECP384R1(), 521: ec.SECP521R1()}
_HASHES: Final = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}


def new_key() -> VerifyingKey:
    return verifying_key(ec.generate_private_key(ec.SECP256R1()).public_key())


def pem(*keys: VerifyingKey) -> bytes:
    return b"".join(key.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo) for key in keys)


def rsa_key(which: int = 0) -> SigningKey:
    """Make an RSA key, always the same within a run."""
    return _key(which, 0)


def elliptic(which: int = 0, *, bits: int = 256) -> SigningKey:
    """Make a key on P-256, P-384 or P-521, always the same within a run; we mint with the first only."""
    return _key(which, bits)


def header(key: SigningKey, **changed: object) -> dict[str, object]:
    """Write the header of a genuine token; a member that is changed to None is left out."""
    genuine = {"alg": key.verifying.alg, "kid": key.verifying.kid, "typ": "JWT"}
    return {name: value for name, value in (genuine | changed).items() if value is not None}


def claims(now: int = NOW, issuer: str = ISSUER, **changed: object) -> dict[str, object]:
    """Write the claims of a genuine token of kube-apiserver; a member that is changed to None is left out."""
    genuine: dict[str, object] = {
        "aud": [AUDIENCE],
        "exp": now + 600,
        "iat": now,
        "iss": issuer,
        "kubernetes.io": {"namespace": "shop", "serviceaccount": {"name": "cart", "uid": "0-1"}},
        "nbf": now,
        "sub": SUBJECT,
    }
    return {name: value for name, value in (genuine | changed).items() if value is not None}


def token(
    key: SigningKey,
    given_header: object = None,
    given_claims: object = None,
    *,
    secret: bytes | None = None,
    unsigned: bool = False,
) -> bytes:
    """Sign any header over any claims with a key; bytes stand as they are. ``secret`` makes an HMAC instead."""
    parts = [
        given_header if given_header is not None else header(key),
        given_claims if given_claims is not None else claims(),
    ]
    spelt = [part if isinstance(part, bytes) else json.dumps(part, separators=(",", ":")).encode() for part in parts]
    signed = b".".join(map(b64u, spelt))
    if unsigned:
        return signed + b"."
    if secret is not None:
        return signed + b"." + b64u(hmac.digest(secret, signed, hashlib.sha256))
    return signed + b"." + b64u(_signature(key, signed))


def bad_tokens(key: SigningKey, stranger: SigningKey, now: int, issuer: str, **more: object) -> dict[str, bytes]:
    """Make the ten bad tokens of which every relying party must refuse nine; ``stranger`` is a key of nobody.

    The tenth, without a kid, is refused by those who name a key by its kid only.
    """
    good, plain = header(key), claims(now, issuer, **more)
    spki = key.verifying.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return {
        "expired": token(key, good, claims(now - 3600, issuer, **more)),
        "another issuer by a slash": token(key, good, claims(now, issuer + "/", **more)),
        "another audience": token(key, good, claims(now, issuer, aud=["somebody.example"], **more)),
        "an unknown key": token(stranger, header(stranger), plain),
        "a known kid over another key": token(stranger, header(stranger, kid=key.verifying.kid), plain),
        "not yet valid": token(key, good, claims(now, issuer, nbf=now + 1800, **more)),
        "alg none": token(key, header(key, alg="none"), plain, unsigned=True),
        "an unknown crit": token(key, header(key, crit=["x-unknown"], **{"x-unknown": 1}), plain),
        "HS256 under the public key": token(key, header(key, alg="HS256"), plain, secret=spki),
        "no kid": token(key, header(key, kid=None), plain),
    }


def b64u(data: bytes) -> bytes:
    """Encode without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _signature(key: SigningKey, signed: bytes) -> bytes:
    """Sign by cryptography alone: a second opinion of what joserfc makes."""
    private, digest = key.private, _HASHES[key.verifying.alg[2:]]
    if isinstance(private, rsa.RSAPrivateKey):
        return private.sign(signed, padding.PKCS1v15(), digest)
    size = (private.curve.key_size + 7) // 8
    r, s = decode_dss_signature(private.sign(signed, ec.ECDSA(digest)))
    return r.to_bytes(size) + s.to_bytes(size)


@cache
def _key(which: int, bits: int) -> SigningKey:
    del which
    private = ec.generate_private_key(_CURVES[bits]) if bits else rsa.generate_private_key(65537, 2048)
    return SigningKey(private, verifying_key(private.public_key()))
