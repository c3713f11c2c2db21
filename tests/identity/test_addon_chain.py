"""Users of a real kube-apiserver before add-ons behind gateway and sidecar: the programs, with their manifests' rights.

Endpoints may not lead to loopback, so what the gateway forwards to listens at another address of this machine.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import json
import random
import re
import socket
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import jwt as pyjwt
import pytest
import requests
from front_ends import FRONT_PROXY, NAMESPACE, PROGRAM, container, started
from needs import not_possible
from polling import eventually

from nodeattest_controller import manifests
from nodeattest_identity.addon.gateway.target import API_SERVICE, GROUP, ROOT
from nodeattest_identity.proxy.refusals import MAX_HEAD
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, maps_at, text_at
from nodeattest_sandbox.child_process import LOOPBACK, free_ports, wait
from nodeattest_sandbox.client import ApiRefusal, Client
from nodeattest_sandbox.control_plane import ControlPlane, start_real
from nodeattest_sandbox.fleet import create_namespace
from nodeattest_sandbox.pki import ClusterPki

pytestmark = pytest.mark.conformance

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "dashboard"
NAME: Final = "addon-gateway"
RBAC: Final = "rbac.authorization.k8s.io"
APPS: Final = f"{ROOT}/namespaces/apps/services"
ECHO: Final = f"{APPS}/echo/proxy/"
"""An add-on without a sidecar, which tells what reached it."""
USERS: Final = "dashboard-users"
_RIGHTS: Final = {
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "Role": f"/apis/{RBAC}/v1/namespaces/{{namespace}}/roles",
    "RoleBinding": f"/apis/{RBAC}/v1/namespaces/{{namespace}}/rolebindings",
    "ClusterRole": f"/apis/{RBAC}/v1/clusterroles",
    "ClusterRoleBinding": f"/apis/{RBAC}/v1/clusterrolebindings",
}


@dataclass
class Chain:
    """A cluster with a gateway; its add-ons are in the namespace ``apps``."""

    stack: ExitStack
    directory: Path
    assets: Path
    address: str
    """Of this machine, for add-ons."""
    plane: ControlPlane
    front: ClusterPki
    """Of the front proxy and of the gateway's certificate."""
    port: int
    """The gateway's."""

    def __post_init__(self) -> None:
        self.issuer = f"https://{LOOPBACK}:{self.port}"

    def apply(self, kind: str, document: JsonMap) -> None:
        path = _RIGHTS[kind].format(namespace=text_at(document, "metadata", "namespace"))
        self.plane.client().create(path, document)

    def run_gateway(self) -> None:
        """Run the gateway, and let kube-apiserver ask it."""
        admin, accounts = self.plane.client(), f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
        documents = cast("list[JsonMap]", manifests.objects(NAME))
        for document in documents:
            if document["kind"] in _RIGHTS:
                self.apply(str(document["kind"]), document)
        answer = admin.create(f"{accounts}/{NAME}/token", {"apiVersion": "authentication.k8s.io/v1", "spec": {}})
        token = text_at(answer, "status", "token")
        kubeconfig = self.plane.pki.token_kubeconfig(self.directory / "gateway.kubeconfig", self.plane.server, token)
        certificate, key = self.front.files(NAME, (f"{NAME}.{NAMESPACE}.svc", "localhost", LOOPBACK))
        command = [
            *(*PROGRAM, "addon-auth", "gateway", f"--kubeconfig={kubeconfig}", f"--namespace={NAMESPACE}"),
            *(f"--issuer={self.issuer}", f"--bind-address={LOOPBACK}:{self.port}", f"--tls-cert-file={certificate}"),
            *(f"--tls-private-key-file={key}", *container(NAME)[0], "--log-level=warning"),
        ]
        self.run("gateway", command, self.port)
        # An ExternalName is the only service that leads to loopback.
        spec: JsonMap = {"type": "ExternalName", "externalName": "localhost"}
        admin.create(f"/api/v1/namespaces/{NAMESPACE}/services", {"metadata": {"name": NAME}, "spec": spec})
        [service] = [each for each in documents if each["kind"] == "APIService"]
        wanted: JsonMap = {
            **cast("JsonMap", service["spec"]),
            "caBundle": base64.b64encode(self.front.ca_certificate.read_bytes()).decode(),
            "service": {"name": NAME, "namespace": NAMESPACE, "port": self.port},
        }
        admin.create("/apis/apiregistration.k8s.io/v1/apiservices", {**service, "spec": wanted})
        eventually(lambda: _is_available(admin), "kube-apiserver finds the gateway available")

    def run(self, name: str, command: list[str], port: int, host: str = LOOPBACK) -> None:
        """Run a program until the chain ends."""

        def listens() -> bool:
            with suppress(OSError):
                socket.create_connection((host, port), timeout=1).close()
                return True
            return False

        wait(started(self.stack, name, command, self.directory), listens)

    def serve(self, name: str, port: int) -> None:
        """Make the Service of an add-on that listens on a port of ``address``."""
        admin, metadata = self.plane.client(), JsonMap(name=name)
        admin.create("/api/v1/namespaces/apps/services", {"metadata": metadata, "spec": {"ports": [{"port": 80}]}})
        pod: JsonMap = {"kind": "Pod", "namespace": "apps", "name": name}
        subset: JsonMap = {"addresses": [{"ip": self.address, "targetRef": pod}], "ports": [{"port": port}]}
        admin.create("/api/v1/namespaces/apps/endpoints", {"metadata": metadata, "subsets": [subset]})

    def run_sidecar(self, name: str, add_on: list[str], *flags: str) -> int:
        """Run an add-on, whose last argument is its port, and its sidecar; returns the sidecar's port."""
        port, upstream = free_ports(2)
        self.run(name, [sys.executable, *add_on, str(upstream)], upstream)
        command = [
            *(*PROGRAM, "addon-auth", "sidecar", "--plain-http", f"--bind-address={self.address}:{port}"),
            *(f"--upstream={LOOPBACK}:{upstream}", f"--issuer={self.issuer}", f"--ca-file={self.front.ca_certificate}"),
            *(f"--audience=apps/{name}", "--longest-lifetime=60", "--log-level=warning", *flags),
        ]
        self.run(f"{name}-sidecar", command, port, self.address)
        self.serve(name, port)
        return port

    def grant(self, name: str, group: str) -> None:
        """Let a group get one add-on."""
        rule: JsonMap = {
            "apiGroups": [GROUP], "resources": ["services/proxy"], "verbs": ["get"], "resourceNames": [name],
        }  # fmt: skip
        metadata: JsonMap = {"name": group, "namespace": "apps"}
        subject: JsonMap = {"apiGroup": RBAC, "kind": "Group", "name": group}
        role: JsonMap = {"apiGroup": RBAC, "kind": "Role", "name": group}
        self.apply("Role", {"metadata": metadata, "rules": [rule]})
        self.apply("RoleBinding", {"metadata": metadata, "roleRef": role, "subjects": [subject]})

    def client(self, user: str, *groups: str) -> Client:
        """Make a user with a client certificate."""
        return self.plane.client(self.plane.client_kubeconfig(user, groups))

    @contextmanager
    def proxied(self, user: str, *groups: str) -> Generator[int]:
        """Run ``kubectl proxy`` as a user; gives its port."""
        kubectl = [str(self.assets / "kubectl"), f"--kubeconfig={self.plane.client_kubeconfig(user, groups)}", "proxy"]
        wrapper = [sys.executable, "-m", "nodeattest_sandbox.child_process", str(self.directory / f"{user}.pid")]
        command = [*wrapper, *kubectl, "--port=0", f"--accept-paths=^{re.escape(APPS)}/.*$"]
        with ExitStack() as stack:
            process = started(stack, f"kubectl-{user}", command, self.directory)
            ready = re.compile(r"Starting to serve on [0-9.]+:([0-9]+)\n")
            wait(process, lambda: ready.search(process.log.read_text()) is not None)
            yield int(ready.findall(process.log.read_text())[0])


