"""JWTs (JWS compact): signed with a private RSA or P-256 key, and verified strictly under an issuer's keys.

It is stricter than other relying parties: ``kid`` is required, unknown header members and types are refused. No message
quotes the token.
Source: companion proposal 003, "Properties of this token"; RFC 7515 §5.2 and §4.1, RFC 7519 §2, §4.1 and §7.2, RFC 8725
§3; Kubernetes pkg/serviceaccount/jwt.go and externaljwt.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey

from nodeattest_identity.issuer.keys import KeysError, VerifyingKey, verifying_key
from nodeattest_parsing import compact_jws
from nodeattest_parsing.values import JsonObject, JsonValue, ParseError
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.keys import PrivateKey

MAX_SIZE: Final = 8192
"""Bytes: what fits into one header field of a request; a token of kube-apiserver takes 1,100."""
MAX_LEEWAY: Final = 5.0
"""Seconds that two clocks may differ."""
ALGORITHMS: Final = ("RS256", "ES256", "ES384", "ES512")
"""What kube-apiserver signs with (pkg/serviceaccount/jwt.go signerFromRSAPrivateKey, signerFromECDSAPrivateKey)."""
_SIGNING_ALGORITHMS: Final = ("RS256", "ES256")
"""What every relying party verifies."""
_MAX_PEM: Final = 64 * 1024
_MAX_KID: Final = 1024
"""Bytes (Kubernetes externaljwt)."""
_HEADER: Final = frozenset({"alg", "kid", "typ", "x5t", "x5t#S256"})
"""Members of a header; hashes of certificates (x5t) are hints that are not followed."""
_KNOWN: Final = frozenset({"iss", "sub", "aud", "exp", "nbf", "iat", "jti"})
_MAX_AUDIENCES: Final = 64
_SHOWN: Final = 128
_WHOLE: Final = "check that the whole token was given, and who made it"
_REQUEST: Final = (
    "ask for a token of a service account by TokenRequest (kubectl create token, a projected volume): it has an "
    "audience and an end"
)
_SIGNER: Final = "let the issuer sign with RS256 or ES256; symmetric keys and none are never taken"
_KEYS: Final = "check that the token is this issuer's, and that the issuer publishes its keys"
_CLOCK: Final = "set the clocks of both sides by NTP, and ask for a new token"


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key and the public half by which others verify."""

    private: PrivateKey = field(repr=False)
    verifying: VerifyingKey


def signing_key(private: object) -> SigningKey:
    """Take a key of RSA 2048 or more, or P-256; raises ``KeysError``."""
    if isinstance(private, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        verifying = verifying_key(private.public_key())
        if verifying.alg in _SIGNING_ALGORITHMS:
            return SigningKey(private, verifying)
    raise KeysError("expected a private key of RSA or P-256, got another kind")


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
    extra: JsonObject | None = None,
) -> str:
    """Write a token that is valid from ``now``, seconds since the epoch, for ``lifetime`` seconds."""
    extra = extra or {}
    if not issuer or not subject or not audience or lifetime <= 0 or not _KNOWN.isdisjoint(extra):
        raise ValueError("expected issuer, subject, audience, a lifetime, and extra claims of other names")
    start = int(now)
    claims: JsonObject = {"iss": issuer, "sub": subject, "aud": audience, "iat": start, "nbf": start}
    claims |= {"exp": start + lifetime, "jti": secrets.token_urlsafe(16), **extra}
    header = {"alg": key.verifying.alg, "kid": key.verifying.kid, "typ": "JWT"}
    private = key.private
    jwk = RSAKey.import_key(private) if isinstance(private, rsa.RSAPrivateKey) else ECKey.import_key(private)
    payload = json.dumps(claims, separators=(",", ":"), ensure_ascii=False).encode()
    return jws.serialize_compact(header, payload, jwk, algorithms=[key.verifying.alg])


