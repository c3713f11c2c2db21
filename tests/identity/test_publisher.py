"""Publishing into a store that fails, is raced for or forgets, by killed processes; and what the public sees."""

from __future__ import annotations

import asyncio
import ctypes
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from issuer_server import IssuerServer, Reply, issuer_server
from publish_kit import HOUR, START, Clock, directory, key, kids, stood, wanted

from nodeattest_identity.issuer.documents import default_jwks_uri, documents
from nodeattest_identity.publish.plan import Plan
from nodeattest_identity.publish.publisher import PublicCheck, check_public, publish
from nodeattest_identity.publish.store import (
    DirectoryStore,
    StoredObject,
    StoreRefusedError,
    Write,
    WriteConflictError,
)
from nodeattest_identity.tokens.relying_party import HttpsFetcher

_OBJECTS = {".well-known/openid-configuration", "openid/v1/jwks", ".nodeattest/issuer-state.json"}


@pytest.mark.parametrize("raced", sorted(_OBJECTS))
async def test_a_key_that_another_run_publishes_while_we_read_is_never_removed(tmp_path: Path, raced: str) -> None:
    await publish(directory(tmp_path), wanted("a"), clock=Clock())
    other = [publish(directory(tmp_path), wanted("a", "other"), clock=Clock(START + 1))]

    class Raced(DirectoryStore):
        async def read(self, path: str, /) -> StoredObject | None:
            found = await super().read(path)
            if path == raced and other:
                await other.pop()
            return found

    ours = await publish(Raced(tmp_path), wanted("a"), clock=Clock(START + 5))
    assert not other
    assert "openid/v1/jwks" not in [write.path for write in ours.writes]
    assert set(stood(tmp_path)) == set(kids("a", "other"))


