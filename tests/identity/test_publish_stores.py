"""Each kind of store under the same laws: moto's S3, azurite, a directory, a ConfigMap in the sandbox and for real."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from aiohttp import web
from publish_kit import START, Clock, kids, wanted
from store_kit import ACCOUNT, AZURITE_KEY, BUCKET, azurite, bucket_client, containers, moto

from nodeattest_identity.issuer.keys import read_jwks
from nodeattest_identity.publish.publisher import publish
from nodeattest_identity.publish.state import Desired
from nodeattest_identity.publish.store import ObjectStore, StoreRefusedError, StoreUnavailableError, WriteConflictError
from nodeattest_identity.publish.store_location import StoreAccess, open_store, parse_location
from nodeattest_identity.publish.stores import threads
from nodeattest_identity.publish.stores.azure_blob import AzureBlobStore
from nodeattest_identity.publish.stores.configmap import ConfigMapStore
from nodeattest_identity.publish.stores.directory import DirectoryStore, explained
from nodeattest_identity.publish.stores.s3 import S3Store
from nodeattest_kube.client import ApiClient
from nodeattest_sandbox.control_plane import ControlPlane

JWKS = "openid/v1/jwks"
HEADERS = {"content_type": "application/jwk-set+json", "cache_control": "public, max-age=60"}


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    with moto() as url:
        yield url


@pytest.fixture(scope="module")
def azure_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with azurite(tmp_path_factory.mktemp("azurite")) as url:
        yield url


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def s3(url: str, prefix: str | None = None, bucket: str = BUCKET, attempts: int = 1) -> S3Store:
    return S3Store(bucket, prefix or uuid4().hex, endpoint_url=url, attempts=attempts)


def blobs(
    url: str, prefix: str | None = None, *, container: str = BUCKET, key: str = AZURITE_KEY, retries: int = 3
) -> AzureBlobStore:
    return AzureBlobStore(ACCOUNT, container, prefix or uuid4().hex, endpoint_url=url, key=key, retries=retries)


@dataclass
class Place:
    """A place by two hands."""

    one: ObjectStore
    other: ObjectStore


@pytest.fixture(params=["dir", "s3", "azblob"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    prefix = uuid4().hex
    made: dict[str, Callable[[], ObjectStore]] = {
        "dir": lambda: DirectoryStore(tmp_path),
        "s3": lambda: s3(request.getfixturevalue("s3_url"), prefix),
        "azblob": lambda: blobs(request.getfixturevalue("azure_url"), prefix),
    }
    make = made[str(request.param)]
    found = Place(make(), make())
    yield found
    await found.one.aclose()
    await found.other.aclose()


async def keeps_the_laws(place: Place) -> None:
    """What every store must do."""
    one, other = place.one, place.other
    assert await one.read(JWKS) is None
    await one.write(JWKS, b"1", version=None, **HEADERS)
    with pytest.raises(WriteConflictError):
        await other.write(JWKS, b"2", version=None, **HEADERS)
    first = await other.read(JWKS)
    assert first is not None
    assert first.body == b"1"
    assert first.content_type in {None, HEADERS["content_type"]}
    assert first.cache_control in {None, HEADERS["cache_control"]}
    await one.write(JWKS, b"2", version=first.version, **HEADERS)
    with pytest.raises(WriteConflictError):
        await other.write(JWKS, b"3", version=first.version, **HEADERS)
    with pytest.raises(WriteConflictError):
        await other.write("not/there", b"3", version=first.version, **HEADERS)
    second = await other.read(JWKS)
    assert second is not None
    assert second.body == b"2"
    assert second.version != first.version


async def loses_no_key(place: Place) -> None:
    """Publishers of different keys at one moment."""

    async def one(store: ObjectStore, want: Desired) -> None:
        await publish(store, want, clock=Clock())

    await asyncio.gather(one(place.one, wanted("a")), one(place.other, wanted("b")))
    stored = await place.one.read(JWKS)
    assert stored is not None
    assert {key.kid for key in read_jwks(stored.body)} == set(kids("a", "b"))
    last = await publish(place.one, wanted("a"), clock=Clock(START + 9))
    assert (await publish(place.other, wanted("a"), clock=Clock(START + 99))).writes == ()
    assert [record.key.kid for record in last.state.keys] == kids("a", "b")


async def test_an_object_is_replaced_only_as_the_version_that_was_read(place: Place) -> None:
    await keeps_the_laws(place)


async def test_two_publishers_at_one_moment_lose_no_key(place: Place) -> None:
    await loses_no_key(place)


@pytest.fixture
async def configmaps(control_plane: ControlPlane) -> AsyncIterator[Callable[[], Place]]:
    client = ApiClient.from_kubeconfig_file(control_plane.admin_kubeconfig)

    def make() -> Place:
        name = f"issuer-{uuid4().hex[:8]}"
        return Place(ConfigMapStore(client, "kube-public", name), ConfigMapStore(client, "kube-public", name))

    yield make
    await client.close()


async def test_a_config_map_keeps_the_same_laws(configmaps: Callable[[], Place]) -> None:
    await keeps_the_laws(configmaps())


async def test_two_publishers_of_a_config_map_lose_no_key(configmaps: Callable[[], Place]) -> None:
    await loses_no_key(configmaps())


async def test_what_else_stands_in_the_config_map_stays(control_plane: ControlPlane) -> None:
    async with ApiClient.from_kubeconfig_file(control_plane.admin_kubeconfig) as client:
        name, collection = f"issuer-{uuid4().hex[:8]}", "/api/v1/namespaces/kube-public/configmaps"
        await client.create(
            collection, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"mine": "1"}}
        )
        await publish(ConfigMapStore(client, "kube-public", name), wanted("a"), clock=Clock())
        data = (await client.get(f"{collection}/{name}"))["data"]
        assert isinstance(data, dict)
        assert data.keys() == {"mine", "jwks", "openid-configuration", "issuer-state.json"}


async def test_a_namespace_that_is_not_there_is_said(control_plane: ControlPlane) -> None:
    async with ApiClient.from_kubeconfig_file(control_plane.admin_kubeconfig) as client:
        with pytest.raises(StoreRefusedError, match="make the namespace first"):
            await publish(ConfigMapStore(client, "not-there", "issuer"), wanted("a"), clock=Clock())


async def test_s3_keeps_the_headers_that_relying_parties_see(s3_url: str) -> None:
    await publish(s3(s3_url, "headers"), wanted("a"), clock=Clock())
    found = bucket_client(s3_url).get_object(Bucket=BUCKET, Key=f"headers/{JWKS}")
    assert (found["ContentType"], found["CacheControl"]) == ("application/jwk-set+json", "public, max-age=3600")
    bucket_client(s3_url).put_object(Bucket=BUCKET, Key=f"headers/{JWKS}", Body=found["Body"].read())
    again = await publish(s3(s3_url, "headers"), wanted("a"), clock=Clock())
    assert JWKS in [write.path for write in again.writes]
    now = bucket_client(s3_url).head_object(Bucket=BUCKET, Key=f"headers/{JWKS}")
    assert now["ContentType"] == found["ContentType"]


async def test_azure_keeps_the_headers_that_relying_parties_see(azure_url: str) -> None:
    await publish(blobs(azure_url, "c1"), wanted("a"), clock=Clock())
    settings = containers(azure_url).get_blob_client(BUCKET, f"c1/{JWKS}").get_blob_properties().content_settings
    assert (settings.content_type, settings.cache_control) == ("application/jwk-set+json", "public, max-age=3600")


async def test_a_bucket_that_is_not_there_is_said(s3_url: str) -> None:
    with pytest.raises(StoreRefusedError, match="make the bucket first"):
        await publish(s3(s3_url, bucket="nowhere"), wanted("a"), clock=Clock())


async def test_a_container_that_is_not_there_is_said(azure_url: str) -> None:
    with pytest.raises(StoreRefusedError, match="make the container first"):
        await publish(blobs(azure_url, container="nowhere"), wanted("a"), clock=Clock())


async def test_a_wrong_account_key_is_said_and_not_shown(azure_url: str) -> None:
    wrong = "A" * 86 + "=="
    with pytest.raises(StoreRefusedError, match=r"credentials|clock|the key") as told:
        await publish(blobs(azure_url, key=wrong), wanted("a"), clock=Clock())
    assert wrong not in str(told.value)


async def test_missing_credentials_are_said(monkeypatch: pytest.MonkeyPatch, s3_url: str) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    with pytest.raises(StoreRefusedError, match="expected AWS credentials, got none"):
        await publish(s3(s3_url), wanted("a"), clock=Clock())


def _s3_error(code: str) -> str:
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>of no matter</Message></Error>'


async def _refusing(status: int, code: str) -> tuple[web.AppRunner, str, list[str]]:
    """Serve one error, whatever is asked."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.method)
        text = _s3_error(code)
        return web.Response(status=status, text=text, content_type="application/xml", headers={"x-ms-error-code": code})

    application = web.Application()
    application.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    return runner, f"http://127.0.0.1:{port}", asked


