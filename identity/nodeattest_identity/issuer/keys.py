"""Public keys by which service accounts' tokens are verified, out of PEM files and key sets.

Only the public half of what is read leaves this module. A key is what kube-apiserver can sign with.
Source: Kubernetes client-go util/keyutil/key.go ParsePublicKeysPEM, pkg/serviceaccount/jwt.go keyIDFromPublicKey,
pkg/serviceaccount/openidmetadata.go; RFC 7517 §4 and §5, RFC 7518 §6.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_private_key,
    load_der_public_key,
)
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey

from nodeattest_kube.answers import parse_json
from nodeattest_parsing.strict_base64 import encode_base64url
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.certificate_chain import X509_ERRORS
from nodeattest_providers.keys import PublicKey

MAX_SIZE: Final = 1 << 20
"""Bytes of a file or a key set; a hundred keys take 60 KiB."""
MAX_KEYS: Final = 128
"""An issuer has one to ten; a key takes 0.3 ms to read."""
_MIN_RSA: Final = 2048
_MAX_RSA: Final = 8192
_MAX_KID: Final = 1024
"""Bytes (Kubernetes externaljwt: a signer's kid)."""
_LARGEST_EXPONENT: Final = 2**31 - 1
"""Go's crypto/rsa takes no larger one."""
_PRIVATE: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})
"""Members that only a private or a symmetric key has (RFC 7518 §6.2.2, §6.3.2, §6.4)."""
_ALGORITHMS: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_KINDS: Final = {"RSA": ("n", "e"), "EC": ("crv", "x", "y")}
"""The public members of each kind of key."""
_MIN_NUMBER: Final = 342
_MAX_NUMBER: Final = 1366
"""Characters of the modulus of RSA 2048 and 8192."""
_MAX_DASHES: Final = 64
"""Of one block; its two ends have 20."""
_BLOCK: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,40})-----\r?\n((?:[^-]++|-(?!----))*+)-----END \1-----")
"""A body has no five dashes, and is read once also where a block has no end."""
_BLANKS: Final = b" \t\n\r\v\f"
_PRIVATE_BLOCKS: Final = frozenset({"PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"})


class KeysError(ValueError):
    """Keys that cannot be used: says what was expected and what was found, and quotes no key."""


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """One key by which tokens are verified."""

    public: PublicKey
    kid: str
    """Its name in a token's header: of ours, the SHA-256 of the SubjectPublicKeyInfo in base64url."""
    alg: str
    """RS256, ES256, ES384 or ES512: the one algorithm that this key verifies."""

    @property
    def spki(self) -> bytes:
        return self.public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

    @property
    def jwk(self) -> RSAKey | ECKey:
        public = self.public
        return RSAKey.import_key(public) if isinstance(public, rsa.RSAPublicKey) else ECKey.import_key(public)


def verifying_key(key: object) -> VerifyingKey:
    """Name a public key as kube-apiserver does; raises ``KeysError`` for a kind that it cannot sign with."""
    public, alg = _usable(key)
    spki = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return VerifyingKey(public, encode_base64url(hashlib.sha256(spki).digest()), alg)


def read_pem(data: bytes) -> tuple[VerifyingKey, ...]:
    """Read a file of ``--service-account-key-file``: its keys in their order, of private ones the public half.

    kube-apiserver passes over a block that it cannot read. Here one that is no key raises ``KeysError``, because a key
    that silently is not published locks tokens out.
    """
    if len(data) > MAX_SIZE:
        raise KeysError(f"expected at most {MAX_SIZE} bytes of PEM, got {len(data)}")
    if data.count(b"-----BEGIN ") > MAX_KEYS:
        raise KeysError(f"expected at most {MAX_KEYS} PEM blocks, got more")
    if data.count(b"-") > MAX_KEYS * _MAX_DASHES:  # each takes a step
        raise KeysError("expected PEM blocks, got too many dashes between them")
    blocks = [(found[1].decode(), found[2]) for found in _BLOCK.finditer(data)]
    if data.count(b"-----BEGIN ") != len(blocks):
        raise KeysError("expected whole PEM blocks, got one that does not end or has another name at its end")
    keys = tuple(_of_block(label, body) for label, body in blocks if label != "EC PARAMETERS")
    if not keys:
        raise KeysError("expected at least one RSA or ECDSA key in PEM, got none")
    return keys


def read_jwks(body: bytes, *, skip_unusable: bool = False) -> tuple[VerifyingKey, ...]:
    """Read a key set (RFC 7517 §5): its keys in their order, under the names that it gives them.

    ``skip_unusable``: pass over keys that verify no token here, as a reader of any issuer's set must. A private member,
    two keys of one name, what is no key, or nothing usable always raises ``KeysError``. A key that comes twice is read
    once: kube-apiserver repeats one that is in two of its files.
    """
    if len(body) > MAX_SIZE:
        raise KeysError(f"expected at most {MAX_SIZE} bytes of a key set, got {len(body)}")
    try:
        members = parse_json(body, max_values=MAX_KEYS * 16).get("keys")
    except ValueError as error:
        raise KeysError(f"expected a key set in JSON, got {error}") from None
    if not isinstance(members, list) or not 0 < len(members) <= MAX_KEYS:
        raise KeysError(f"expected `keys` with 1 to {MAX_KEYS} keys, got none or more")
    keys: list[VerifyingKey] = []
    unusable: KeysError | None = None
    for each in map(_public_member, members):
        try:
            keys.append(_of_jwk(each))
        except KeysError as error:
            if not skip_unusable:
                raise
            unusable = unusable or error
    if not keys:
        raise KeysError(f"expected at least one key that verifies tokens, got none; of the first: {unusable}")
    return deduplicate(keys)