_HERE, _EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE of Linux."""


async def test_a_directory_that_becomes_a_link_while_it_is_written_leads_nowhere(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside / "openid/v1", outside / "v1"):
        folder.mkdir(parents=True)
    (inside / "link").symlink_to(outside)
    ended = Event()

    def swap() -> None:
        names = os.fsencode(inside / "openid"), os.fsencode(inside / "link")
        while not ended.is_set():
            assert ctypes.CDLL(None).renameat2(_HERE, names[0], _HERE, names[1], _EXCHANGE) == 0

    swapping = asyncio.create_task(asyncio.to_thread(swap))
    try:
        for number in range(300):
            with suppress(WriteConflictError, StoreRefusedError):
                body, store = str(number).encode(), directory(inside)
                found = await store.read("openid/v1/jwks")
                await store.write(Write(path="openid/v1/jwks", body=body, replaces=found))
    finally:
        ended.set()
        await swapping
    assert list((outside / "v1").iterdir()) == []


async def test_a_file_that_is_a_link_is_neither_read_nor_written_through(tmp_path: Path) -> None:
    outside, inside = tmp_path / "out", tmp_path / "in" / "openid/v1"
    inside.mkdir(parents=True)
    outside.write_bytes(b"another's")
    (inside / "jwks").symlink_to(outside)
    store = directory(tmp_path / "in")
    with pytest.raises(StoreRefusedError, match="no symbolic link"):
        await store.read("openid/v1/jwks")
    with pytest.raises(StoreRefusedError):
        await store.write(Write(path="openid/v1/jwks", body=b"ours", replaces=None))
    assert outside.read_bytes() == b"another's"


async def test_files_can_be_read_by_a_web_server_and_written_by_nobody_else(tmp_path: Path) -> None:
    previous = os.umask(0o077)
    try:
        await publish(directory(tmp_path), wanted("a"), clock=Clock())
    finally:
        os.umask(previous)
    assert {stat.S_IMODE((tmp_path / path).stat().st_mode) for path in _OBJECTS} == {0o644}
    assert stat.S_IMODE((tmp_path / "openid/v1").stat().st_mode) == 0o755


async def test_what_is_as_it_should_be_is_not_written_and_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    await publish(directory(tmp_path), wanted("a"), clock=Clock())
    assert (await publish(directory(tmp_path), wanted("a"), clock=Clock(START + 500))).writes == ()
    (tmp_path / "openid/v1/.nodeattest-unfinished").write_bytes(b"half")
    await publish(directory(tmp_path), wanted("b"), clock=Clock())
    assert [path.name for path in (tmp_path / "openid/v1").iterdir()] == ["jwks"]


async def test_a_store_that_forgets_content_types_is_reported_and_not_written_for_ever(tmp_path: Path) -> None:
    class Forgetful(DirectoryStore):
        writes = 0

        async def read(self, path: str, /) -> StoredObject | None:
            found = await super().read(path)
            return found if found is None else replace(found, content_type="binary/octet-stream")

        async def write(self, write: Write, /) -> None:
            self.writes += 1
            await super().write(write)

    forgetful = Forgetful(tmp_path)
    with pytest.raises(StoreRefusedError, match=r"openid/v1/jwks has another content type"):
        await publish(forgetful, wanted("a"), clock=Clock())
    assert forgetful.writes < 50


# A rotation as docs/issuer.md#publish has it

LIFE = 4 * HOUR
STEP = 20 * 60


async def rotate(root: Path, *, wait: int) -> list[float]:
    """Rotate from key a to key b in twelve hours; returns when the key of a live token was not in a cache.

    After an hour b is published beside a; b signs after ``wait`` seconds; then a is no longer given. A token is signed
    every twenty minutes. Caches of all ages keep a key set for an hour; none looks again for an unknown kid, because
    that would hide a key that signs too early.
    """
    clock, live = Clock(), list[tuple[str, float]]()
    caches: dict[int, tuple[float, list[str]]] = {}
    refused: list[float] = []
    for seconds in range(0, 12 * HOUR, STEP):
        clock.now = START + seconds
        signer, given = ("b", ("b",)) if seconds >= HOUR + wait else ("a", ("a",) if seconds < HOUR else ("a", "b"))
        await publish(directory(root), replace(wanted(*given), retire_after=LIFE), clock=clock)
        live.append((kids(signer)[0], clock.now + LIFE))
        for number in range(min(3, seconds // STEP + 1)):
            if number not in caches or clock.now >= caches[number][0] + HOUR:
                caches[number] = clock.now, stood(root)
            refused += [clock.now for kid, until in live if until > clock.now and kid not in caches[number][1]]
    assert stood(root) == kids("b")
    return refused


async def test_at_every_instant_of_a_rotation_every_live_token_verifies(tmp_path: Path) -> None:
    for name in ("waits", "hurries"):
        (tmp_path / name).mkdir()
    assert await rotate(tmp_path / "waits", wait=HOUR + 600) == []
    assert await rotate(tmp_path / "hurries", wait=0), "without its wait the same rotation breaks tokens"


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
    assert await seen(served, first) == PublicCheck()
    held = {path: served.reply(path) for path in ("/c1/.well-known/openid-configuration", "/c1/openid/v1/jwks")}
    published = await put(served, "a", "b", now=START + 10)
    served.spoil = lambda path, _reply: held[path]
    early = await seen(served, published, now=START + 20)
    assert (early.is_wrong, early.until) == (False, START + 10 + HOUR)
    assert key("b").kid in early.findings[0]
    assert not (await seen(served, published, now=START + 10 + HOUR)).is_wrong
    assert (await seen(served, published, now=START + 11 + HOUR)).is_wrong


OTHER = documents("https://other.example", "https://other.example/jwks", [key("a")]).configuration


@pytest.mark.parametrize(
    ("headers", "reply", "finding"),
    [
        ({"Content-Type": "binary/octet-stream"}, None, "expected content type"),
        ({"Cache-Control": "public, max-age=86400"}, None, "for 3600 s at most, got 'public, max-age=86400'"),
        ({"Cache-Control": "public, max-age=60, s-maxage=86400"}, None, "s-maxage=86400"),
        ({"Cache-Control": ""}, None, "expected Cache-Control"),
        ({}, Reply(status=403), "expected 200, got 403; publish the documents where anybody"),
        ({"Location": "https://127.0.0.1:1/"}, Reply(status=302), "a redirect"),
        ({}, Reply(b" " * (2 << 20)), "at most"),
        ({}, Reply(b"<html>"), "expected an OpenID configuration"),
        ({}, Reply(OTHER), "got 'https://other.example'"),
    ],
)
async def test_what_a_web_server_does_wrong_is_told(
    served: IssuerServer, headers: dict[str, str], reply: Reply | None, finding: str
) -> None:
    published = await put(served, "a")
    served.spoil = lambda _path, sent: replace(reply or sent, headers=(reply or sent).headers | headers)
    found = await seen(served, published)
    assert found.is_wrong
    assert finding in " ".join(found.findings)
