"""Short-lived JWTs signed with a bootstrap token's secret (HS256), for the discovery front.

``verify`` proves that the sender knew the token's secret within the last two minutes. It computes one MAC even if the
token does not exist. A JWT always has ``typ``, a signature of cluster-info (``jws``) never, because one key makes both.
Source: companion proposal 000, "JWT authentication"; RFC 7515 §5.2, RFC 7519 §4.1 and §7.2, RFC 8725.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from nodeattest_discovery.token import BootstrapToken, is_token_id
from nodeattest_parsing import compact_jws
from nodeattest_parsing.strict_base64 import encode_base64url
from nodeattest_parsing.values import JsonObject, ParseError
from nodeattest_providers.errors import Denied, Reason

MAX_SIZE: Final = 4096
"""Bytes; ours have 180."""
LIFETIME: Final = 60
"""Seconds of ours: half of what is accepted, so that clocks may differ by nearly a minute."""
LONGEST: Final = 120
"""Maximum seconds until the expiration (proposal 000)."""
_MAC: Final = 32
"""Bytes of HMAC-SHA256."""
_MAX_AUDIENCE: Final = 253
_LATEST: Final = 2**53
"""Seconds; the largest integer that all JSON parsers read alike (RFC 8259 §6)."""
_HEADER: Final = frozenset({"alg", "kid", "typ"})
_CLAIMS: Final = frozenset({"sub", "exp"})
_OPTIONAL_CLAIMS: Final = frozenset({"iat", "aud"})
_NOBODY: Final = BootstrapToken("000000", "0000000000000000")
"""Used for the MAC if the token does not exist, so that this takes as long."""
_REMEDY: Final = "check the token, and the clock of the machine that asks: a request is valid for two minutes"

Mac = Callable[[bytes, bytes], bytes]
"""Computes a MAC from key and message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedJWT:
    """A well-formed JWT that is not verified yet."""

    token_id: str
    """The token that it claims to be made with."""
    expires: int
    """Seconds since the epoch."""
    issued: int | None
    audience: str | None
    signed: bytes = field(repr=False)
    signature: bytes = field(repr=False)


def hs256(key: bytes, message: bytes) -> bytes:
    """Compute HMAC-SHA256."""
    return hmac.digest(key, message, hashlib.sha256)


def mint(token: BootstrapToken, now: float, *, audience: str | None = None) -> str:
    """Make a JWT. ``now``: epoch seconds. ``audience``: the cluster's identifier, if known."""
    claims: dict[str, object] = {"sub": token.id, "iat": int(now), "exp": int(now) + LIFETIME}
    if audience is not None:
        claims["aud"] = audience
    header = b'{"alg":"HS256","kid":"%b","typ":"JWT"}' % token.id.encode()
    signed = f"{encode_base64url(header)}.{encode_base64url(json.dumps(claims, separators=(',', ':')).encode())}"
    return f"{signed}.{encode_base64url(hs256(token.secret.encode(), signed.encode()))}"


def parse(text: bytes) -> UnverifiedJWT:
    """Parse a JWT without verifying it. Raises ``Denied``.

    1. It has three parts of canonical base64url, at most 4 KiB together.
    2. The header is exactly ``alg`` HS256, ``typ`` JWT, and ``kid`` with a token's ID.
    3. The claims are ``sub`` (the same ID), ``exp``, and optionally ``iat`` and ``aud``. Times are whole seconds.
    4. The signature has the algorithm's length.
    """
    # 1, RFC 7515 §5.2 (1) and (2)
    try:
        jws = compact_jws.split(text, max_size=MAX_SIZE)
        claims = compact_jws.parse_claims(jws.payload)
    except ParseError as error:
        raise _refused(error.expected, error.found) from None
    # 2, RFC 8725 §3.1 and §3.11: the algorithm is ours to choose, and the type keeps one kind from passing for another
    members = _closed(jws.header, "header", _HEADER)
    token_id = members["kid"]
    if members["alg"] != "HS256" or members["typ"] != "JWT":
        raise _refused("alg HS256 and typ JWT", "others")
    if not isinstance(token_id, str) or not is_token_id(token_id):
        raise _refused("kid to be the id of a token", "something else")
    # 3, RFC 7519 §4.1
    members = _closed(claims, "claims", _CLAIMS, _OPTIONAL_CLAIMS)
    if members["sub"] != token_id:
        raise _refused("sub to be the kid", "another")
    issued = _seconds(members["iat"], "iat") if "iat" in members else None
    audience = _audience(members["aud"]) if "aud" in members else None
    # 4
    if len(jws.signature) != _MAC:
        raise _refused(f"a signature of {_MAC} bytes", f"{len(jws.signature)}")
    return UnverifiedJWT(
        token_id=token_id,
        expires=_seconds(members["exp"], "exp"),
        issued=issued,
        audience=audience,
        signed=jws.signed,
        signature=jws.signature,
    )


def verify(
    unverified: UnverifiedJWT,
    token: BootstrapToken | None,
    *,
    now: float,
    audience: str | None = None,
    mac: Mac = hs256,
) -> None:
    """Verify a JWT. ``token``: the token that its ``token_id`` names, or None. Raises ``Denied``.

    1. The signature is the token's. Without a token, the MAC of a dummy is computed.
    2. It has not expired. 3. It expires within two minutes from now and from ``iat``.
    4. If it has an audience, this is the cluster's identifier.
    """
    known = token if token is not None and token.id == unverified.token_id and token.secret else None
    # 1, RFC 7515 §5.2 (8)
    key = (known or _NOBODY).secret.encode("utf-8", "surrogateescape")
    if not hmac.compare_digest(mac(key, unverified.signed), unverified.signature) or known is None:
        raise _refused("a MAC by the token's secret", "another, or no token")
    # 2, RFC 7519 §4.1.4
    left = unverified.expires - now
    if left <= 0:
        raise _refused("a time to come", f"{-left:.0f} s ago")
    # 3, proposal 000
    lasts = 0 if unverified.issued is None else unverified.expires - unverified.issued
    if left > LONGEST or not 0 <= lasts <= LONGEST:
        raise _refused(f"at most {LONGEST} s to the expiration, now and from iat", f"{left:.0f} s and {lasts} s")
    # 4, RFC 7519 §4.1.3
    if unverified.audience not in {None, audience}:
        raise _refused("this cluster's identifier as audience, or none", "another's")


def _closed(
    members: JsonObject, what: str, required: frozenset[str], optional: frozenset[str] = frozenset()
) -> JsonObject:
    if not required <= members.keys() <= required | optional:
        expected = ", ".join(sorted(required)) + (f", perhaps {', '.join(sorted(optional))}" if optional else "")
        raise _refused(f"{what}: exactly {expected}", f"{len(members)} members, or others")
    return members


def _seconds(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LATEST:
        raise _refused(f"{name} in whole seconds since 1970", "something else")
    return value


def _audience(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_AUDIENCE or not value.isprintable():
        raise _refused(f"aud: one text of at most {_MAX_AUDIENCE} characters", "something else")
    return value


def _refused(expected: str, got: str) -> Denied:
    return Denied(Reason.DISCOVERY_REQUEST_REFUSED, expected=expected, got=got, remedy=_REMEDY)
