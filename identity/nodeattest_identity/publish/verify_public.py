"""Compares what the public URL serves with what was published, without credentials.

Promises: whatever the public server answers, the result is a ``PublicCheck``. HTTPS only, no redirect, no cookie, no
proxy of the environment, bounded time and size. Outdated content is distinct from wrong content: caches may hold the
older documents for their max-age.
Leaves to others: how a relying party finds and reads keys (``tokens``), which is tried last.
Source: OpenID Connect Discovery 1.0 §4 (issuer equals URL), RFC 9111 §5.2.2 (Cache-Control).
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

from aiohttp import (
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientError,
    ClientSession,
    ClientSSLError,
    ClientTimeout,
    DummyCookieJar,
    TCPConnector,
)

from nodeattest_identity.issuer.documents import CONFIGURATION_TYPE, JWKS_TYPE, DocumentError, parse_configuration
from nodeattest_identity.issuer.keys import KeysError, read_jwks
from nodeattest_identity.issuer.urls import configuration_url
from nodeattest_identity.publish.publisher import PublishResult
from nodeattest_identity.publish.store import MAX_OBJECT
from nodeattest_identity.tokens.jwt import printable
from nodeattest_identity.tokens.oidc_http import HttpsFetcher
from nodeattest_identity.tokens.relying_party import discover
from nodeattest_providers.errors import Denied, Unavailable

__all__ = ["PublicCheck", "PublicReader", "PublicResponse", "PublicStatus", "compare"]

_OK: Final = 200
_REDIRECTS: Final = range(300, 400)
"""RFC 9110 §15.4."""
_SECONDS: Final = 10.0
_MAX_AGE: Final = re.compile(r"(?:^|,)\s*(?:s-)?max-?age\s*=\s*\"?([0-9]{1,10})", re.IGNORECASE | re.ASCII)
_UNHELD: Final = re.compile(r"(?:^|,)\s*(?:no-store|no-cache)\s*(?:,|$)", re.IGNORECASE | re.ASCII)
_HINTS: Final = {
    403: "the place is not public: its policy must let everybody read these two objects, or a CDN in front of it",
    404: "does this URL lead to the place?",
}


class PublicStatus(StrEnum):
    """How the public documents compare to the published ones."""

    EQUAL = "equal"
    """As published."""
    OLDER = "older"
    """An older version; caches may hold it for a while."""
    WRONG = "wrong"
    """An operator must act."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicResponse:
    """Response of a public URL: a document, or in ``problem`` why there is none."""

    url: str
    status: int = 0
    body: bytes = field(default=b"", repr=False)
    content_type: str = ""
    cache_control: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicCheck:
    """The result of a check."""

    status: PublicStatus
    findings: tuple[str, ...] = ()
    until: int | None = None
    """For ``OLDER``: until when it is no failure, seconds since the epoch."""


class PublicReader:
    """Reads public URLs; use it as an asynchronous context manager."""

    def __init__(self, *, ca_file: Path | None = None, seconds: float = _SECONDS) -> None:
        """``ca_file``: the only trusted CAs; None: those of this machine. Raises ``OSError``."""
        self._tls = ssl.create_default_context(cafile=ca_file)
        self._ca_file = ca_file
        self._seconds = seconds
        self._session: ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = ClientSession(
            connector=TCPConnector(ssl=self._tls, force_close=True),
            timeout=ClientTimeout(total=self._seconds),
            cookie_jar=DummyCookieJar(),
            trust_env=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, url: str) -> PublicResponse:
        """Read one URL; never raises."""
        if self._session is None or not url.startswith("https://"):
            return PublicResponse(url=url, problem="expected an https URL")
        try:
            async with self._session.get(url, allow_redirects=False, headers={"Accept-Encoding": "identity"}) as answer:
                body = b""
                while len(body) <= MAX_OBJECT and (chunk := await answer.content.read(1 << 16)):
                    body += chunk
                if len(body) > MAX_OBJECT:
                    return PublicResponse(url=url, problem=f"expected at most {MAX_OBJECT} bytes, got more")
                return PublicResponse(
                    url=url,
                    status=answer.status,
                    body=body,
                    content_type=answer.content_type,
                    cache_control=answer.headers.get("Cache-Control", ""),
                )
        except TimeoutError:
            return PublicResponse(url=url, problem=f"expected an answer within {self._seconds:.0f} s, got none")
        except (ClientError, OSError, ValueError) as error:
            return PublicResponse(url=url, problem=_network(error))

    async def check(self, published: PublishResult, *, now: int) -> PublicCheck:
        """Read and compare both documents, then let a strict relying party discover the keys."""
        made = published.documents
        configuration, jwks = await asyncio.gather(self.get(configuration_url(made.issuer)), self.get(made.jwks_uri))
        found = compare(published, configuration, jwks, now=now)
        if found.status is not PublicStatus.EQUAL:
            return found
        try:
            fetched = await discover(HttpsFetcher(ca_file=self._ca_file, time_limit=self._seconds), made.issuer)
        except (Denied, Unavailable) as error:
            return PublicCheck(status=PublicStatus.WRONG, findings=(f"a strict relying party cannot use it: {error}",))
        same = [key.kid for key in fetched.keys] == [key.kid for key in made.keys]
        return (
            found
            if same
            else PublicCheck(status=PublicStatus.WRONG, findings=("a strict relying party finds other keys",))
        )


