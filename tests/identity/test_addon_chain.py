"""Users of a real kube-apiserver, and whoever walks around it, before add-ons behind gateway and sidecar."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import random
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Final, cast

import jwt as pyjwt
import pytest
from addon_chain import APPS, RBAC, Chain, chain, own_address
from gateway_kit import AddOn, Answer, ask, running_add_on, send
from needs import not_possible
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from nodeattest_identity.addon.gateway.target import ROOT
from nodeattest_identity.proxy.refusals import MAX_HEAD
from nodeattest_sandbox.pki import ClusterPki

pytestmark = pytest.mark.conformance

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "dashboard"
HOST: Final = "127.0.0.1"
ECHO: Final = f"{APPS}/echo/proxy"
"""An add-on without a sidecar, which tells what reached it."""
USERS: Final = "dashboard-users"


@pytest.fixture(scope="module")
def world(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    address = own_address()
    if address is None:
        not_possible("no address but loopback, which Endpoints may not have")
    with chain(tmp_path_factory.mktemp("chain"), assets, address) as running:
        yield running


@pytest.fixture(scope="module")
def add_on(world: Chain) -> Iterator[AddOn]:
    with running_add_on(world.address) as running:
        for name in ("echo", "other"):
            world.serve(name, running.port)
        world.grant("echo", "echo-users")
        metadata = {"name": "jane", "namespace": "apps"}
        role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "nodeattest:addon-user"}
        subject = {"kind": "User", "name": "jane@example.com", "apiGroup": RBAC}
        bindings = f"/apis/{RBAC}/v1/namespaces/apps/rolebindings"
        world.plane.client().create(bindings, {"metadata": metadata, "roleRef": role, "subjects": [subject]})  # type: ignore[dict-item]
        yield running


def user(world: Chain, name: str, *groups: str, path: str = f"{ECHO}/", method: str = "GET", **more: object) -> Answer:
    """Send a request as a user with a client certificate."""
    client = world.plane.client(world.plane.client_kubeconfig(name, groups))
    return send(client, method, path, **more)  # type: ignore[arg-type]


def verified(world: Chain, authorization: str, audience: str = "apps/echo") -> dict[str, object]:
    """Verify what the add-on got by the gateway's documents, as PyJWT does."""
    token = authorization.removeprefix("Bearer ")
    answer = ask(world.direct(), world.gateway, "GET", "/openid/v1/jwks")
    assert answer.headers["content-type"] == "application/jwk-set+json"
    key = pyjwt.PyJWKSet.from_dict(answer.json)[pyjwt.get_unverified_header(token)["kid"]]
    return pyjwt.decode(token, key, algorithms=["ES256"], audience=audience, issuer=world.issuer)


def test_the_add_on_learns_a_user_with_a_certificate_and_sees_no_credential(world: Chain, add_on: AddOn) -> None:
    """What a user says of himself is gone."""
    spoofed = {
        "X-Remote-User": "root", "X-Remote-Group": "system:masters", "X-Remote-Extra-Scopes": "root",
        "X-Remote-Uid": "0", "X_Remote_User": "root", "X.Remote.User": "root", "X-Authenticated-User": "root",
        "X_Authenticated_User": "root", "Impersonate-Foo": "root", "Proxy-Authorization": "Basic root",
        "Authorization": "Basic cm9vdA==",
    }  # fmt: skip
    answer = user(world, "jane@example.com", "team a", path=f"{ECHO}/a/b?add-auth=true&x=1", headers=spoofed)
    assert (answer.status, answer.json["path"]) == (200, "/a/b?x=1")
    claims = verified(world, answer.header_of_request("Authorization")[0])
    assert (claims["sub"], claims["aud"], claims.get("uid")) == ("jane@example.com", "apps/echo", None)
    assert set(cast("list[str]", claims["groups"])) == {"team a", "system:authenticated"}
    assert cast("int", claims["exp"]) - cast("int", claims["iat"]) <= 60
    assert not [name for name, _ in cast("list[list[str]]", answer.json["headers"]) if "remote" in name.lower()]
    assert b"root" not in answer.body
    assert b"cm9vdA" not in answer.body
    assert add_on.seen


