"""A strict relying party: verifies tokens of one issuer by the documents that it publishes.

    party = RelyingParty.at(Expected(issuer="https://…", audiences=frozenset({"vault"})))
    claims = await party.verify(token)      # Denied: never valid; Unavailable: retry

No other URL of a document or a token is ever requested.
Source: OpenID Connect Discovery 1.0 §4.3, RFC 8414 §3.3 (the issuer of a document); RFC 7517 §5; RFC 9110 §15.4.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final

import aiohttp

from nodeattest_identity.issuer import documents as docs
from nodeattest_identity.issuer.keys import MAX_SIZE, KeysError, VerifyingKey, read_jwks
from nodeattest_identity.tokens.jwks_cache import JWKSCache
from nodeattest_identity.tokens.jwt import Claims, Expected, parse, printable, verify
from nodeattest_providers.errors import Denied, Reason, Unavailable

TIME_LIMIT: Final = 10.0
"""Seconds for one document, from connecting to the last byte."""
_REDIRECTS: Final = range(300, 400)
_CONFIGURATION_LIMIT: Final = 64 * 1024
_REMEDY: Final = "publish the issuer's documents anew (nodeattest issuer publish), and check the issuer's URL"
_PUBLISH: Final = "publish the documents where anybody can read them: 200, no redirect, no login (docs/issuer.md)"


@dataclass(frozen=True, slots=True)
class FetchedDocument:
    """A document and two of its headers."""

    body: bytes = field(repr=False)
    content_type: str
    cache_control: str


class HttpsFetcher:
    """Fetches documents."""

    def __init__(self, *, ca_file: Path | None = None, time_limit: float = TIME_LIMIT) -> None:
        """``ca_file``: the only trusted CAs, read for each document; None: those of this machine."""
        self._ca_file = ca_file
        self._time_limit = time_limit

    async def get(self, url: str, *, accept: str, limit: int) -> FetchedDocument:
        """Fetch a document of at most ``limit`` bytes; raises ``Denied`` or ``Unavailable``."""
        if not url.startswith("https://"):
            raise _refused("an https URL", "another", "publish over https")
        try:
            return await self._get(url, accept, limit)
        except TimeoutError:
            raise _unavailable(url, f"no whole answer within {self._time_limit:.0f} s") from None
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError):
            remedy = "give the CA that issued its certificate (--ca-file), or correct the name in it"
            raise _unavailable(url, "its certificate cannot be verified", remedy) from None
        except aiohttp.ClientConnectorError as error:
            raise _unavailable(url, f"cannot be reached: {error.os_error.strerror or 'no address'}") from None
        except (aiohttp.ClientError, OSError, ValueError):
            raise _unavailable(url, "a connection that ended, or no answer in HTTP") from None

    async def _get(self, url: str, accept: str, limit: int) -> FetchedDocument:
        context = self._context()
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=context, limit=1, force_close=True),
                timeout=aiohttp.ClientTimeout(total=self._time_limit),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                auto_decompress=False,
            ) as session,
            session.get(
                url, headers={"Accept": accept, "Accept-Encoding": "identity"}, allow_redirects=False
            ) as response,
        ):
            if response.status in _REDIRECTS:
                raise _refused("200", f"a redirect ({response.status}) at {url}", _PUBLISH)
            if response.status != HTTPStatus.OK:
                raise _unavailable(url, f"expected 200, got {response.status}", _PUBLISH)
            if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise _refused("a document that is not packed", f"a packed one at {url}", _PUBLISH)
            body = b""
            while len(body) <= limit and (chunk := await response.content.readany()):
                body += chunk
            if len(body) > limit:
                raise _refused(f"at most {limit} bytes", f"more at {url}", _PUBLISH)
            caching = ",".join(response.headers.getall("Cache-Control", ()))
            return FetchedDocument(body, response.content_type, caching)

    def _context(self) -> ssl.SSLContext:
        if self._ca_file is None:
            return ssl.create_default_context()
        try:
            return ssl.create_default_context(cafile=str(self._ca_file))
        except OSError as error:  # ssl.SSLError is one: no certificate in the file
            why = "no certificate in it" if isinstance(error, ssl.SSLError) else error.strerror
            remedy = "give a file with CA certificates in PEM"
            raise Unavailable(Reason.ISSUER_UNAVAILABLE, f"CA file {self._ca_file}: {why}", remedy=remedy) from None


def _refused(expected: str, got: str, remedy: str) -> Denied:
    return Denied(Reason.ISSUER_DOCUMENT_REFUSED, expected=expected, got=got, remedy=remedy)


def _unavailable(url: str, why: str, remedy: str = "see that the issuer can be reached from here") -> Unavailable:
    return Unavailable(Reason.ISSUER_UNAVAILABLE, f"{url}: {why}", remedy=remedy)


@dataclass(frozen=True, slots=True)
class RelyingParty:
    """Verifies tokens of one issuer."""

    expected: Expected
    keys: JWKSCache
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
        issuer, fetcher = docs.issuer_url(expected.issuer), https or HttpsFetcher()
        return cls(expected, JWKSCache(lambda: discover(fetcher, issuer), monotonic=monotonic), clock)

    async def verify(self, token: bytes | str) -> Claims:
        """Verify a token; raises ``Denied``, or ``Unavailable`` while there are no keys."""
        unverified = parse(token)
        return verify(unverified, await self.keys.keys_for(unverified.key_id), self.expected, self.clock())


async def discover(https: HttpsFetcher, issuer: str) -> tuple[VerifyingKey, ...]:
    """Fetch an issuer's keys by its configuration; raises ``Denied`` or ``Unavailable``.

    1. The configuration stands below the issuer's URL. 2. It names this issuer. 3. Its key set is read strictly.
    """
    # 1, OpenID Connect Discovery 1.0 §4
    url = docs.configuration_url(issuer)
    document = await https.get(url, accept=docs.CONFIGURATION_TYPE, limit=_CONFIGURATION_LIMIT)
    try:
        configuration = docs.parse_configuration(document.body)
    except docs.DocumentError as error:
        raise _document_refused(url, error) from None
    # 2, §4.3: otherwise any publisher on that host would be the issuer
    if configuration.issuer != issuer:
        raise _refused(f"issuer {printable(issuer)}", f"{printable(configuration.issuer)} at {url}", _REMEDY)
    # 3
    accept = f"{docs.JWKS_TYPE}, application/json;q=0.9"  # kube-apiserver answers 406 to application/json alone
    keys = await https.get(configuration.jwks_uri, accept=accept, limit=MAX_SIZE)
    try:
        return read_jwks(keys.body, skip_unusable=True)
    except KeysError as error:
        raise _document_refused(configuration.jwks_uri, error) from None


def _document_refused(url: str, error: ValueError) -> Denied:
    expected, _, got = str(error).removeprefix("expected ").partition(", got ")
    return _refused(expected, f"{got or 'another'} at {url}", _REMEDY)