def compare(published: PublishResult, configuration: PublicResponse, jwks: PublicResponse, *, now: int) -> PublicCheck:
    """Compare the public documents with the published ones.

    1. Both exist. 2. The configuration is this issuer's: byte for byte, or an older one. 3. The key set is the
    published one, or an older one. 4. The headers let caches hold both no longer than planned.
    """
    # 1
    missing = [_missing(answer) for answer in (configuration, jwks) if answer.problem or answer.status != _OK]
    if missing:
        return PublicCheck(status=PublicStatus.WRONG, findings=tuple(missing))
    # 2, 3
    wrong, older = _bytes(published, configuration, jwks)
    # 4
    state = published.state
    wrong += _headers(configuration, CONFIGURATION_TYPE, state.max_age)
    wrong += _headers(jwks, JWKS_TYPE, state.max_age)
    until = max(state.held_until, (state.changed or now) + state.max_age)
    if wrong or (older and now > until):
        return PublicCheck(status=PublicStatus.WRONG, findings=(*wrong, *older))
    if older:
        return PublicCheck(status=PublicStatus.OLDER, findings=tuple(older), until=until)
    return PublicCheck(status=PublicStatus.EQUAL)


def _bytes(
    published: PublishResult, configuration: PublicResponse, jwks: PublicResponse
) -> tuple[list[str], list[str]]:
    """Return what is wrong and what is only older."""
    made = published.documents
    wrong: list[str] = []
    older: list[str] = []
    try:
        said = parse_configuration(configuration.body)
        if said.issuer != made.issuer:
            wrong.append(f"{configuration.url}: expected the issuer {made.issuer}, got {said.issuer[:200]!a}")
        elif configuration.body != made.configuration:
            older.append(f"{configuration.url}: still an older configuration")
    except DocumentError as error:
        wrong.append(f"{configuration.url}: {error}")
    try:
        there = {key.kid for key in read_jwks(jwks.body)}
        if jwks.body != made.jwks:
            lacking = sorted({key.kid for key in made.keys} - there)
            what = f"without {', '.join(map(printable, lacking))}" if lacking else "with others"
            older.append(f"{jwks.url}: still an older key set, {what}")
    except KeysError as error:
        wrong.append(f"{jwks.url}: {error}")
    return wrong, older


def _headers(answer: PublicResponse, content_type: str, max_age: int) -> list[str]:
    """Return what is wrong with the headers of one response."""
    wrong: list[str] = []
    if answer.content_type != content_type:
        wrong.append(f"{answer.url}: expected content type {content_type}, got {answer.content_type[:80]!a}")
    longest = max(map(int, _MAX_AGE.findall(answer.cache_control)), default=None)
    if longest is None and not _UNHELD.search(answer.cache_control):
        wrong.append(f"{answer.url}: expected Cache-Control with max-age={max_age}, got {answer.cache_control[:80]!a}")
    elif longest is not None and longest > max_age:
        wrong.append(
            f"{answer.url}: expected caches to hold it for {max_age} s at most, got {longest} s: a new key would sign "
            "too soon; say --max-age, or set what the server sends"
        )
    return wrong


def _missing(answer: PublicResponse) -> str:
    if answer.problem:
        return f"{answer.url}: {answer.problem}"
    redirects = answer.status in _REDIRECTS
    hint = "a redirect; not every relying party follows one" if redirects else _HINTS.get(answer.status, "")
    return f"{answer.url}: expected 200, got {answer.status}" + (f"; {hint}" if hint else "")


def _network(error: Exception) -> str:
    """Describe why there was no response."""
    if isinstance(error, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "expected a certificate that is trusted here, got another; say --ca-file for an authority of your own"
    if isinstance(error, ClientConnectorDNSError):
        return "expected an address for this name, got none: make its DNS record, or correct the issuer's URL"
    if isinstance(error, ClientSSLError):
        return "expected TLS, got something else: does this port speak https?"
    if isinstance(error, ClientConnectorError):
        why = os.strerror(error.errno) if error.errno else "no connection"
        return f"expected a server, got {why}: start it, or let this machine reach it; --no-read-back does without"
    return "expected an answer in HTTP, got a connection that ended, or none that can be read: see the server's log"