def test_a_right_is_needed_and_holds_for_one_service_and_verb(world: Chain, add_on: AddOn) -> None:
    before = len(add_on.seen)
    other = f"{APPS}/other/proxy/"
    assert user(world, "jim").status == 403
    assert user(world, "robot", "echo-users", path=other).status == 403
    assert user(world, "robot", "echo-users", path=f"{APPS}/echo:80/proxy/").status == 403
    assert user(world, "robot", "echo-users", method="POST", body=b"x").status == 403
    assert user(world, "jane@example.com", path=f"{ROOT}/namespaces/kube-system/services/echo/proxy/").status == 403
    assert send(world.plane.client(world.plane.token_kubeconfig()), "GET", f"{ECHO}/").status == 403
    assert len(add_on.seen) == before
    assert user(world, "robot", "echo-users").status == 200
    assert user(world, "jane@example.com", path=other, method="POST", body=b"x").json["body"] == "x"


@pytest.mark.parametrize("who", ["nobody", "another name", "another CA"])
def test_whoever_walks_around_kube_apiserver_reaches_nobody(world: Chain, add_on: AddOn, who: str) -> None:
    before = len(add_on.seen)
    certificate = None
    if who != "nobody":
        stranger = world.front if who == "another name" else ClusterPki.make(world.directory / who, "front-proxy")
        certificate = stranger.files("aggregator" if who == "another name" else "front-proxy-client")
    headers = {"X-Remote-User": "jane@example.com", "X-Remote-Group": "system:masters"}
    for path in (f"{ECHO}/", ROOT):
        if who == "another CA":
            with pytest.raises((ssl.SSLError, ConnectionError)):
                ask(world.direct(certificate), world.gateway, "GET", path, headers)
        else:
            assert ask(world.direct(certificate), world.gateway, "GET", path, headers).status == 401
    assert len(add_on.seen) == before


async def test_a_websocket_passes_kube_apiserver_with_a_token_of_its_own(world: Chain, add_on: AddOn) -> None:
    """The client of websockets.sync reads and writes one TLS object from two threads; then a request can be lost."""
    jane = world.plane.client(world.plane.client_kubeconfig("jane@example.com"))
    url = jane.server.replace("https", "wss") + f"{ECHO}/ws?add-auth=true"
    async with connect(url, ssl=jane.tls, subprotocols=[Subprotocol("echo")], open_timeout=60, proxy=None) as socket:
        assert socket.subprotocol == "echo"
        await socket.send("hello")
        assert await asyncio.wait_for(socket.recv(), 60) == "olleh"
    headers = dict(cast("list[tuple[str, str]]", add_on.seen[-1]["headers"]))
    assert verified(world, headers["Authorization"])["sub"] == "jane@example.com"


# The example's dashboard


@pytest.fixture(scope="module")
def dashboard(world: Chain) -> int:
    program = world.directory / "dashboard.py"
    program.write_text(
        f"import runpy, sys\nsys.argv.append({str(EXAMPLE / 'allowed.json')!r})\n"
        f"runpy.run_path({str(EXAMPLE / 'dashboard.py')!r}, run_name='__main__')\n"
    )
    world.grant("dashboard", USERS)
    return world.run_sidecar("dashboard", [str(program)], "--tell-groups")


def live(port: int, headers: Mapping[str, str] | None = None) -> list[dict[str, object]]:
    """Read the page, and two events of its live view."""
    path = f"{APPS}/dashboard/proxy"
    with closing(HTTPConnection(HOST, port, timeout=60)) as connection:
        connection.request("GET", f"{path}/?add-auth=true", headers=headers or {})
        assert b'new EventSource("events" + location.search)' in connection.getresponse().read()
        connection.request("GET", f"{path}/events?add-auth=true", headers=headers or {})
        answer = connection.getresponse()
        lines: list[bytes] = []
        while len(lines) < 2:
            line = answer.readline()
            assert line, lines
            if line.startswith(b"data: "):
                lines.append(line.removeprefix(b"data: "))
    return [json.loads(line) for line in lines]