def deduplicate(keys: Iterable[VerifyingKey]) -> tuple[VerifyingKey, ...]:
    """Leave out keys that were there before; raises ``KeysError`` for two different ones of one name."""
    named: dict[str, VerifyingKey] = {}
    for key in keys:
        if named.setdefault(key.kid, key).spki != key.spki:
            raise KeysError("expected every key under a name of its own, got two of one kid")
    return tuple(named.values())


def read_key_file(path: Path, read: Callable[[bytes], tuple[VerifyingKey, ...]] = read_pem) -> tuple[VerifyingKey, ...]:
    """Read the keys of a file; raises ``KeysError``, which names it."""
    try:
        with path.open("rb") as file:
            return read(file.read(MAX_SIZE + 1))
    except OSError as error:
        raise KeysError(
            f"{path}: expected a readable file with keys, got {error.strerror!r}; give the path of a file, its public "
            "half is enough"
        ) from None
    except KeysError as error:
        raise KeysError(f"{path}: {error}") from None


def _of_block(label: str, body: bytes) -> VerifyingKey:
    try:
        der = base64.b64decode(body.translate(None, _BLANKS), validate=True)
        if label in _PRIVATE_BLOCKS:
            return verifying_key(load_der_private_key(der, None).public_key())
        if label == "CERTIFICATE":
            return verifying_key(x509.load_der_x509_certificate(der).public_key())
        if label in {"PUBLIC KEY", "RSA PUBLIC KEY"}:
            return verifying_key(load_der_public_key(der))
    except KeysError:
        raise
    except X509_ERRORS:  # TypeError among them: a key under a password
        raise KeysError(f"expected an unencrypted key, got a block {label} that cannot be read") from None
    raise KeysError(f"expected PUBLIC KEY, CERTIFICATE or a private key, got a block {label}")


def _usable(key: object) -> tuple[PublicKey, str]:
    if isinstance(key, rsa.RSAPublicKey):
        if not _MIN_RSA <= key.key_size <= _MAX_RSA:
            raise KeysError(f"expected RSA of {_MIN_RSA} to {_MAX_RSA} bits, got {key.key_size}")
        if key.public_numbers().e > _LARGEST_EXPONENT:
            raise KeysError(f"expected an RSA exponent of at most {_LARGEST_EXPONENT}, got a larger one")
        return key, "RS256"
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in _ALGORITHMS:
        return key, _ALGORITHMS[key.curve.name]
    raise KeysError("expected RSA, or ECDSA on P-256, P-384 or P-521, got another key")


def _public_member(value: JsonValue) -> JsonObject:
    if not isinstance(value, dict):
        raise KeysError("expected JSON objects as keys, got something else")
    if not _PRIVATE.isdisjoint(value):
        raise KeysError("expected public keys only, got a private or symmetric member")
    return value


def _of_jwk(value: JsonObject) -> VerifyingKey:
    kind, kid = value.get("kty"), value.get("kid")
    if not isinstance(kind, str) or kind not in _KINDS or value.get("use", "sig") != "sig":
        raise KeysError("expected keys of kty RSA or EC for use sig, got another")
    if not isinstance(kid, str) or not 0 < len(kid.encode()) <= _MAX_KID:
        raise KeysError(f"expected a kid of 1 to {_MAX_KID} bytes, got another")
    names = _KINDS[kind]
    members = {name: text for name in names if isinstance(text := value.get(name), str) and text}
    if len(members) < len(names) or max(map(len, members.values())) > _MAX_NUMBER:
        raise KeysError(f"expected {', '.join(names)} in base64url of at most {_MAX_NUMBER} characters, got others")
    if kind == "RSA" and len(members["n"]) < _MIN_NUMBER:
        raise KeysError(f"expected RSA of {_MIN_RSA} to {_MAX_RSA} bits, got fewer")
    try:
        public, alg = _usable(_import(kind, members))
    except (JoseError, ValueError, KeyError) as error:  # KeyError: another curve
        if isinstance(error, KeysError):
            raise
        raise KeysError(f"expected an {kind} key on a known curve in canonical base64url, got another") from None
    if value.get("alg", alg) != alg:
        raise KeysError(f"expected alg {alg} for this key, got another")
    return VerifyingKey(public, kid, alg)


def _import(kind: str, members: dict[str, str]) -> PublicKey:
    """Import a key; each coordinate is as long as the curve's field, zeros included (RFC 7518 §6.2.1.2)."""
    if kind == "RSA":
        return RSAKey.import_key({"kty": kind, **members}).public_key
    key = ECKey.import_key({"kty": kind, **members})
    if not members.items() <= key.as_dict(private=False).items():
        raise KeysError("expected coordinates as long as the curve's field, got others")
    return key.public_key
