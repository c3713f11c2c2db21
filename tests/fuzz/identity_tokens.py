"""Targets of the identity room: untrusted tokens, and the documents and keys of issuers that are not ours."""

from __future__ import annotations

import json
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from fuzz.keys import NODE_KEY, NOW
from fuzz.target import Target, require
from nodeattest_identity.issuer.documents import DocumentError, documents, issuer_url, jwks_url, parse_configuration
from nodeattest_identity.issuer.keys import KeysError, read_jwks, read_pem, verifying_key
from nodeattest_identity.tokens import jwt
from nodeattest_parsing.strict_base64 import encode_base64url
from nodeattest_providers.errors import Denied

MOMENT: Final = int(NOW.timestamp())
"""Seconds since the epoch at which everything is evaluated."""
ISSUER: Final = "https://issuer.example"
AUDIENCE: Final = "vault"
KEY: Final = verifying_key(NODE_KEY.public_key())
_EXPECTED: Final = jwt.Expected(issuer=ISSUER, audiences=frozenset({AUDIENCE}), longest_lifetime=3600)
_LONG: Final = 40
"""Characters of a part that no message has by chance."""
_PRIVATE: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})
"""Members; as a kid each of them is as good as another text."""


def signed(header: bytes, claims: bytes) -> bytes:
    """Sign any header over any claims with ``KEY``, the same bytes each time."""
    text = f"{encode_base64url(header)}.{encode_base64url(claims)}".encode()
    r, s = decode_dss_signature(NODE_KEY.sign(text, ec.ECDSA(hashes.SHA256(), deterministic_signing=True)))
    return text + b"." + encode_base64url(r.to_bytes(32) + s.to_bytes(32)).encode()


def _jwt(data: bytes) -> bool:
    try:
        unverified = jwt.parse(data)
        require(unverified.token == data, "a token is what was read")
        claims = jwt.verify(unverified, (KEY,), _EXPECTED, MOMENT)
    except Denied as denied:
        require(denied.reason.startswith("JWT"), "a reason of tokens")
        long = [part for part in data.split(b".") if len(part) > _LONG]
        require(
            not any(part in str(denied).encode("utf-8", "replace") for part in long), "no part of the token is told"
        )
        return False
    require((claims.issuer, claims.key_id, claims.algorithm) == (ISSUER, KEY.kid, "ES256"), "the one issuer and key")
    require(AUDIENCE in claims.audiences and bool(claims.subject), "for us, and somebody's")
    require(-jwt.MAX_LEEWAY < claims.expires - MOMENT <= 3600 + jwt.MAX_LEEWAY, "good now, and not for too long")
    return True


def _signed(data: bytes) -> bool:
    """Sign what stands before and behind the first line end as header and claims: an issuer may write anything."""
    header, _, claims = data.partition(b"\n")
    if not _jwt(signed(header, claims)):
        return False
    members = json.loads(header)
    require(set(members) <= {"alg", "kid", "typ", "x5t", "x5t#S256"}, "no other header says yes")
    require(members["alg"] == "ES256" and members["kid"] == KEY.kid, "no other key says yes")
    return True


def _jwks(data: bytes) -> bool:
    for skip_unusable in (True, False):
        try:
            keys = read_jwks(data, skip_unusable=skip_unusable)
        except KeysError:
            continue
        written = documents(ISSUER, f"{ISSUER}/keys", keys).jwks
        members = {name for key in json.loads(written)["keys"] for name in key}
        require(_PRIVATE.isdisjoint(members), "no private member leaves")
        require(read_jwks(written) == keys, "what is written is read again")
        return True
    return False


def _pem(data: bytes) -> bool:
    try:
        keys = read_pem(data)
    except KeysError:
        return False
    unique = list({key.kid: key for key in keys}.values())
    require(list(read_jwks(documents(ISSUER, f"{ISSUER}/keys", keys).jwks)) == unique, "every key is published, once")
    return True


def _configuration(data: bytes) -> bool:
    try:
        configuration = parse_configuration(data)
    except DocumentError:
        return False
    require(issuer_url(configuration.issuer) == configuration.issuer, "an issuer's URL")
    require(jwks_url(configuration.jwks_uri).startswith("https://"), "keys over https")
    return True


TARGETS: Final = (
    Target("identity-jwt", _jwt),
    Target("identity-jwt-signed", _signed),
    Target("identity-jwks", _jwks),
    Target("identity-pem", _pem),
    Target("identity-configuration", _configuration, 2048),
)
