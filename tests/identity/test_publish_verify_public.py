"""What the public sees of what was published, over real HTTPS, from a directory and from a bucket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from public_kit import Public, public
from publish_kit import HOUR, START, Clock, directory, key, wanted

from nodeattest_identity.issuer.documents import documents
from nodeattest_identity.publish.plan import Desired, Plan
from nodeattest_identity.publish.publisher import (
    PublicCheck,
    PublicStatus,
    check_public,
    publish,
)
from nodeattest_identity.tokens.relying_party import HttpsFetcher


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Public]:
    async with public(tmp_path) as running:
        yield running


def of(served: Public, *names: str) -> Desired:
    return replace(wanted(*names), issuer=served.issuer, jwks_uri=served.jwks_uri)


async def put(served: Public, *names: str, now: int = START) -> Plan:
    return await publish(directory(served.root), of(served, *names), clock=Clock(now))


async def seen(served: Public, published: Plan, *, now: int = START + 1) -> PublicCheck:
    https = HttpsFetcher(ca_file=served.ca_file, time_limit=30)
    return await check_public(https, published, max_age=HOUR, now=now)


async def test_a_cache_that_shows_the_older_documents_is_waited_for_until_it_may_not_any_more(served: Public) -> None:
    await put(served, "a")
    held = {path: path.read_bytes() for path in served.root.rglob("*") if path.is_file()}
    published = await put(served, "a", "b", now=START + 10)
    for path, body in held.items():
        path.write_bytes(body)
    early = await seen(served, published, now=START + 20)
    assert (early.status, early.until) == (PublicStatus.OLDER, START + 10 + HOUR)
    assert key("b").kid in early.findings[0]
    assert (await seen(served, published, now=START + 10 + HOUR)).status is PublicStatus.OLDER
    assert (await seen(served, published, now=START + 11 + HOUR)).status is PublicStatus.WRONG


def _replaced(**headers: str) -> Callable[[web.Request, web.Response], web.StreamResponse]:
    def spoil(_request: web.Request, response: web.Response) -> web.StreamResponse:
        for name, value in headers.items():
            response.headers[name.replace("_", "-")] = value
        return response

    return spoil


def _answer(make: Callable[[], web.Response]) -> Callable[[web.Request, web.Response], web.StreamResponse]:
    return lambda _request, _response: make()


@pytest.mark.parametrize(
    ("spoil", "finding"),
    [
        (_replaced(Content_Type="binary/octet-stream"), "expected content type"),
        (_replaced(Cache_Control="public, max-age=86400"), "for 3600 s at most, got 'public, max-age=86400'"),
        (_replaced(Cache_Control="public, max-age=60, s-maxage=86400"), "s-maxage=86400"),
        (_replaced(Cache_Control=""), "expected Cache-Control"),
        (_answer(lambda: web.Response(status=403)), "expected 200, got 403; publish the documents where anybody"),
        (_answer(lambda: web.Response(status=302, headers={"Location": "https://127.0.0.1:1/"})), "a redirect"),
        (_answer(lambda: web.Response(body=b" " * (2 << 20))), "at most"),
        (_answer(lambda: web.Response(body=b"<html>")), "expected an OpenID configuration"),
    ],
)
async def test_what_a_web_server_does_wrong_is_told(
    served: Public, spoil: Callable[[web.Request, web.Response], web.StreamResponse], finding: str
) -> None:
    published = await put(served, "a")
    served.spoil = spoil
    found = await seen(served, published)
    assert found.status is PublicStatus.WRONG
    assert finding in " ".join(found.findings)


async def test_what_was_published_is_what_the_public_sees_and_another_issuer_is_not(served: Public) -> None:
    published = await put(served, "a", "b")
    assert await seen(served, published) == PublicCheck(status=PublicStatus.EQUAL)
    other = documents("https://other.example", served.jwks_uri, [key("a")])
    (served.root / ".well-known/openid-configuration").write_bytes(other.configuration)
    found = await seen(served, published)
    assert found.status is PublicStatus.WRONG
    assert "got 'https://other.example'" in found.findings[0]