@pytest.mark.parametrize(
    ("status", "code", "error", "remedy"),
    [
        (403, "AccessDenied", StoreRefusedError, "s3:ListBucket"),
        (403, "RequestTimeTooSkewed", StoreRefusedError, "clock"),
        (403, "InvalidAccessKeyId", StoreRefusedError, "access key"),
        (400, "ExpiredToken", StoreRefusedError, "expired"),
        (400, "AuthorizationHeaderMalformed", StoreRefusedError, "--region"),
        (501, "NotImplemented", StoreRefusedError, "conditional writes"),
        (418, "Odd\x1b[31m", StoreRefusedError, "418"),
        (409, "ConditionalRequestConflict", WriteConflictError, "meanwhile"),
    ],
)
async def test_each_answer_of_s3_is_told_with_what_to_do(
    status: int, code: str, error: type[Exception], remedy: str
) -> None:
    runner, url, _ = await _refusing(status, code.replace("\x1b", ""))
    try:
        with pytest.raises(error, match=remedy):
            await s3(url).write(JWKS, b"1", version=None, **HEADERS)
    finally:
        await runner.cleanup()


async def test_a_throttled_bucket_is_asked_a_few_times_and_no_more() -> None:
    runner, url, asked = await _refusing(503, "SlowDown")
    try:
        with pytest.raises(StoreUnavailableError, match="busy"):
            await s3(url, attempts=2).read(JWKS)
    finally:
        await runner.cleanup()
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("status", "code", "remedy"),
    [
        (403, "AuthorizationPermissionMismatch", "Storage Blob Data Contributor"),
        (403, "AuthorizationFailure", "firewall"),
    ],
)
async def test_each_answer_of_azure_is_told_with_what_to_do(status: int, code: str, remedy: str) -> None:
    runner, url, _ = await _refusing(status, code)
    try:
        with pytest.raises(StoreRefusedError, match=remedy):
            await blobs(f"{url}/{ACCOUNT}").read(JWKS)
    finally:
        await runner.cleanup()


