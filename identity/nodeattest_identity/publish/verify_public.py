"""Compares what the public URL serves with what was published, without credentials.

Promises: whatever the public server answers, the result is a ``PublicCheck``. Outdated content is distinct from wrong
content: caches may hold the older documents for their max-age.
Out of scope: the requests (``tokens.oidc_http``: https, no redirect, bounded time and size).
Source: OpenID Connect Discovery 1.0 §4 (issuer equals URL), RFC 9111 §5.2.2 (Cache-Control).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from nodeattest_identity.issuer.documents import CONFIGURATION_TYPE, JWKS_TYPE, DocumentError, parse_configuration
from nodeattest_identity.issuer.keys import KeysError, read_jwks
from nodeattest_identity.issuer.urls import configuration_url
from nodeattest_identity.publish.publisher import PublishResult
from nodeattest_identity.publish.store import MAX_OBJECT
from nodeattest_identity.tokens.jwt import printable
from nodeattest_identity.tokens.oidc_http import FetchedDocument, HttpsFetcher
from nodeattest_providers.errors import Denied, Unavailable

__all__ = ["PublicCheck", "PublicStatus", "check_public"]

_MAX_AGE: Final = re.compile(r"(?:^|,)\s*(?:s-)?max-?age\s*=\s*\"?([0-9]{1,10})", re.IGNORECASE | re.ASCII)
_NOT_CACHED: Final = re.compile(r"(?:^|,)\s*(?:no-store|no-cache)\s*(?:,|$)", re.IGNORECASE | re.ASCII)


class PublicStatus(StrEnum):
    """How the public documents compare to the published ones."""

    EQUAL = "equal"
    """As published."""
    OLDER = "older"
    """An older version; caches may hold it for a while."""
    WRONG = "wrong"
    """An operator must act."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicCheck:
    """The result of a check."""

    status: PublicStatus
    findings: tuple[str, ...] = ()
    until: int | None = None
    """For ``OLDER``: until when it is no failure, seconds since the epoch."""


async def check_public(https: HttpsFetcher, published: PublishResult, *, max_age: int, now: int) -> PublicCheck:
    """Read both documents and compare them with the published ones.

    1. Both exist. 2. They are byte for byte the published ones, or older ones of this issuer. 3. The headers let caches
    hold them no longer than ``max_age`` seconds.
    """
    made = published.documents
    url = configuration_url(made.issuer)
    # 1
    try:
        configuration = await https.get(url, accept=CONFIGURATION_TYPE, limit=MAX_OBJECT)
        jwks = await https.get(made.jwks_uri, accept=f"{JWKS_TYPE}, application/json;q=0.9", limit=MAX_OBJECT)
    except (Denied, Unavailable) as error:
        return PublicCheck(status=PublicStatus.WRONG, findings=(str(error),))
    # 2
    wrong, older = _compare(published, url, configuration.body, jwks.body)
    # 3
    wrong += _headers(url, configuration, CONFIGURATION_TYPE, max_age)
    wrong += _headers(made.jwks_uri, jwks, JWKS_TYPE, max_age)
    until = published.state.updated + max_age
    if wrong or (older and now > until):
        return PublicCheck(status=PublicStatus.WRONG, findings=(*wrong, *older))
    if older:
        return PublicCheck(status=PublicStatus.OLDER, findings=tuple(older), until=until)
    return PublicCheck(status=PublicStatus.EQUAL)


def _compare(published: PublishResult, url: str, configuration: bytes, jwks: bytes) -> tuple[list[str], list[str]]:
    """Return what is wrong and what is only older."""
    made = published.documents
    wrong: list[str] = []
    older: list[str] = []
    try:
        issuer = parse_configuration(configuration).issuer
        if issuer != made.issuer:
            wrong.append(f"{url}: expected the issuer {made.issuer}, got {issuer[:200]!a}")
        elif configuration != made.configuration:
            older.append(f"{url}: still an older configuration")
    except DocumentError as error:
        wrong.append(f"{url}: {error}")
    try:
        kids = {key.kid for key in read_jwks(jwks)}
        if jwks != made.jwks:
            lacking = sorted({key.kid for key in made.keys} - kids)
            what = f"without {', '.join(map(printable, lacking))}" if lacking else "with other keys"
            older.append(f"{made.jwks_uri}: still an older key set, {what}")
    except KeysError as error:
        wrong.append(f"{made.jwks_uri}: {error}")
    return wrong, older


def _headers(url: str, answer: FetchedDocument, content_type: str, max_age: int) -> list[str]:
    """Return what is wrong with the headers of one response."""
    wrong: list[str] = []
    if answer.content_type != content_type:
        wrong.append(f"{url}: expected content type {content_type}, got {answer.content_type[:80]!a}")
    longest = max(map(int, _MAX_AGE.findall(answer.cache_control)), default=None)
    if longest is None and not _NOT_CACHED.search(answer.cache_control):
        wrong.append(f"{url}: expected Cache-Control with max-age={max_age}, got {answer.cache_control[:80]!a}")
    elif longest is not None and longest > max_age:
        wrong.append(
            f"{url}: expected caches to hold it for {max_age} s at most, got {longest} s: a new key would sign too "
            "soon; give --max-age, or change what the server sends"
        )
    return wrong