def _is_available(admin: Client) -> bool:
    found = admin.get(f"/apis/apiregistration.k8s.io/v1/apiservices/{API_SERVICE}")
    known = {each["type"]: each["status"] for each in maps_at(found, "status", "conditions")}
    return known.get("Available") == "True" and send(admin, ROOT)[0] == 200  # the path is handed over a moment later


def send(client: Client, path: str = ECHO, method: str = "GET", **more: Any) -> tuple[int, dict[str, Any]]:
    """Send a request; returns the status and the JSON that answers it."""
    try:
        status, body = client.send(method, path, **more)
    except ApiRefusal as refusal:
        return refusal.code, dict(refusal.status)
    return status, json.loads(body)


def own_address() -> str:
    """Return an address of this machine that is not loopback. Nothing is sent."""
    address = LOOPBACK
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("198.51.100.1", 9))
        address = str(probe.getsockname()[0])
    if address.startswith("127."):
        not_possible("no address but loopback, which Endpoints may not have")
    return address


@pytest.fixture(scope="module")
def chain(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    address, directory = own_address(), tmp_path_factory.mktemp("chain")
    front = ClusterPki.make(directory / "front-proxy", "front-proxy")
    certificate, key = front.files(FRONT_PROXY)
    flags = [
        f"--requestheader-client-ca-file={front.ca_certificate}",
        f"--requestheader-allowed-names={FRONT_PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={certificate}",
        f"--proxy-client-key-file={key}",
    ]
    [port] = free_ports(1)
    with ExitStack() as stack:
        plane = stack.enter_context(start_real(directory / "plane", assets, name="chain", flags=flags))
        for namespace in (NAMESPACE, "apps"):
            create_namespace(plane.client(), namespace)
        made = Chain(stack, directory, assets, address, plane, front, port)
        made.run_gateway()
        yield made


@pytest.fixture(scope="module")
def echo(chain: Chain) -> str:
    """Run the add-on that is two services, and return its URL."""
    [port] = free_ports(1)
    chain.run("echo", [sys.executable, "-m", "echo_upstream", str(port), chain.address], port, chain.address)
    for name in ("echo", "other"):
        chain.serve(name, port)
    chain.grant("echo", "echo-users")
    role: JsonMap = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "nodeattest:addon-user"}
    subject: JsonMap = {"kind": "User", "name": "jane@example.com", "apiGroup": RBAC}
    metadata: JsonMap = {"name": "jane", "namespace": "apps"}
    chain.apply("RoleBinding", {"metadata": metadata, "roleRef": role, "subjects": [subject]})
    return f"http://{chain.address}:{port}/"


