"""What the public sees of what was published, over real HTTPS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from issuer_server import IssuerServer, Reply, issuer_server
from publish_kit import HOUR, START, Clock, directory, key, wanted

from nodeattest_identity.issuer.documents import default_jwks_uri, documents
from nodeattest_identity.publish.plan import Plan
from nodeattest_identity.publish.publisher import PublicCheck, PublicStatus, check_public, publish
from nodeattest_identity.tokens.relying_party import HttpsFetcher


@pytest.fixture
def served(tmp_path: Path) -> Iterator[IssuerServer]:
    root = tmp_path / "www"
    root.mkdir()
    with issuer_server(tmp_path / "tls", root=root) as running:
        yield running


async def put(served: IssuerServer, *names: str, now: int = START) -> Plan:
    assert served.root is not None
    issuer = f"{served.url}/c1"
    desired = replace(wanted(*names), issuer=issuer, jwks_uri=default_jwks_uri(issuer))
    return await publish(directory(served.root), desired, clock=Clock(now))


async def seen(served: IssuerServer, published: Plan, *, now: int = START + 1) -> PublicCheck:
    return await check_public(HttpsFetcher(ca_file=served.ca), published, max_age=HOUR, now=now)


async def test_a_cache_that_shows_the_older_documents_is_waited_for_until_it_may_not_any_more(
    served: IssuerServer,
) -> None:
    first = await put(served, "a")
    assert await seen(served, first) == PublicCheck(status=PublicStatus.EQUAL)
    held = {path: served.reply(path) for path in ("/c1/.well-known/openid-configuration", "/c1/openid/v1/jwks")}
    published = await put(served, "a", "b", now=START + 10)
    served.spoil = lambda path, _reply: held[path]
    early = await seen(served, published, now=START + 20)
    assert (early.status, early.until) == (PublicStatus.OLDER, START + 10 + HOUR)
    assert key("b").kid in early.findings[0]
    assert (await seen(served, published, now=START + 10 + HOUR)).status is PublicStatus.OLDER
    assert (await seen(served, published, now=START + 11 + HOUR)).status is PublicStatus.WRONG


def _headers(**headers: str) -> Callable[[str, Reply], Reply]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _path, reply: replace(reply, headers=reply.headers | named)


def _answer(reply: Reply) -> Callable[[str, Reply], Reply]:
    return lambda _path, _reply: reply


OTHER = documents("https://other.example", "https://other.example/jwks", [key("a")]).configuration


@pytest.mark.parametrize(
    ("spoil", "finding"),
    [
        (_headers(Content_Type="binary/octet-stream"), "expected content type"),
        (_headers(Cache_Control="public, max-age=86400"), "for 3600 s at most, got 'public, max-age=86400'"),
        (_headers(Cache_Control="public, max-age=60, s-maxage=86400"), "s-maxage=86400"),
        (_headers(Cache_Control=""), "expected Cache-Control"),
        (_answer(Reply(status=403)), "expected 200, got 403; publish the documents where anybody"),
        (_answer(Reply(status=302, headers={"Location": "https://127.0.0.1:1/"})), "a redirect"),
        (_answer(Reply(b" " * (2 << 20))), "at most"),
        (_answer(Reply(b"<html>")), "expected an OpenID configuration"),
        (_answer(Reply(OTHER)), "got 'https://other.example'"),
    ],
)
async def test_what_a_web_server_does_wrong_is_told(
    served: IssuerServer, spoil: Callable[[str, Reply], Reply], finding: str
) -> None:
    published = await put(served, "a")
    served.spoil = spoil
    found = await seen(served, published)
    assert found.status is PublicStatus.WRONG
    assert finding in " ".join(found.findings)
