"""HTTP as relying parties, caches and browsers speak it to a server of issuers' documents."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from issuer_kit import LOOPBACK, ask, get, new_key, pem, running

from nodeattest_identity.issuer.documents import documents
from nodeattest_identity.serve.app import KeysSource, ServeSettings
from nodeattest_identity.serve.service import issuer_paths
from nodeattest_serving.bounded_server import BindAddress, SettingsError

KEYS = [new_key(), new_key()]
ISSUERS = ("https://issuer.example", "https://issuer.example/clusters/a", "https://issuer.example/old/")


@asynccontextmanager
async def serving(
    directory: Path, *issuers: str, jwks_uri: str | None = None, max_age: int = 3600
) -> AsyncGenerator[int]:
    file = directory / "keys.pem"
    file.write_bytes(pem(*KEYS))
    served = (issuer_paths(issuers[0], jwks_uri), *(issuer_paths(issuer) for issuer in issuers[1:]))
    source = KeysSource(issuers=served, files=(file,))
    async with running(ServeSettings(address=BindAddress(LOOPBACK, 0), source=source, max_age=max_age)) as ports:
        yield ports.main


async def test_each_issuer_has_its_documents_under_its_own_path(tmp_path: Path) -> None:
    async with serving(tmp_path, *ISSUERS) as port:
        for issuer in ISSUERS:
            path = issuer.removeprefix("https://issuer.example").removesuffix("/")
            made = documents(issuer, f"https://issuer.example{path}/openid/v1/jwks", KEYS)
            assert (await ask(port, get(f"{path}/.well-known/openid-configuration"))).body == made.configuration
            assert (await ask(port, get(f"{path}/openid/v1/jwks"))).body == made.jwks


@pytest.mark.parametrize(
    "request_",
    [
        get("/openid/v1/jwks/"),
        get("/openid/v1/jwks?format=yaml"),
        get("/openid/v1/jwks/?a=/../b"),
        get("/openid/v1/jwks", "Accept: application/json"),
        get("/openid/v1/jwks", "Accept: text/html;q=0"),
        get("/openid/v1/jwks", "Host: elsewhere.example").replace(b"Host: any.example\r\n", b""),
        get("/openid/v1/jwks", "Authorization: Bearer whatever", "X-Forwarded-Host: elsewhere.example"),
    ],
)
async def test_a_slash_a_query_accept_and_credentials_change_nothing(request_: bytes, tmp_path: Path) -> None:
    async with serving(tmp_path, ISSUERS[0]) as port:
        assert await ask(port, request_) == await ask(port, get("/openid/v1/jwks"))


async def test_a_document_that_the_client_has_is_not_sent_again(tmp_path: Path) -> None:
    async with serving(tmp_path, ISSUERS[0]) as port:
        etag = (await ask(port, get("/openid/v1/jwks"))).headers["etag"]
        other = (await ask(port, get("/.well-known/openid-configuration"))).headers["etag"]
        for line in (etag, f"W/{etag}", "*", f'"old", {etag}'):
            answer = await ask(port, get("/openid/v1/jwks", f"If-None-Match: {line}"))
            assert (answer.status, answer.body, answer.headers["etag"]) == (304, b"", etag)
            assert answer.headers["cache-control"] == "public, max-age=3600"
        assert (await ask(port, get("/openid/v1/jwks", f"If-None-Match: {other}"))).status == 200
    assert etag != other


@pytest.mark.parametrize(
    "path",
    [
        "/", "/.well-known", "/.well-known/openid-configuration/x", "/openid/v1/jwks//", "//openid/v1/jwks",
        "/openid/v1/jwks/keys", "/openid/v1/%6awks", "/openid/v1/../v1/jwks", "/OPENID/v1/jwks", "/healthz", "/metrics",
        "http://issuer.example/openid/v1/jwks", "/openid/v1/jwks#x",
    ],
)  # fmt: skip
async def test_every_other_path_is_not_found(path: str, tmp_path: Path) -> None:
    async with serving(tmp_path, ISSUERS[0]) as port:
        answer = await ask(port, get(path))
    assert answer.status == 404
    assert answer.headers["cache-control"] == "no-cache, private"


def test_plain_http_is_for_this_machine_only() -> None:
    source = KeysSource(issuers=(issuer_paths(ISSUERS[0]),), files=())
    for host in ("", "0.0.0.0", "10.0.0.1", "localhost"):
        with pytest.raises(SettingsError, match="--tls-cert-file"):
            ServeSettings(address=BindAddress(host, 8080), source=source)


@pytest.mark.parametrize(
    ("issuers", "jwks_uri"),
    [
        (("https://a.example", "https://b.example"), None),
        (("https://a.example/x", "https://a.example/x/"), None),
        (("https://a.example",), "https://a.example/.well-known/openid-configuration"),
        (("https://a.example/x", "https://a.example/y"), "https://a.example/y/openid/v1/jwks"),
    ],
)
async def test_two_documents_under_one_path_are_a_setting_that_cannot_be(
    issuers: tuple[str, ...], jwks_uri: str | None, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match="--service-account-issuer: expected"):
        async with serving(tmp_path, *issuers, jwks_uri=jwks_uri):
            pass


@pytest.mark.parametrize("method", ["POST", "DELETE", "OPTIONS", "TRACE"])
async def test_other_methods_are_told_which_there_are(method: str, tmp_path: Path) -> None:
    async with serving(tmp_path, ISSUERS[0]) as port:
        answer = await ask(port, get("/openid/v1/jwks", "Content-Length: 0", method=method))
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
    assert json.loads(answer.body)["reason"] == "MethodNotAllowed"