@dataclass(frozen=True, slots=True)
class UnverifiedToken:
    """A well-formed JWT that is not verified."""

    key_id: str
    algorithm: str
    payload: bytes = field(repr=False)
    token: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The content of a verified token; times are in seconds since the epoch."""

    subject: str
    issuer: str
    audiences: tuple[str, ...]
    expires: float
    issued_at: float | None
    not_before: float | None
    jwt_id: str | None
    key_id: str
    algorithm: str
    extra: JsonObject = field(repr=False)
    """All other claims, as they stand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a relying party accepts."""

    issuer: str
    """Compared byte for byte: a slash more is another issuer."""
    audiences: frozenset[str]
    """One of these must be the token's."""
    longest_lifetime: float | None = None
    """Seconds that a token may be good for, from ``iat`` and from now."""
    single_audience: bool = False
    """Whether a token for several audiences is refused: each of them could hand it on to the others."""

    def __post_init__(self) -> None:
        """Refuse expectations that everybody, or nobody, would meet."""
        if not self.issuer or not self.audiences or "" in self.audiences:
            raise ValueError("expected an issuer and at least one audience, got an empty one")


def parse(token: bytes | str) -> UnverifiedToken:
    """Parse a JWT without verifying it; raises ``Denied``.

    1. Three parts of at most 8 KiB together, each base64url in its one spelling.
    2. The header is an object of known members: ``alg``, ``kid``, perhaps ``typ`` JWT. No ``crit``, no key inside it.
    """
    data = token.encode("utf-8", "surrogatepass") if isinstance(token, str) else token
    # 1, RFC 7515 §5.2 (1) to (3)
    try:
        found = compact_jws.split(data, max_size=MAX_SIZE)
    except ParseError as error:
        raise _malformed(f"a JWT: {error.expected}", error.found) from None
    if not found.payload or not found.signature:
        raise _malformed("a JWT: claims and a signature", "an empty part")
    # 2, RFC 7515 §4.1; RFC 8725 §3.1, §3.10 and §3.11
    members = found.header
    algorithm, key_id, typ = members.get("alg"), members.get("kid"), members.get("typ", "JWT")
    if not members.keys() <= _HEADER:
        raise _malformed("a header of alg, kid and typ", "other members: crit, or a key of its own, is never followed")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise _denied(Reason.JWT_ALGORITHM_NOT_ALLOWED, f"alg among {', '.join(ALGORITHMS)}", "another", _SIGNER)
    if not isinstance(key_id, str) or not 0 < len(key_id.encode()) <= _MAX_KID:
        raise _malformed("kid: the name of the key", "none, or something else")
    if not isinstance(typ, str) or typ.upper() != "JWT":
        raise _malformed("typ JWT, or none", "another type of token")
    return UnverifiedToken(key_id, algorithm, found.payload, data)


def verify(
    token: bytes | str | UnverifiedToken, keys: Sequence[VerifyingKey], expected: Expected, now: float
) -> Claims:
    """Verify a token at ``now``, seconds since the epoch; raises ``Denied``.

    1. Its ``kid`` names one of the keys, and its algorithm is that key's own. 2. That key signed it. 3. The claims are
    well-formed. 4. The issuer is the expected one, byte for byte. 5. One of its audiences is expected. 6. It has not
    expired, is valid already and was issued in the past. 7. It lasts no longer than expected.
    """
    unverified = token if isinstance(token, UnverifiedToken) else parse(token)
    # 1, RFC 7515 §4.1.4; RFC 8725 §3.1 and §3.2
    key = next((key for key in keys if key.kid == unverified.key_id), None)
    if key is None:
        got = f"kid {printable(unverified.key_id)}"
        raise _denied(Reason.JWT_KEY_UNKNOWN, f"a kid of one of the issuer's {len(keys)} keys", got, _KEYS)
    if key.alg != unverified.algorithm:
        raise _denied(Reason.JWT_ALGORITHM_NOT_ALLOWED, f"the key's own alg {key.alg}", unverified.algorithm, _SIGNER)
    # 2, RFC 7515 §5.2 (8)
    if not _is_signed_by(unverified, key):
        raise _denied(Reason.JWT_SIGNATURE_INVALID, "a signature by the key that kid names", "another", _KEYS)
    # 3
    claims = _read_claims(unverified)
    # 4, RFC 7519 §4.1.1; OpenID Connect Core §3.1.3.7 (2)
    if claims.issuer != expected.issuer:
        remedy = "give the issuer exactly as tokens have it, slash included, or take a token of that issuer"
        raise _denied(Reason.JWT_ISSUER_MISMATCH, f"iss {printable(expected.issuer)}", printable(claims.issuer), remedy)
    # 5, RFC 7519 §4.1.3; RFC 8725 §3.9
    several = expected.single_audience and len(claims.audiences) > 1
    if several or expected.audiences.isdisjoint(claims.audiences):
        wanted = f"aud {' or '.join(map(printable, sorted(expected.audiences)))}{' alone' if several else ''}"
        got = ", ".join(map(printable, claims.audiences[:4]))
        remedy = "ask for a token with this audience (kubectl create token --audience)"
        raise _denied(Reason.JWT_AUDIENCE_MISMATCH, wanted, got, remedy)
    # 6 and 7
    _check_times(claims, expected.longest_lifetime, now)
    return claims


