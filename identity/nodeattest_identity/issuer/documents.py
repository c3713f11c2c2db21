"""The URLs and the two documents of an issuer: OpenID configuration and key set. Pure.

Members, their order and every byte are kube-apiserver's. URLs stay byte for byte, because issuers are compared so.
Source: Kubernetes pkg/serviceaccount/openidmetadata.go; go-jose jwk.go rawJSONWebKey; Go encoding/json (HTML escapes);
OpenID Connect Discovery 1.0 §3 and §4; RFC 7517 §4, RFC 7518 §6.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, urlsplit

from nodeattest_identity.issuer.keys import MAX_KEYS, KeysError, VerifyingKey, deduplicate
from nodeattest_kube.answers import parse_json
from nodeattest_parsing.endpoint import port_of
from nodeattest_parsing.values import JsonValue

CONFIGURATION_PATH: Final = "/.well-known/openid-configuration"
"""Where the configuration stands below an issuer's own path."""
JWKS_PATH: Final = "/openid/v1/jwks"
"""Where kube-apiserver serves its key set."""
CONFIGURATION_TYPE: Final = "application/json"
JWKS_TYPE: Final = "application/jwk-set+json"
MAX_AGE: Final = 3600
"""Seconds that kube-apiserver lets others keep both: ``Cache-Control: public, max-age=3600``."""
_MAX_SIZE: Final = 64 * 1024
"""Bytes of a configuration; ours take 300."""
_MEMBERS: Final = ("use", "kty", "kid", "crv", "alg", "x", "y", "n", "e")
"""Of a key, in kube-apiserver's order; no other is ever written."""
_GO_ESCAPES: Final = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)
_MAX_LENGTH: Final = 2048
_ALLOWED: Final = re.compile(r"https://[\x21\x24-\x3b\x3d\x41-\x5a\x5f\x61-\x7a~\[\]@%]+", re.ASCII)
"""Printable ASCII without spaces, quotes, backslashes, ``<``, ``>``, ``?``, ``#``, ``^``, ``{``, ``|`` and ``}``."""
_ALLOWED_QUERY: Final = re.compile(rf"{_ALLOWED.pattern}(?:\?{_ALLOWED.pattern.removeprefix('https://')})?", re.ASCII)
_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|[0-9A-Fa-f:.]+", re.ASCII)


class DocumentError(ValueError):
    """A configuration that cannot be believed; says what was expected and what was found."""


class UrlError(DocumentError):
    """A URL that cannot be an issuer's or a key set's."""


def issuer_url(text: str) -> str:
    """Check ``--service-account-issuer``; raises ``UrlError``."""
    return _checked(text, _ALLOWED, "expected the https URL of an issuer, without user, query and fragment")


def jwks_url(text: str) -> str:
    """Check ``--service-account-jwks-uri``, which may have a query; raises ``UrlError``."""
    return _checked(text, _ALLOWED_QUERY, "expected the https URL of a key set, without user and fragment")


def configuration_url(issuer: str) -> str:
    """Tell where an issuer's configuration is: a slash at the issuer's end is not doubled (OIDC Discovery §4)."""
    return issuer.removesuffix("/") + CONFIGURATION_PATH


def default_jwks_uri(issuer: str) -> str:
    """Return the URL of an issuer's key set unless another is set: below the issuer, at kube-apiserver's path."""
    return issuer.removesuffix("/") + JWKS_PATH


def _checked(text: str, allowed: re.Pattern[str], expected: str) -> str:
    if len(text) > _MAX_LENGTH or not allowed.fullmatch(text):
        raise UrlError(f"{expected}, got {text[:100]!a}")
    try:
        parts: SplitResult = urlsplit(text)
        port_of(parts)
    except ValueError:
        raise UrlError(f"{expected}, got {text[:100]!a}: no host or no port can be read") from None
    if "@" in parts.netloc or not parts.hostname or not _HOST.fullmatch(parts.hostname):
        raise UrlError(f"{expected}, got one with a user, or without a host that could be reached")
    return text


@dataclass(frozen=True, slots=True)
class Documents:
    """What one issuer publishes."""

    issuer: str
    jwks_uri: str
    keys: tuple[VerifyingKey, ...]
    configuration: bytes = field(repr=False)
    jwks: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a configuration says."""

    issuer: str
    jwks_uri: str


def documents(issuer: str, jwks_uri: str, keys: Iterable[VerifyingKey]) -> Documents:
    """Write both documents; raises ``UrlError`` and ``KeysError``.

    Keys stay in their order. One that comes twice is written once; two keys of one name are an error, and so is none.
    """
    issuer_url(issuer)
    jwks_url(jwks_uri)
    kept = deduplicate(keys)
    if not kept:
        raise KeysError("expected at least one key to publish, got none: the last documents stay as they are")
    if len(kept) > MAX_KEYS:  # nobody could read them again
        raise KeysError(
            f"expected at most {MAX_KEYS} keys to publish, absent ones included, got {len(kept)}: the last documents "
            "stay as they are; remove keys by --drop-key, or wait until absent ones are retired"
        )
    configuration: dict[str, JsonValue] = {
        "issuer": issuer,
        "jwks_uri": jwks_uri,
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": [*sorted({key.alg for key in kept})],
    }
    return Documents(issuer, jwks_uri, kept, _go_json(configuration), _go_json({"keys": [_jwk(key) for key in kept]}))


def parse_configuration(body: bytes) -> Configuration:
    """Read anybody's configuration; raises ``DocumentError``. Whether the issuer is the right one is the caller's."""
    if len(body) > _MAX_SIZE:
        raise DocumentError(f"expected at most {_MAX_SIZE} bytes of an OpenID configuration, got {len(body)}")
    try:
        members = parse_json(body)
    except ValueError as error:
        raise DocumentError(f"expected an OpenID configuration in JSON, got {error}") from None
    issuer, jwks_uri = members.get("issuer"), members.get("jwks_uri")
    if not isinstance(issuer, str) or not isinstance(jwks_uri, str):
        raise DocumentError("expected `issuer` and `jwks_uri` in an OpenID configuration, got none")
    return Configuration(issuer_url(issuer), jwks_url(jwks_uri))


def _jwk(key: VerifyingKey) -> dict[str, JsonValue]:
    """Write one key: ``use, kty, kid, crv, alg, x, y`` or ``use, kty, kid, alg, n, e``."""
    members = key.jwk.as_dict(private=False)
    members |= {"use": "sig", "kid": key.kid, "alg": key.alg}
    return {name: str(members[name]) for name in _MEMBERS if name in members}


def _go_json(value: dict[str, JsonValue]) -> bytes:
    """Write JSON as Go does: compact, in order, with ``<``, ``>`` and ``&`` escaped."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).translate(_GO_ESCAPES).encode()
