"""A server of issuers' documents: HTTP as relying parties and caches speak it, and what of a folder is served."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp.test_utils import make_mocked_request
from publish_kit import Clock, directory, wanted
from token_kit import new_key

from nodeattest_identity.issuer.documents import default_jwks_uri, documents
from nodeattest_identity.publish.publisher import publish
from nodeattest_identity.serve import DocumentFolder, ServeSettings
from nodeattest_serving.bounded_server import BindAddress
from nodeattest_serving.http_server import Reply

BASE = "https://issuer.example/fleet"
ISSUER = f"{BASE}/shop/blue"
CONFIGURATION, JWKS = "/fleet/shop/blue/.well-known/openid-configuration", "/fleet/shop/blue/openid/v1/jwks"


class Served:
    """A folder with documents, as ``issuer publish`` writes them."""

    def __init__(self, root: Path, base: str = BASE) -> None:
        self.root, self.jwks = root, root / "shop/blue/openid/v1/jwks"
        settings = ServeSettings(address=BindAddress("127.0.0.1", 0), directory=root, issuer_base=base)
        self.folder = DocumentFolder(settings, clock=lambda: 0.0)

    async def put(self, issuer: str = ISSUER, *, keys: tuple[str, ...] = ("a",), jwks_uri: str = "") -> None:
        """Publish an issuer into its place below the base."""
        place = self.root / issuer.removeprefix(BASE).strip("/")
        place.mkdir(parents=True, exist_ok=True)
        desired = replace(wanted(*keys), issuer=issuer, jwks_uri=jwks_uri or default_jwks_uri(issuer))
        await publish(directory(place), desired, clock=Clock())

    async def ask(self, path: str, method: str = "GET", **headers: str) -> Reply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.folder.reply(make_mocked_request(method, path, named))


@pytest.fixture
async def served(tmp_path: Path) -> Served:
    made = Served(tmp_path)
    await made.put()
    return made


async def test_each_issuer_has_its_published_documents_under_the_path_of_its_url(tmp_path: Path) -> None:
    running, issuers = Served(tmp_path, f"{BASE}/"), (ISSUER, BASE, f"{BASE}/old/")
    for issuer in issuers:
        await running.put(issuer)
        path = issuer.removeprefix("https://issuer.example").removesuffix("/")
        made = documents(issuer, default_jwks_uri(issuer), wanted("a").keys)
        assert (await running.ask(f"{path}/.well-known/openid-configuration")).body == made.configuration
        assert (await running.ask(f"{path}/openid/v1/jwks")).body == made.jwks
    await running.put(f"{BASE}/c", jwks_uri=f"{BASE}/c/keys.json")
    answer = await running.ask("/fleet/c/keys.json")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/jwk-set+json")


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (f"{JWKS}/", {}),
        (f"{JWKS}?format=yaml", {}),
        (f"{JWKS}/?a=/../b", {"Accept": "text/html;q=0"}),
        (JWKS, {"Accept": "application/json", "Host": "elsewhere.example", "Authorization": "Bearer x"}),
    ],
)
async def test_a_slash_a_query_accept_and_credentials_change_nothing(
    served: Served, path: str, headers: dict[str, str]
) -> None:
    assert await served.ask(path, **headers) == await served.ask(JWKS)


async def test_a_document_that_the_client_has_is_not_sent_again(served: Served) -> None:
    document = await served.ask(JWKS)
    etag = document.headers["ETag"]
    assert document.headers["Cache-Control"] == "public, max-age=3600"
    for line in (etag, f"W/{etag}", "*", f'"old", {etag}'):
        answer = await served.ask(JWKS, If_None_Match=line)
        assert (answer.status, answer.body, answer.headers) == (304, b"", document.headers)
    other = (await served.ask(CONFIGURATION)).headers["ETag"]
    assert (await served.ask(JWKS, If_None_Match=other)).status == 200


async def test_other_methods_are_told_which_there_are(served: Served) -> None:
    for method in ("POST", "DELETE", "OPTIONS"):
        answer = await served.ask(JWKS, method)
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
    assert await served.ask(JWKS, "HEAD") == await served.ask(JWKS)


@pytest.mark.parametrize(
    "path",
    [
        "/", "/fleet", "/fleet/shop/blue", "/fleet/shop/blue/.well-known", f"{CONFIGURATION}/x", f"{JWKS}//",
        f"/{JWKS}", f"{JWKS}/keys", "/fleet/shop/blue/openid/v1/%6awks", "/fleet/shop/../shop/blue/openid/v1/jwks",
        "/Fleet/shop/blue/openid/v1/jwks", "/shop/blue/openid/v1/jwks", "/healthz", "/metrics", f"https://a{JWKS}",
        f"{JWKS}#x", "/fleet/shop/blue/.nodeattest/issuer-state.json", "/fleet/../secret", f"{JWKS}\0",
    ],
)  # fmt: skip
async def test_every_other_path_is_not_found(served: Served, path: str) -> None:
    assert (await served.ask(path)).status == 404


async def test_what_is_published_next_is_served_at_once_and_what_is_removed_is_gone(served: Served) -> None:
    await served.put(keys=("a", "b"))
    assert len(json.loads((await served.ask(JWKS)).body)["keys"]) == 2
    written, others = served.jwks.stat(), served.jwks.read_bytes().replace(b'"kid":"', b'"kid":"x', 1)
    served.jwks.write_bytes(others)
    os.utime(served.jwks, ns=(written.st_atime_ns, written.st_mtime_ns))  # as a copy may be dated
    assert (await served.ask(JWKS)).body == others
    served.jwks.unlink()
    assert (await served.ask(JWKS)).status == 404


def private_set() -> bytes:
    (member,) = json.loads(documents(ISSUER, default_jwks_uri(ISSUER), [new_key()]).jwks)["keys"]
    return json.dumps({"keys": [{**member, "d": "AAAA"}]}).encode()


ELSE = documents("https://else.example", "https://else.example/k", [new_key()]).configuration
NO_DOCUMENT = {
    "a private key": (JWKS, private_set(), "private"),
    "a key's PEM": (JWKS, b"-----BEGIN EC PRIVATE KEY-----", "in JSON"),
    "an empty key set": (JWKS, b'{"keys":[]}', "1 to"),
    "another issuer": (CONFIGURATION, ELSE, "got that at https://else.example"),
    "a page": (CONFIGURATION, b"<html>", "in JSON"),
    "a file without end": (JWKS, b" " * (2 << 20), "at most"),
}


@pytest.mark.parametrize("name", NO_DOCUMENT)
async def test_what_is_no_document_of_this_place_is_not_served_and_the_log_says_why(
    served: Served, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, body, why = NO_DOCUMENT[name]
    assert (await served.ask(path)).status == 200
    (served.root / path.removeprefix("/fleet/")).write_bytes(body)
    for _ in range(50):
        assert (await served.ask(path)).status == 503
    assert why in caplog.text
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 20


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_folder_and_a_name_too_long_are_not_found_and_leave_no_file_open(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    before = open_files()
    for path in ("/fleet/shop/blue", f"/fleet/{'a' * 256}") * 5:
        assert (await served.ask(path)).status == 404
    assert open_files() == before
    assert not caplog.records


async def test_a_link_and_a_pipe_are_not_followed_and_block_nothing(served: Served) -> None:
    assert (await served.ask(JWKS)).status == 200
    (served.root / "shop").rename(served.root / "moved")
    (served.root / "shop").symlink_to("moved")
    assert (await served.ask(JWKS)).status == 404
    (served.root / "shop").unlink()
    (served.root / "moved").rename(served.root / "shop")
    inside = served.jwks.read_bytes()
    (served.root / "outside").write_bytes(inside)
    served.jwks.unlink()
    served.jwks.symlink_to(served.root / "outside")
    assert (await served.ask(JWKS)).status == 503
    served.jwks.unlink()
    os.mkfifo(served.jwks)
    assert (await served.ask(JWKS)).status == 503
    writer = os.open(served.jwks, os.O_RDWR)  # a read would find nothing yet, and no end
    assert (await served.ask(JWKS)).status == 503
    os.close(writer)


async def test_it_is_ready_while_there_is_a_folder(served: Served, tmp_path: Path) -> None:
    assert served.folder.unready_reason() is None
    nothing = Served(tmp_path / "gone")
    assert "--dir: expected a folder" in (nothing.folder.unready_reason() or "")
    assert (await nothing.ask(JWKS)).status == 503