def printable(text: str) -> str:
    """Make an untrusted text fit for a message: printable, ASCII and short."""
    return text if len(text) <= _SHOWN and text.isascii() and text.isprintable() else f"{text[:_SHOWN]!a}"


class _Registry(jws.JWSRegistry):
    """joserfc's rules with room for a kid of 1 KiB and a signature of RSA 8192; everything was parsed before."""

    max_header_length = MAX_SIZE
    max_payload_length = MAX_SIZE
    max_signature_length = MAX_SIZE


def _is_signed_by(unverified: UnverifiedToken, key: VerifyingKey) -> bool:
    try:
        proved = jws.deserialize_compact(unverified.token, key.jwk, registry=_Registry(algorithms=[key.alg]))
    except (JoseError, ValueError):
        return False
    return proved.payload == unverified.payload


def _read_claims(unverified: UnverifiedToken) -> Claims:
    """Read claims; raises ``Denied``. Tokens of old Secrets have neither ``aud`` nor ``exp``, and are refused."""
    try:
        members = compact_jws.parse_claims(unverified.payload)
        expires, issued_at, not_before = (compact_jws.numeric_date(members, name) for name in ("exp", "iat", "nbf"))
    except ParseError as error:
        raise _malformed(error.expected, error.found) from None
    missing = [name for name in ("iss", "sub", "aud", "exp") if name not in members]
    if missing or expires is None:
        raise _malformed("claims iss, sub, aud and exp", f"none of name {', '.join(missing)}", _REQUEST)
    value = members["aud"]  # one audience, or a list of them (RFC 7519 §4.1.3)
    given = value if isinstance(value, list) else [value]
    audiences = tuple(each for each in given if isinstance(each, str) and each)
    if len(audiences) != len(given) or not 0 < len(audiences) <= _MAX_AUDIENCES:
        raise _malformed(f"aud: a text, or a list of 1 to {_MAX_AUDIENCES} texts", "something else", _REQUEST)
    return Claims(
        subject=_text(members["sub"], "sub"),
        issuer=_text(members["iss"], "iss"),
        audiences=audiences,
        expires=expires,
        issued_at=issued_at,
        not_before=not_before,
        jwt_id=_text(members["jti"], "jti") if "jti" in members else None,
        key_id=unverified.key_id,
        algorithm=unverified.algorithm,
        extra={name: value for name, value in members.items() if name not in _KNOWN},
    )


def _text(value: JsonValue, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise _malformed(f"{name}: a text", "something else, or an empty one")
    return value


def _check_times(claims: Claims, longest: float | None, now: float) -> None:
    # RFC 7519 §4.1.4: now must be before exp
    if now >= claims.expires + MAX_LEEWAY:
        raise _denied(Reason.JWT_EXPIRED, "exp to come", f"{now - claims.expires:.0f} s ago", _CLOCK)
    # RFC 7519 §4.1.5, and §4.1.6: nobody has issued a token in the future
    for name, moment in (("nbf", claims.not_before), ("iat", claims.issued_at)):
        if moment is not None and moment > now + MAX_LEEWAY:
            raise _denied(Reason.JWT_NOT_YET_VALID, f"{name} in the past", f"{moment - now:.0f} s ahead", _CLOCK)
    ahead = claims.expires - now
    lasts = 0.0 if claims.issued_at is None else claims.expires - claims.issued_at
    if longest is not None and (lasts > longest or ahead > longest + MAX_LEEWAY):
        got = f"{max(lasts, ahead):.0f} s"
        remedy = "ask for a token that lasts shorter"
        raise _denied(Reason.JWT_LIFETIME_TOO_LONG, f"good for at most {longest:.0f} s", got, remedy)


def _malformed(expected: str, got: str, remedy: str = _WHOLE) -> Denied:
    return _denied(Reason.JWT_MALFORMED, expected, got, remedy)


def _denied(reason: Reason, expected: str, got: str, remedy: str) -> Denied:
    return Denied(reason, expected=expected, got=got, remedy=remedy)