def verified(chain: Chain, told: dict[str, Any]) -> dict[str, object]:
    """Verify the token that the add-on got by the gateway's documents, as PyJWT does."""
    [token] = [value.removeprefix("Bearer ") for name, value in told["headers"] if name == "Authorization"]
    answer = requests.get(f"{chain.issuer}/openid/v1/jwks", verify=str(chain.front.ca_certificate), timeout=60)
    assert answer.headers["content-type"] == "application/jwk-set+json"
    key = pyjwt.PyJWKSet.from_dict(answer.json())[pyjwt.get_unverified_header(token)["kid"]]
    return pyjwt.decode(token, key, algorithms=["ES256"], audience="apps/echo", issuer=chain.issuer)


def test_the_add_on_learns_a_user_with_a_certificate_and_sees_no_credential(chain: Chain, echo: str) -> None:
    """What a user says of himself is gone."""
    assert echo
    spoofed = {
        "X-Remote-User": "root", "X-Remote-Group": "system:masters", "X-Remote-Extra-Scopes": "root",
        "X-Remote-Uid": "0", "X_Remote_User": "root", "X.Remote.User": "root", "X-Authenticated-User": "root",
        "X_Authenticated_User": "root", "Impersonate-Foo": "root", "Proxy-Authorization": "Basic root",
        "Authorization": "Basic cm9vdA==",
    }  # fmt: skip
    jane = chain.client("jane@example.com", "team a")
    status, told = send(jane, f"{ECHO}a/b?add-auth=true&x=1", headers=spoofed)
    assert (status, told["path"]) == (200, "/a/b?x=1")
    claims = verified(chain, told)
    assert (claims["sub"], claims["aud"], claims.get("uid")) == ("jane@example.com", "apps/echo", None)
    assert set(cast("list[str]", claims["groups"])) == {"team a", "system:authenticated"}
    assert cast("int", claims["exp"]) - cast("int", claims["iat"]) <= 60
    assert not [name for name, _ in told["headers"] if "remote" in name.lower()]
    assert not re.search("root|cm9vdA", json.dumps(told))