async def test_a_bucket_that_cannot_be_reached_is_waited_for() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for place in (s3(f"http://{address}"), blobs(f"http://{address}/{ACCOUNT}", retries=0)):
            with pytest.raises(
                StoreUnavailableError, match=f"expected an answer of {address}, got none; check"
            ) as told:
                await place.read(JWKS)
            assert "Error" not in str(told.value)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "make room"),
        (errno.EDQUOT, "make room"),
        (errno.EROFS, "mount it writable"),
        (errno.EACCES, "owner and mode"),
        (errno.EISDIR, "another kind"),
        (errno.EIO, "check the disk"),
    ],
)
def test_what_a_disk_says_is_told_with_what_helps(number: int, remedy: str) -> None:
    assert remedy in explained(OSError(number, "x"))
    assert os.strerror(number) in explained(OSError(number, "x"))


async def test_a_directory_where_a_document_should_stand_is_told(tmp_path: Path) -> None:
    (tmp_path / JWKS).mkdir(parents=True)
    with pytest.raises(StoreRefusedError, match="got 'Is a directory'; what is there is of another kind"):
        await DirectoryStore(tmp_path).read(JWKS)


async def test_a_library_that_does_not_return_is_not_waited_for() -> None:
    held = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hang() -> None:
        asyncio.run_coroutine_threadsafe(held.wait(), loop).result(30)

    with pytest.raises(StoreUnavailableError, match="within"):
        await threads.in_thread("s3://b", hang, total=0.05)
    held.set()


@pytest.mark.parametrize(
    ("text", "kind", "parts"),
    [
        ("dir:/srv/www", "dir", ("/srv/www",)),
        ("s3://bucket/a/b", "s3", ("bucket", "a/b")),
        ("s3://bucket", "s3", ("bucket", "")),
        ("azblob://account/$web/c1", "azblob", ("account", "$web", "c1")),
        ("configmap:kube-public/issuer", "configmap", ("kube-public", "issuer")),
    ],
)
def test_a_place_is_read(text: str, kind: str, parts: tuple[str, ...]) -> None:
    target = parse_location(text)
    assert (target.kind, target.parts) == (kind, parts)


@pytest.mark.parametrize(
    "text",
    [
        "", "dir:", "/srv", "s3:bucket", "s3://", "s3://b/../c", "s3://b//c", "s3://b/a?x", "azblob://account",
        "configmap:x", "configmap:a/b/c", "configmap:A/b", "gs://b/c", "s3://b/" + "x" * 2000,
    ],
)  # fmt: skip
def test_what_is_no_place_is_said(text: str) -> None:
    with pytest.raises(StoreRefusedError, match="--to: expected dir:PATH"):
        parse_location(text)


@pytest.mark.parametrize(
    ("text", "library", "module", "named"),
    [
        ("s3://bucket/a", "botocore.session", "s3", "boto3"),
        ("azblob://account/c/p", "azure.identity", "azure_blob", "azure-storage-blob and azure-identity"),
    ],
)
def test_a_library_that_is_not_installed_is_said_with_what_brings_it(
    monkeypatch: pytest.MonkeyPatch, text: str, library: str, module: str, named: str
) -> None:
    monkeypatch.delitem(sys.modules, f"nodeattest_identity.publish.stores.{module}")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(StoreRefusedError, match=f"{re.escape(named)}, got none; install requirements-cli.txt"):
        open_store(parse_location(text), StoreAccess())


def test_the_store_of_each_place_is_made_without_asking_anybody(tmp_path: Path) -> None:
    access = StoreAccess(endpoint_url="http://127.0.0.1:1", azure_key=AZURITE_KEY)
    for text in (f"dir:{tmp_path}", "s3://bucket/a", "azblob://account/c/p"):
        assert open_store(parse_location(text), access).name == text
    with pytest.raises(StoreRefusedError, match="kubeconfig"):
        open_store(parse_location("configmap:a/b"), access)
