"""JWTs that nobody of ours would write, for the tests of those who read them."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Final

from nodeattest_discovery.token import BootstrapToken
from nodeattest_parsing.strict_base64 import encode_base64url

NOW: Final = 1_800_000_000
TOKEN: Final = BootstrapToken("abcdef", "0123456789abcdef")
HEADER: Final[dict[str, object]] = {"alg": "HS256", "kid": TOKEN.id, "typ": "JWT"}
CLAIMS: Final[dict[str, object]] = {"sub": TOKEN.id, "iat": NOW, "exp": NOW + 60}


def spell(value: object) -> bytes:
    """Write JSON as short as it gets."""
    return json.dumps(value, separators=(",", ":")).encode()


def jwt(
    header: object = HEADER, claims: object = CLAIMS, *, secret: str = TOKEN.secret, digest: str = "sha256"
) -> bytes:
    """Sign any header over any claims; bytes stand as they are."""
    parts = [part if isinstance(part, bytes) else spell(part) for part in (header, claims)]
    signed = ".".join(map(encode_base64url, parts)).encode()
    return signed + b"." + encode_base64url(hmac.digest(secret.encode(), signed, getattr(hashlib, digest))).encode()