def test_a_right_is_needed_and_holds_for_one_service_and_verb(chain: Chain, echo: str) -> None:
    before = requests.get(echo, timeout=60).json()["requests"]
    robot, jane, other = chain.client("robot", "echo-users"), chain.client("jane@example.com"), f"{APPS}/other/proxy/"
    assert send(chain.client("jim"))[0] == send(chain.plane.client(chain.plane.token_kubeconfig()))[0] == 403
    assert send(robot, other)[0] == send(robot, f"{APPS}/echo:80/proxy/")[0] == send(robot, method="POST")[0] == 403
    assert send(jane, f"{ROOT}/namespaces/kube-system/services/echo/proxy/")[0] == 403
    assert requests.get(echo, timeout=60).json()["requests"] == before + 1
    assert send(robot)[0] == 200
    assert send(jane, other, "POST", body="x")[1]["body"].startswith("3 ")


async def test_a_websocket_passes_kube_apiserver_with_a_token_of_its_own(chain: Chain, echo: str) -> None:
    assert echo
    jane = chain.client("jane@example.com")
    reader, writer = await asyncio.open_connection(LOOPBACK, urlsplit(jane.server).port, ssl=jane.tls)
    lines = (
        *(f"GET {ECHO}ws?add-auth=true HTTP/1.1", "Host: a", "Connection: Upgrade", "Upgrade: websocket"),
        *("Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Version: 13", "", ""),
    )
    writer.write("\r\n".join(lines).encode())
    async with asyncio.timeout(60):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        assert verified(chain, json.loads(await reader.readline()))["sub"] == "jane@example.com"
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
    writer.transport.abort()


# The example's dashboard


def live(port: int, headers: Mapping[str, str] | None = None) -> list[dict[str, object]]:
    """Read the page, and two events of its live view."""
    place = f"http://{LOOPBACK}:{port}{APPS}/dashboard/proxy/"
    page = requests.get(f"{place}?add-auth=true", headers=headers, timeout=60)
    assert 'new EventSource("events" + location.search)' in page.text
    with requests.get(f"{place}events?add-auth=true", headers=headers, timeout=60, stream=True) as answer:
        events = (line for line in answer.iter_lines() if line.startswith(b"data: "))
        return [json.loads(line.removeprefix(b"data: ")) for line in itertools.islice(events, 2)]


def test_two_users_each_see_their_own_dashboard_live(chain: Chain) -> None:
    program = chain.directory / "dashboard.py"
    program.write_text(
        f"import runpy, sys\nsys.argv.append({str(EXAMPLE / 'allowed.json')!r})\n"
        f"runpy.run_path({str(EXAMPLE / 'dashboard.py')!r}, run_name='__main__')\n"
    )
    chain.grant("dashboard", USERS)
    sidecar = chain.run_sidecar("dashboard", [str(program)], "--tell-groups")
    spoofed = {"X-Authenticated-User": "alice", "X_Authenticated_User": "alice", "X-Authenticated-Groups": "payments"}
    with chain.proxied("alice", USERS) as port:
        first, second = live(port)
        assert first["user"] == "alice"
        assert USERS in str(first["groups"])
        assert ["payments", "ledger", "3/3"] in cast("list[object]", first["workloads"])
        assert str(first["seconds"]) != str(second["seconds"])  # it streams through four programs
    with chain.proxied("bob", USERS) as port:
        first, _ = live(port, spoofed)
        assert (first["user"], first["namespaces"]) == ("bob", ["shop"])
        assert "payments" not in str(first["groups"])
    assert requests.get(f"http://{chain.address}:{sidecar}/", headers=spoofed, timeout=60).status_code == 401


