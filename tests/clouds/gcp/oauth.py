"""The token endpoint: service accounts with keys, and access tokens for their signed assertions.

An assertion is verified: RS256 by a key of that account, audience and issuer.
Source: RFC 7523 §2.1; Google, "Using OAuth 2.0 for Server to Server Applications".
"""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qs

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import RSAKey

from clouds.serving import Reply, Request, as_json

_GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_AUDIENCE: Final = "https://oauth2.googleapis.com/token"
"""What Google has assertions name, wherever its token endpoint is."""
_LIFE: Final = 3600
"""Seconds of a token, as far as is said."""


@dataclass(slots=True)
class TokenServer:
    """Issues access tokens and knows whose they are."""

    url: str = ""
    """Of the token endpoint."""
    _keys: dict[str, rsa.RSAPrivateKey] = field(default_factory=dict[str, rsa.RSAPrivateKey], repr=False)
    _tokens: dict[str, str] = field(default_factory=dict[str, str], repr=False)

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
        self._tokens[token] = email
        return token

    def revoke_all(self) -> None:
        """Make every token that was issued useless."""
        self._tokens.clear()

    def holder(self, authorization: str) -> str | None:
        """Tell whose bearer token this is."""
        scheme, _, token = authorization.partition(" ")
        return self._tokens.get(token) if scheme == "Bearer" else None

    def answer(self, request: Request) -> Reply:
        """Answer a request for a token."""
        form = {name: values[0] for name, values in parse_qs(request.body.decode("ascii", "replace")).items()}
        if request.method != "POST" or form.get("grant_type") != _GRANT:
            return as_json({"error": "unsupported_grant_type"}, 400)
        for email, key in self._keys.items():
            with suppress(JoseError, ValueError):
                claims = jwt.decode(form.get("assertion", ""), RSAKey.import_key(key), algorithms=["RS256"]).claims
                if claims.get("iss") == email and claims.get("aud") == _AUDIENCE:
                    return as_json({"access_token": self.issue(email), "expires_in": _LIFE, "token_type": "Bearer"})
        return as_json({"error": "invalid_grant", "error_description": "Invalid JWT Signature."}, 400)
