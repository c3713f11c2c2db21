"""The credential of a discovery file, where the caller allows one.

Promises: what a file holds becomes a value that can be sent as it is, or ``Denied``; no value shows in a repr or a
message. It is sent over verified connections only (``by_file``).
Source: client-go rest.Config (bearer token, basic, client certificate).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from nodeattest_discovery.node.discovery_file import FileReference, Stored, User, malformed
from nodeattest_discovery.tls import ClientCertificate
from nodeattest_providers.certificate_chain import X509_ERRORS

_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,65536}", re.ASCII)
"""What may be in a header."""


@dataclass(frozen=True, slots=True)
class TokenCredential:
    """A bearer token."""

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class BasicCredential:
    """A user's name and password."""

    username: str = field(repr=False)
    password: str = field(repr=False)


FileCredential = TokenCredential | BasicCredential | ClientCertificate


def of_user(user: User, load: Callable[[FileReference], bytes]) -> FileCredential | None:
    """Return a user's credential, read from files if it refers to them; raises ``Denied``."""
    if user.token_file is not None:
        return _token(_decoded(load(user.token_file)).strip())
    if user.token is not None:
        return _token(user.token)
    if user.username is not None and user.password is not None:
        if ":" in user.username:
            raise malformed("a username without a colon (RFC 7617 §2)", "one with a colon")
        return BasicCredential(user.username, user.password)
    if user.certificate is not None and user.key is not None:
        return _client(_bytes(user.certificate, load), _bytes(user.key, load))
    return None


def authorization(credential: FileCredential | None) -> str | None:
    """Write the header that shows a credential; None where there is none to write."""
    match credential:
        case TokenCredential(token):
            return f"Bearer {token}"
        case BasicCredential(username, password):
            return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()
        case ClientCertificate() | None:
            return None


def _token(text: str) -> TokenCredential:
    if _TOKEN.fullmatch(text) is None:
        raise malformed("a token of visible ASCII characters", f"{len(text)} characters")
    return TokenCredential(text)


def _client(certificate_pem: bytes, key_pem: bytes) -> ClientCertificate:
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        key = load_pem_private_key(key_pem, password=None)
        shapes = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        belongs = key.public_key().public_bytes(*shapes) == certificate.public_key().public_bytes(*shapes)
    except X509_ERRORS as error:
        raise malformed("a client certificate and its key, in PEM", type(error).__name__) from None
    if not belongs:
        raise malformed("a client certificate and its key", "another's key")
    return ClientCertificate(certificate_pem, key_pem)


def _bytes(stored: Stored, load: Callable[[FileReference], bytes]) -> bytes:
    return load(stored) if isinstance(stored, FileReference) else stored or b""


def _decoded(data: bytes) -> str:
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise malformed("a token of visible ASCII characters", "other bytes") from None