# Uploads arrive, and their answers come back: with length and SHA-256 of what was sent


@dataclass(frozen=True, slots=True)
class Upload:
    size: int
    chunked: bool
    cut: str
    """Where the pieces of the first MiB end, a name in ``borders``."""

    def parts(self) -> Iterator[bytes]:
        """Give its content; no two parts are the same."""
        size = 20_000 if self.chunked and self.size < 200_000_000 else 1 << 20
        source = random.Random(self.size)
        for start in range(0, self.size, size):
            yield source.randbytes(min(size, self.size - start))


UPLOADS: Final = [
    Upload(1, chunked=False, cut="head"),
    Upload(40_000, chunked=False, cut="whole"),
    Upload(40_001, chunked=True, cut="head"),
    Upload(3 * MAX_HEAD + 1, chunked=False, cut="32 KiB + 1"),
    Upload(1 << 20, chunked=False, cut="last byte"),
    Upload((1 << 20) + 1, chunked=True, cut="bytes"),
    Upload(8_000_000, chunked=False, cut="head - 1"),
    Upload(200_000_000, chunked=True, cut="whole"),
]


async def upload(one: Upload, port: int) -> bytes:
    """Upload once; returns what is wrong with the answer."""
    framing = "Transfer-Encoding: chunked" if one.chunked else f"Content-Length: {one.size}"
    head = f"POST {APPS}/uploads/proxy/ HTTP/1.1\r\nHost: {LOOPBACK}\r\nConnection: close\r\n{framing}\r\n\r\n".encode()
    digest, begin = hashlib.sha256(), len(head)
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        async with asyncio.timeout(300):
            data = bytearray(head)
            for part in itertools.chain(one.parts(), [b""] if one.chunked else []):
                digest.update(part)
                data += b"%x\r\n%b\r\n" % (len(part), part) if one.chunked else part
                if len(data) >= 1 << 20 and part:
                    await write(writer, data, begin, one.cut)
                    data, begin = bytearray(), 0
            await write(writer, data, begin, one.cut)
            answer = await reader.read()
    finally:
        writer.transport.abort()
    wanted = f"{one.size} {digest.hexdigest()}".encode()
    return b"" if answer.startswith(b"HTTP/1.1 200 ") and wanted in answer else answer[:300]


async def write(writer: asyncio.StreamWriter, data: bytearray, head: int, cut: str) -> None:
    """Write by pieces, each a segment of its own: the loop turns, and Nagle's algorithm is off."""
    borders = {
        "whole": [], "head": [head], "head - 1": [head - 1], "last byte": [len(data) - 1],
        "32 KiB + 1": list(range(head, len(data), MAX_HEAD + 1))[:4],
        "bytes": list(range(head, min(head + 20, len(data)))),
    }[cut]  # fmt: skip
    for start, end in itertools.pairwise(sorted({0, len(data), *(each for each in borders if 0 < each < len(data))})):
        writer.write(bytes(data[start:end]))
        await writer.drain()
        await asyncio.sleep(0)


def test_no_upload_through_the_whole_chain_is_lost(chain: Chain) -> None:
    chain.run_sidecar("uploads", ["-m", "echo_upstream"])

    async def run(port: int) -> list[bytes]:
        return await asyncio.gather(*(upload(one, port) for one in UPLOADS))

    with chain.proxied("uploader", "system:masters") as port:
        assert asyncio.run(run(port)) == [b""] * len(UPLOADS)
