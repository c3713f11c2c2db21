"""The token endpoint: service accounts with keys, and access tokens for their signed assertions.

Promises: an assertion is verified as Google does: RS256 by a key of that account, audience, issuer, times of at most an
hour; tokens are random, end, and are this cloud's own.
Source: RFC 7523 §2.1; Google, "Using OAuth 2.0 for Server to Server Applications".
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, cast
from urllib.parse import parse_qs

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from clouds.serving import Reply, Request, as_json

_GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_AUDIENCE: Final = "https://oauth2.googleapis.com/token"
"""What Google has assertions name, wherever its token endpoint is."""
_LIFE: Final = 3600
"""Seconds, of assertions and of tokens."""
_SKEW: Final = 300


@dataclass(slots=True)
class TokenServer:
    """Issues access tokens and knows whose they are."""

    url: str = ""
    """Of the token endpoint."""
    _keys: dict[str, rsa.RSAPrivateKey] = field(default_factory=dict[str, rsa.RSAPrivateKey], repr=False)
    _tokens: dict[str, tuple[str, float]] = field(default_factory=dict[str, tuple[str, float]], repr=False)

    def account_key(self, email: str, project: str) -> str:
        """Make a service account with a key; return the key file's JSON."""
        key = self._keys[email] = rsa.generate_private_key(65537, 2048)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        return json.dumps(
            {
                "type": "service_account",
                "project_id": project,
                "private_key_id": "sandbox",
                "private_key": pem,
                "client_email": email,
                "client_id": "100",
                "token_uri": self.url,
            }
        )

    def issue(self, email: str) -> str:
        """Make a token."""
        token = f"ya29.{secrets.token_urlsafe(32)}"
        self._tokens[token] = (email, time.time() + _LIFE)
        return token

    def revoke_all(self) -> None:
        """Make every token that was issued useless."""
        self._tokens.clear()

    def holder(self, authorization: str) -> str | None:
        """Tell whose bearer token this is."""
        scheme, _, token = authorization.partition(" ")
        email, end = self._tokens.get(token, ("", 0.0))
        return email if scheme == "Bearer" and time.time() < end else None

    def answer(self, request: Request) -> Reply:
        """Answer a request for a token."""
        form = {name: values[0] for name, values in parse_qs(request.body.decode("ascii", "replace")).items()}
        if request.method != "POST" or form.get("grant_type") != _GRANT:
            return as_json({"error": "unsupported_grant_type"}, 400)
        email = self._verified(form.get("assertion", ""))
        if email is None:
            return as_json({"error": "invalid_grant", "error_description": "Invalid JWT Signature."}, 400)
        return as_json({"access_token": self.issue(email), "expires_in": _LIFE, "token_type": "Bearer"})

    def _verified(self, assertion: str) -> str | None:
        parts = assertion.split(".")
        try:
            header, claims = (_object(part) for part in parts[:2])
            signature = _decoded(parts[2])
        except (ValueError, IndexError):
            return None
        key = self._keys.get(str(claims.get("iss")))
        issued, ends, now = claims.get("iat"), claims.get("exp"), time.time()
        if key is None or header.get("alg") != "RS256" or claims.get("aud") != _AUDIENCE or not claims.get("scope"):
            return None
        if not isinstance(issued, int) or not isinstance(ends, int):
            return None
        if not now - _LIFE - _SKEW < issued < now + _SKEW or not now - _SKEW < ends <= issued + _LIFE:
            return None
        try:
            message = ".".join(parts[:2]).encode()
            key.public_key().verify(signature, message, padding.PKCS1v15(), hashes.SHA256())
        except InvalidSignature:
            return None
        return str(claims["iss"])


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _object(text: str) -> Mapping[str, object]:
    value: object = json.loads(_decoded(text))
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return cast("Mapping[str, object]", value)
