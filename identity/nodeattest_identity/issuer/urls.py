"""An issuer's URL and its key set's, as kube-apiserver takes them. Pure.

Promises: what passes is returned byte for byte: issuers are compared so, and a slash at the end makes another issuer.
Source: Kubernetes pkg/serviceaccount/openidmetadata.go NewOpenIDMetadata: scheme https; an issuer has
no query and no fragment.
OpenID Connect Discovery 1.0 §4.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

from nodeattest_parsing.endpoint import port_of

__all__ = [
    "CONFIGURATION_PATH",
    "JWKS_PATH",
    "UrlError",
    "configuration_url",
    "default_jwks_uri",
    "issuer_url",
    "jwks_url",
]

CONFIGURATION_PATH: Final = "/.well-known/openid-configuration"
"""Where the configuration stands below an issuer's own path."""
JWKS_PATH: Final = "/openid/v1/jwks"
"""Where kube-apiserver serves its key set."""
_MAX_LENGTH: Final = 2048
_ALLOWED: Final = re.compile(r"https://[\x21\x24-\x3b\x3d\x41-\x5a\x5f\x61-\x7a~\[\]@%]+", re.ASCII)
"""Printable ASCII without spaces, quotes, backslashes, ``<``, ``>``, ``?``, ``#``, ``^``, ``{``, ``|`` and ``}``."""
_ALLOWED_QUERY: Final = re.compile(rf"{_ALLOWED.pattern}(?:\?{_ALLOWED.pattern.removeprefix('https://')})?", re.ASCII)
_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|[0-9A-Fa-f:.]+", re.ASCII)


class UrlError(ValueError):
    """A URL that cannot be an issuer's or a key set's."""


def issuer_url(text: str) -> str:
    """Check ``--service-account-issuer``; raises ``UrlError``."""
    expected = "expected the https URL of an issuer, without user, query and fragment"
    return _checked(text, _ALLOWED, expected)


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
    if "@" in parts.netloc:
        raise UrlError(f"{expected}, got one with a user in it")
    if not parts.hostname or not _HOST.fullmatch(parts.hostname):
        raise UrlError(f"{expected}, got {text[:100]!a}: no host, or none that could be reached")
    return text