def test_two_users_each_see_their_own_dashboard_live(world: Chain, dashboard: int) -> None:
    spoofed = {"X-Authenticated-User": "alice", "X_Authenticated_User": "alice", "X-Authenticated-Groups": "payments"}
    with world.proxied("alice", USERS) as port:
        first, second = live(port)
        assert first["user"] == "alice"
        assert USERS in str(first["groups"])
        assert ["payments", "ledger", "3/3"] in cast("list[object]", first["workloads"])
        assert str(first["seconds"]) != str(second["seconds"])  # it streams through four programs
    with world.proxied("bob", USERS) as port:
        first, _ = live(port, spoofed)
        assert (first["user"], first["namespaces"]) == ("bob", ["shop"])
        assert "payments" not in str(first["groups"])
    around = ask(None, dashboard, "GET", "/", {"X-Authenticated-User": "alice"}, host=world.address)
    assert around.status == 401


# Uploads arrive, and their answers come back: with length and SHA-256 of what was sent


@dataclass(frozen=True, slots=True)
class Upload:
    """One request."""

    number: int
    size: int
    """Bytes of its body."""
    chunked: bool
    cut: str
    """Where the pieces of the first MiB end, a name in ``borders``."""

    def parts(self) -> Iterator[bytes]:
        """Give its content; no two parts of an upload are the same."""
        size = 20_000 if self.chunked and self.size < 200_000_000 else 1 << 20
        source = random.Random(self.number)
        for start in range(0, self.size, size):
            yield source.randbytes(min(size, self.size - start))


UPLOADS: Final = [
    Upload(0, 1, chunked=False, cut="head"),
    Upload(1, 40_000, chunked=False, cut="whole"),
    Upload(2, 40_000, chunked=True, cut="head"),
    Upload(3, 3 * MAX_HEAD + 1, chunked=False, cut="32 KiB + 1"),
    Upload(4, 1 << 20, chunked=False, cut="last byte"),
    Upload(5, 1 << 20, chunked=True, cut="bytes"),
    Upload(6, 8_000_000, chunked=False, cut="head - 1"),
    Upload(7, 200_000_000, chunked=True, cut="whole"),
]


async def upload(one: Upload, port: int) -> bytes:
    """Upload once; returns what is wrong with the answer."""
    framing = "Transfer-Encoding: chunked" if one.chunked else f"Content-Length: {one.size}"
    target = f"{APPS}/uploads/proxy/upload?number={one.number}"
    head = f"POST {target} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n{framing}\r\n\r\n".encode()
    digest, first = hashlib.sha256(), True
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        async with asyncio.timeout(300):
            data = bytearray(head)
            for part in itertools.chain(one.parts(), [b""] if one.chunked else []):
                digest.update(part)
                data += b"%x\r\n%b\r\n" % (len(part), part) if one.chunked else part
                if len(data) >= 1 << 20 and part:
                    await write(writer, data, len(head) if first else 0, one.cut)
                    data, first = bytearray(), False
            await write(writer, data, len(head) if first else 0, one.cut)
            answer = await reader.read()
    finally:
        writer.transport.abort()
    wanted = f"{one.size} {digest.hexdigest()}".encode()
    return b"" if answer.startswith(b"HTTP/1.1 200 ") and wanted in answer else answer[:300]


async def write(writer: asyncio.StreamWriter, data: bytearray, head: int, cut: str) -> None:
    """Write by pieces, each a segment of its own: the loop turns, and Nagle's algorithm is off."""
    borders = {
        "whole": [],
        "head": [head],
        "head - 1": [head - 1],
        "32 KiB + 1": list(range(head, len(data), MAX_HEAD + 1))[:4],
        "bytes": list(range(head, min(head + 20, len(data)))),
        "last byte": [len(data) - 1],
    }[cut]
    marks = sorted({0, len(data), *(each for each in borders if 0 < each < len(data))})
    for start, end in itertools.pairwise(marks):
        writer.write(bytes(data[start:end]))
        await writer.drain()
        await asyncio.sleep(0)


def test_no_upload_through_the_whole_chain_is_lost(world: Chain) -> None:
    world.run_sidecar("uploads", ["-m", "echo_upstream"])

    async def run(port: int) -> list[bytes]:
        return await asyncio.gather(*(upload(one, port) for one in UPLOADS))

    with world.proxied("uploader", "system:masters") as port:
        assert asyncio.run(run(port)) == [b""] * len(UPLOADS)
