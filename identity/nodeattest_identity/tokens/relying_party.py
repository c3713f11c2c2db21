"""A strict relying party: verifies tokens of one issuer by the documents that it publishes.

    party = RelyingParty.at(Expected(issuer="https://…", audiences=frozenset({"vault"})))
    claims = await party.verify(token)      # Denied: never valid; Unavailable: retry

Promises: the configuration at the issuer's own URL must name that issuer byte for byte, and an https key set. Keys are
parsed strictly and cached by ``jwks_cache``; tokens are verified by ``jwt``. No other URL of a document or a token is
ever requested. Leaves to others: authorization.
Source: OpenID Connect Discovery 1.0 §4.3, RFC 8414 §3.3 (the issuer of a document); RFC 7517 §5 (unknown keys are
ignored).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nodeattest_identity.issuer.documents import CONFIGURATION_TYPE, JWKS_TYPE, DocumentError, parse_configuration
from nodeattest_identity.issuer.keys import MAX_SIZE, KeysError, read_jwks
from nodeattest_identity.issuer.urls import configuration_url, issuer_url
from nodeattest_identity.tokens.jwks_cache import FetchedKeys, JWKSCache, KeySource
from nodeattest_identity.tokens.jwt import Claims, Expected, parse, printable, verify
from nodeattest_identity.tokens.oidc_http import HttpsFetcher
from nodeattest_providers.errors import Denied, Reason

__all__ = ["RelyingParty", "discover"]

_CONFIGURATION_LIMIT: Final = 64 * 1024
_REMEDY: Final = "publish the issuer's documents anew (nodeattest issuer publish), and check the issuer's URL"


@dataclass(frozen=True, slots=True)
class RelyingParty:
    """Verifies tokens of one issuer."""

    expected: Expected
    keys: KeySource
    clock: Callable[[], float] = time.time

    @classmethod
    def at(
        cls,
        expected: Expected,
        https: HttpsFetcher | None = None,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> RelyingParty:
        """Make one that fetches the documents itself; raises ``UrlError`` unless the issuer is an https URL."""
        issuer, fetcher = issuer_url(expected.issuer), https or HttpsFetcher()
        return cls(expected, JWKSCache(lambda: discover(fetcher, issuer), monotonic=monotonic), clock)

    async def verify(self, token: bytes | str) -> Claims:
        """Verify a token; raises ``Denied``, or ``Unavailable`` while there are no keys."""
        unverified = parse(token)
        return verify(unverified, await self.keys.keys_for(unverified.key_id), self.expected, self.clock())


async def discover(https: HttpsFetcher, issuer: str) -> FetchedKeys:
    """Fetch an issuer's keys by its configuration; raises ``Denied`` or ``Unavailable``.

    1. The configuration stands below the issuer's URL. 2. It names this issuer. 3. Its key set is read strictly.
    """
    # 1, OpenID Connect Discovery 1.0 §4
    url = configuration_url(issuer)
    document = await https.get(url, accept=CONFIGURATION_TYPE, limit=_CONFIGURATION_LIMIT)
    try:
        configuration = parse_configuration(document.body)
    except DocumentError as error:
        raise _refused(url, error) from None
    # 2, §4.3: otherwise any publisher on that host would be the issuer
    if configuration.issuer != issuer:
        got = f"{printable(configuration.issuer)} at {url}"
        raise Denied(Reason.ISSUER_DOCUMENT_REFUSED, expected=f"issuer {printable(issuer)}", got=got, remedy=_REMEDY)
    # 3
    accept = f"{JWKS_TYPE}, application/json;q=0.9"  # kube-apiserver answers 406 to application/json alone
    keys = await https.get(configuration.jwks_uri, accept=accept, limit=MAX_SIZE)
    try:
        found = read_jwks(keys.body, skip_unusable=True)
    except KeysError as error:
        raise _refused(configuration.jwks_uri, error) from None
    return FetchedKeys(found, keys.max_age)


def _refused(url: str, error: ValueError) -> Denied:
    expected, _, got = str(error).removeprefix("expected ").partition(", got ")
    return Denied(Reason.ISSUER_DOCUMENT_REFUSED, expected=expected, got=f"{got or 'another'} at {url}", remedy=_REMEDY)
