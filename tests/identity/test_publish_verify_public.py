"""What the public sees of what was published, over real HTTPS, from a directory and from a bucket."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from public_kit import Public, public
from publish_kit import HOUR, START, Clock, directory, key, wanted
from store_kit import BUCKET, moto

from nodeattest_identity.issuer.documents import documents
from nodeattest_identity.publish.publisher import PublishResult, publish
from nodeattest_identity.publish.state import Desired
from nodeattest_identity.publish.stores.s3 import S3Store
from nodeattest_identity.publish.verify_public import PublicCheck, PublicReader, PublicStatus
from nodeattest_identity.tokens.oidc_http import HttpsFetcher
from nodeattest_providers.errors import Unavailable


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Public]:
    async with public(tmp_path) as running:
        yield running


def of(served: Public, *names: str) -> Desired:
    return replace(wanted(*names), issuer=served.issuer, jwks_uri=served.jwks_uri)


async def put(served: Public, *names: str, now: int = START) -> PublishResult:
    return await publish(directory(served.root), of(served, *names), clock=Clock(now))


async def seen(served: Public, published: PublishResult, *, now: int = START + 1, trusted: bool = True) -> PublicCheck:
    async with PublicReader(ca_file=served.ca_file if trusted else None, seconds=30) as reader:
        return await reader.check(published, now=now)


async def test_what_was_published_is_what_the_public_sees(served: Public) -> None:
    assert await seen(served, await put(served, "a", "b")) == PublicCheck(status=PublicStatus.EQUAL)
    assert sorted(set(served.asked)) == ["/c1/.well-known/openid-configuration", "/c1/openid/v1/jwks"]


async def test_a_bucket_behind_https_shows_what_was_published(served: Public, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    with moto() as url:
        store = S3Store(BUCKET, "c1", endpoint_url=url)
        served.bucket = url
        published = await publish(store, of(served, "a"), clock=Clock())
        assert (await seen(served, published)).status is PublicStatus.EQUAL
        await store.aclose()


async def test_a_cache_that_shows_the_older_documents_is_waited_for_until_it_may_not_any_more(served: Public) -> None:
    await put(served, "a")
    held = {path: path.read_bytes() for path in served.root.rglob("*") if path.is_file()}
    published = await put(served, "a", "b", now=START + 10)
    for path, body in held.items():
        path.write_bytes(body)
    early = await seen(served, published, now=START + 20)
    assert (early.status, early.until) == (PublicStatus.OLDER, START + 10 + HOUR)
    assert key("b").kid in early.findings[0]
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
        (_replaced(Cache_Control="public, max-age=86400"), "for 3600 s at most, got 86400 s"),
        (_replaced(Cache_Control="public, max-age=60, s-maxage=86400"), "got 86400 s"),
        (_replaced(Cache_Control=""), "expected Cache-Control"),
        (_answer(lambda: web.Response(status=403)), "the place is not public"),
        (_answer(lambda: web.Response(status=404)), "does this URL lead to the place"),
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


async def test_no_cache_at_all_is_well(served: Public) -> None:
    published = await put(served, "a")
    served.spoil = _replaced(Cache_Control="no-store")
    assert (await seen(served, published)).status is PublicStatus.EQUAL


async def test_another_issuer_at_the_url_is_told(served: Public) -> None:
    published = await put(served, "a")
    other = documents("https://other.example", served.jwks_uri, [key("a")])
    (served.root / ".well-known/openid-configuration").write_bytes(other.configuration)
    found = await seen(served, published)
    assert found.status is PublicStatus.WRONG
    assert "got 'https://other.example'" in found.findings[0]


async def test_a_private_authority_must_be_named(served: Public) -> None:
    published = await put(served, "a")
    found = await seen(served, published, trusted=False)
    assert found.status is PublicStatus.WRONG
    assert "--ca-file" in found.findings[0]


async def test_a_server_that_does_not_end_is_not_waited_for(served: Public) -> None:
    published = await put(served, "a")

    class Endless(web.StreamResponse):
        async def prepare(self, request: web.BaseRequest) -> None:
            await super().prepare(request)
            await asyncio.Event().wait()  # until the reader hangs up

    served.spoil = lambda _request, _response: Endless()
    async with PublicReader(ca_file=served.ca_file, seconds=0.3) as reader:
        found = await reader.check(published, now=START)
    assert found.status is PublicStatus.WRONG
    assert "within" in found.findings[0]


async def _hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


@pytest.mark.parametrize("serve", [_hang_up, _plain])
async def test_a_server_without_tls_is_told_in_words(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, PublicReader() as reader:
        said = (await reader.get(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/")).problem
    assert re.match(r"expected (TLS|a server|an answer in HTTP), got [^:]+: ", said)
    assert "Error" not in said


async def test_a_strict_relying_party_tells_a_broken_answer_in_words(served: Public) -> None:
    class Cut(web.StreamResponse):
        async def prepare(self, request: web.BaseRequest) -> None:
            assert request.transport is not None
            request.transport.close()

    served.spoil = lambda _request, _response: Cut()
    await put(served, "a")
    with pytest.raises(Unavailable, match="a connection that ended, or no answer in HTTP") as told:
        await HttpsFetcher(ca_file=served.ca_file).get(served.jwks_uri, accept="*/*", limit=1000)
    assert "Error" not in str(told.value)


async def test_a_name_without_an_address_and_a_port_without_a_server_are_told_in_words() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with PublicReader() as reader:
            nowhere = (await reader.get("https://issuer.invalid/")).problem
            nobody = (await reader.get(f"https://127.0.0.1:{taken.getsockname()[1]}/")).problem
    assert nowhere.startswith("expected an address for this name, got none: make its DNS record")
    assert nobody.startswith("expected a server, got Connection refused: ")


async def test_nothing_but_https_is_asked() -> None:
    async with PublicReader() as reader:
        assert (await reader.get("http://127.0.0.1:1/")).problem == "expected an https URL"
