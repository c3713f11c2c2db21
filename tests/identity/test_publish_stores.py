"""Each kind of store under the same laws: a directory and moto's S3; and what Azure and Google are asked under."""

from __future__ import annotations

import asyncio
import fcntl
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
import requests
from aiohttp import web
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
from publish_kit import START, Clock, kids, wanted

from nodeattest_identity.issuer.keys import read_jwks
from nodeattest_identity.publish import store as stores
from nodeattest_identity.publish.cloud import CloudStore
from nodeattest_identity.publish.publisher import open_store, publish
from nodeattest_identity.publish.store import StoredObject, StoreRefusedError, Write, WriteConflictError

LOOPBACK, BUCKET, JWKS = "127.0.0.1", "issuers", "openid/v1/jwks"
AZURE_KEY = "c2VjcmV0LWtleQ=="
HEADERS = {"content_type": "application/jwk-set+json", "cache_control": "public, max-age=60"}
KINDS = ("s3", "azblob", "gs")
_QUICK = timedelta(milliseconds=1)


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    """Run moto with one bucket."""
    server = ThreadedMotoServer(LOOPBACK, 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    try:
        assert requests.put(f"{url}/{BUCKET}", timeout=60).ok
        yield url
    finally:
        server.stop()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def cloud(kind: str, url: str, *, key: str = AZURE_KEY, prefix: str = "") -> CloudStore:
    """Make a store that fails quickly, under a prefix of its own."""
    is_azure = kind == "azblob"
    location = stores.StoreLocation(
        kind=kind,
        root="account" if is_azure else BUCKET,
        container=BUCKET if is_azure else "",
        prefix=prefix or uuid4().hex,
    )
    return CloudStore(
        location,
        stores.StoreAccess(region="us-east-1", endpoint_url=url, azure_key=key),
        retry={"max_retries": 1, "retry_timeout": timedelta(seconds=5), "backoff": {"init_backoff": _QUICK, "base": 2}},
        request_timeout=timedelta(seconds=1),
    )


Place = tuple[stores.ObjectStore, stores.ObjectStore]
"""A location by two publishers."""


@pytest.fixture(params=["dir", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "dir":
        return stores.DirectoryStore(tmp_path, "c1"), stores.DirectoryStore(tmp_path, "c1")
    prefix = uuid4().hex
    one, other = (cloud("s3", request.getfixturevalue("s3_url"), prefix=prefix) for _ in range(2))
    return one, other


async def test_an_object_is_replaced_only_as_the_version_that_was_read(place: Place) -> None:
    one, other = place
    assert await one.read(JWKS) is None
    await one.write(Write(path=JWKS, body=b"1", replaces=None, **HEADERS))
    with pytest.raises(WriteConflictError):
        await other.write(Write(path=JWKS, body=b"2", replaces=None, **HEADERS))
    first = await other.read(JWKS)
    assert first is not None
    assert first.body == b"1"
    assert first.content_type in {None, HEADERS["content_type"]}
    assert first.cache_control in {None, HEADERS["cache_control"]}
    await one.write(Write(path=JWKS, body=b"2", replaces=first, **HEADERS))
    with pytest.raises(WriteConflictError):
        await other.write(Write(path=JWKS, body=b"3", replaces=first, **HEADERS))
    with pytest.raises(WriteConflictError):
        await other.write(Write(path="not/there", body=b"3", replaces=first, **HEADERS))
    second = await other.read(JWKS)
    assert second is not None
    assert second.body == b"2"


async def test_two_publishers_at_one_moment_lose_no_key(place: Place) -> None:
    one, other = place
    await asyncio.gather(publish(one, wanted("a"), clock=Clock()), publish(other, wanted("b"), clock=Clock()))
    stored = await one.read(JWKS)
    assert stored is not None
    assert {key.kid for key in read_jwks(stored.body)} == set(kids("a", "b"))
    last = await publish(one, wanted("a"), clock=Clock(START + 9))
    assert (await publish(other, wanted("a"), clock=Clock(START + 99))).writes == ()
    assert [key.kid for key in last.state.keys] == kids("a", "b")


@asynccontextmanager
async def answering(status: int, code: str, **headers: str) -> AsyncGenerator[tuple[str, list[Mapping[str, str]]]]:
    """Serve one answer to every request, and keep their headers; 0: no answer at all."""
    asked: list[Mapping[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.headers)
        if status == 0:
            await asyncio.Event().wait()
        text = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>none</Message></Error>'
        return web.Response(status=status, text=text, content_type="application/xml", headers=headers)

    runner = web.ServerRunner(web.Server(answer, access_log=None), shutdown_timeout=0.1)  # pyright: ignore[reportArgumentType] - aiohttp's
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


def google_account(directory: Path, url: str) -> str:
    """Write the file of a service account that needs no login."""
    account = {"private_key": "", "private_key_id": "", "client_email": "", "disable_oauth": True}
    file = directory / "google.json"
    file.write_text(json.dumps({"type": "service_account", "gcs_base_url": url, **account}))
    return str(file)


CONDITIONS = [
    ("s3", StoredObject(body=b"", e_tag='"7"'), {"if-match": '"7"'}),
    ("s3", None, {"if-none-match": "*"}),
    ("azblob", StoredObject(body=b"", e_tag='"7"'), {"if-match": '"7"'}),
    ("azblob", None, {"if-none-match": "*"}),
    ("gs", StoredObject(body=b"", e_tag='"1"', generation="7"), {"x-goog-if-generation-match": "7"}),
    ("gs", None, {"x-goog-if-generation-match": "0"}),
]


@pytest.mark.parametrize(("kind", "replaces", "condition"), CONDITIONS)
async def test_an_object_is_replaced_only_under_the_condition_that_it_is_as_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, replaces: StoredObject | None, condition: dict[str, str]
) -> None:
    async with answering(412, "PreconditionFailed") as (url, asked):
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", google_account(tmp_path, url))
        with pytest.raises(WriteConflictError):
            await cloud(kind, url).write(Write(path=JWKS, body=b"1", replaces=replaces, **HEADERS))
    assert [{name: each.get(name) for name in condition} for each in asked] == [condition]


ANSWERS = [
    (403, "AccessDenied", StoreRefusedError, r"got 403 AccessDenied; it needs (s3:GetObject|the role|storage\.)"),
    (403, "RequestTimeTooSkewed", StoreRefusedError, "clock"),
    (400, "ExpiredToken", StoreRefusedError, "expired"),
    (400, "AuthorizationHeaderMalformed", StoreRefusedError, "--region"),
    (401, "Unauthorized", StoreRefusedError, "credentials"),
    (301, "PermanentRedirect", StoreRefusedError, "--region"),
    (501, "NotImplemented", StoreRefusedError, "conditional writes"),
    (418, "Odd[31m", StoreRefusedError, "got 418; see the error codes"),
    (409, "ConditionalRequestConflict", WriteConflictError, "meanwhile"),
    (412, "PreconditionFailed", WriteConflictError, "meanwhile"),
    (503, "SlowDown", stores.StoreUnavailableError, "busy"),
    (429, "SlowDown", stores.StoreUnavailableError, "busy"),
    (200, "NoObjectStore", StoreRefusedError, "expected an answer of an object store, got none, or another"),
]
"""Status, error code, and the error with its remedy."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: f"{answer[0]}-{answer[1]}")
async def test_each_answer_of_a_store_is_an_error_with_a_remedy_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, answer: tuple[int, str, type[Exception], str]
) -> None:
    status, code, error, remedy = answer
    async with answering(status, code) as (url, asked):
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", google_account(tmp_path, url))
        with pytest.raises(error, match=remedy) as raised:
            await cloud(kind, url).write(Write(path=JWKS, body=b"1", replaces=None, **HEADERS))
    message = str(raised.value)
    assert not any(secret in message for secret in ("AKIAEXAMPLE", AZURE_KEY, "Signature", "Error"))
    assert message.isprintable()
    assert raised.value.__suppress_context__
    assert len(asked) <= 2


@pytest.mark.parametrize("kind", ["s3", "azblob"])
async def test_a_store_that_does_not_answer_is_not_waited_for(kind: str) -> None:
    async with answering(0, "") as (url, _):
        with pytest.raises(stores.StoreUnavailableError, match="expected an answer of an object store, got none"):
            await cloud(kind, url).read(JWKS)
    with pytest.raises(stores.StoreUnavailableError, match="check the names in --to"):
        await cloud(kind, url).read(JWKS)  # nobody listens there any more


async def test_a_lock_that_another_publisher_keeps_is_not_waited_for(tmp_path: Path) -> None:
    store = stores.DirectoryStore(tmp_path, lock_seconds=0)
    await store.write(Write(path=JWKS, body=b"1", replaces=None, **HEADERS))
    with (tmp_path / ".nodeattest/lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(stores.StoreUnavailableError, match="end the publisher that holds it"):
            await store.write(Write(path="other", body=b"1", replaces=None, **HEADERS))
    await store.write(Write(path="other", body=b"1", replaces=None, **HEADERS))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("dir:/srv/www", ("dir", "/srv/www", "", "")),
        ("s3://bucket/a/b", ("s3", "bucket", "", "a/b")),
        ("s3://bucket", ("s3", "bucket", "", "")),
        ("azblob://account/$web/c1", ("azblob", "account", "$web", "c1")),
        ("gs://bucket/c1", ("gs", "bucket", "", "c1")),
    ],
)
def test_a_location_is_parsed(text: str, parts: tuple[str, ...]) -> None:
    location = stores.parse_location(text)
    assert (location.kind, location.root, location.container, location.prefix) == parts
    assert open_store(location, stores.StoreAccess()).name == str(location) == text
    assert open_store(location.below("n/c"), stores.StoreAccess()).name == f"{text}/n/c"


@pytest.mark.parametrize(
    "text",
    [
        "", "dir:", "/srv", "s3:bucket", "s3://", "s3://b/../c", "s3://b//c", "s3://b/a?x", "azblob://account",
        "configmap:a/b", "ftp://b/c", "s3://b/" + "x" * 2000,
    ],
)  # fmt: skip
def test_an_invalid_location_is_refused(text: str) -> None:
    with pytest.raises(StoreRefusedError, match="--to: expected dir:PATH"):
        stores.parse_location(text)


async def test_credentials_that_cannot_be_read_are_refused_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "google.json").write_text('{"type": "service_account", "private_key": "SECRET"}')
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "google.json"))
    for kind, key in (("gs", ""), ("azblob", "SECRET key")):
        with pytest.raises(StoreRefusedError, match="expected credentials that the store accepts") as raised:
            await cloud(kind, "http://127.0.0.1:1", key=key).read(JWKS)
        assert "SECRET" not in str(raised.value)


async def test_an_object_that_is_too_large_or_has_no_version_is_not_read() -> None:
    async with answering(200, "x" * (1 << 20), ETag='"1"', Last_Modified="Mon, 30 Nov 2026 00:00:00 GMT") as (url, _):
        with pytest.raises(StoreRefusedError, match="at most"):
            await cloud("s3", url).read(JWKS)
    async with answering(200, "x") as (url, _):
        with pytest.raises(StoreRefusedError, match="expected an ETag"):
            await cloud("s3", url).read(JWKS)
