"""The gateway behind a real kube-apiserver: what its users, and whoever walks around it, bring to an add-on."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import jwt as pyjwt
import pytest
from addon_kit import gateway
from aggregation_kit import PLACES, RBAC, token_kubeconfig
from front_kit import LOOPBACK, Authority
from gateway_kit import (
    AddOn,
    Answer,
    LoopThread,
    ask,
    certify,
    front_proxy_flags,
    send,
)
from websockets.sync.client import connect

from nodeattest_identity.addon.gateway.endpoints import ServiceEndpoint
from nodeattest_identity.addon.gateway.service import UserLimits
from nodeattest_identity.addon.gateway.target import GROUP, ROOT
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import ControlPlane, start_real
from nodeattest_sandbox.fleet import create_namespace

pytestmark = pytest.mark.conformance

DASHBOARD: Final = f"{ROOT}/namespaces/apps/services/dashboard/proxy"


@dataclass(frozen=True)
class World:
    """A cluster with a gateway, an add-on, and users."""

    plane: ControlPlane
    front: Authority
    serving: Authority
    add_on: AddOn
    issuer: str
    directory: Path
    jane: Client
    """By certificate; may use every add-on of the namespace."""
    robot: Client
    """By bearer token; may use one."""
    jim: Client
    """May nothing."""

    @property
    def port(self) -> int:
        """Where the gateway listens."""
        return int(self.issuer.rpartition(":")[2])

    def direct(self, certificate: tuple[Path, Path] | None) -> ssl.SSLContext:
        """Go to the gateway without kube-apiserver."""
        context = ssl.create_default_context(cadata=self.serving.pem.decode())
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context


def writes_uid(assets: Path) -> bool:
    """Whether this kube-apiserver writes ``X-Remote-Uid`` (1.33; in 1.32 behind a feature gate)."""
    said = subprocess.run([assets / "kube-apiserver", "--version"], capture_output=True, text=True, check=True).stdout
    return int(said.split(".")[1]) >= 33


def token_client(plane: ControlPlane, namespace: str, account: str, path: Path) -> Client:
    return Client.from_kubeconfig(token_kubeconfig(plane, namespace, account, path))


def grant(client: Client, name: str, subject: JsonMap, *, names: list[str] | None = None) -> None:
    role: JsonMap = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "nodeattest:addon-user"}
    if names is not None:
        rule: JsonMap = {
            "apiGroups": [GROUP],
            "resources": ["services/proxy"],
            "verbs": ["get"],
            "resourceNames": [*names],
        }
        made: JsonMap = {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": {"name": name}, "rules": [rule]}
        client.create(PLACES["Role"].format(namespace="apps"), made)
        role = {"apiGroup": RBAC, "kind": "Role", "name": name}
    binding: JsonMap = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name},
        "roleRef": role,
        "subjects": [subject],
    }
    client.create(PLACES["RoleBinding"].format(namespace="apps"), binding)


@pytest.fixture(scope="module")
def world(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("gateway")
    front, serving = Authority("front-proxy-ca"), Authority("gateway-ca")
    flags = front_proxy_flags(front, directory / "front")
    loop, add_on = LoopThread(), AddOn()
    if writes_uid(assets):
        flags.append("--requestheader-uid-headers=X-Remote-Uid")
    limits = UserLimits(user_burst=1000, user_rate=1000)
    loop.call(add_on.start())
    with (
        start_real(directory / "plane", assets, name="gateway", flags=flags) as plane,
        gateway(plane, directory, serving, limits) as (issuer, resolver),
    ):
        for name in ("dashboard", "other"):
            resolver.known["apps", name] = ServiceEndpoint(LOOPBACK, add_on.port)
        admin = plane.client()
        create_namespace(admin, "apps")
        account: JsonMap = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}}
        admin.create("/api/v1/namespaces/apps/serviceaccounts", account)
        grant(admin, "jane", {"kind": "User", "name": "jane@example.com", "apiGroup": RBAC})
        grant(admin, "robot", {"kind": "ServiceAccount", "name": "robot", "namespace": "apps"}, names=["dashboard"])
        yield World(
            plane=plane,
            front=front,
            serving=serving,
            add_on=add_on,
            issuer=issuer,
            directory=directory,
            jane=plane.client(plane.client_kubeconfig("jane@example.com", ["team a", "devs"])),
            robot=token_client(plane, "apps", "robot", directory / "robot.kubeconfig"),
            jim=plane.client(plane.client_kubeconfig("jim")),
        )
    loop.call(add_on.stop())
    loop.close()


def jwks(world: World) -> pyjwt.PyJWKSet:
    answer = ask(world.direct(None), world.port, "GET", "/openid/v1/jwks")
    assert answer.headers["content-type"] == "application/jwk-set+json"
    return pyjwt.PyJWKSet.from_dict(answer.json)


def verified(world: World, answer: Answer, audience: str) -> dict[str, object]:
    """Verify what the add-on got, as PyJWT does."""
    [authorization] = answer.header_of_request("Authorization")
    token = authorization.removeprefix("Bearer ")
    key = jwks(world)[pyjwt.get_unverified_header(token)["kid"]]
    return pyjwt.decode(token, key, algorithms=["ES256"], audience=audience, issuer=world.issuer)


def test_the_add_on_learns_a_user_with_a_certificate_and_sees_no_credential(world: World) -> None:
    answer = send(world.jane, "GET", f"{DASHBOARD}/a/b?add-auth=true&x=1")
    assert answer.status == 200
    assert answer.json["path"] == "/a/b?x=1"
    claims = verified(world, answer, "apps/dashboard")
    assert (claims["sub"], claims["aud"]) == ("jane@example.com", "apps/dashboard")
    assert set(cast("list[str]", claims["groups"])) == {"team a", "devs", "system:authenticated"}
    assert cast("int", claims["exp"]) - cast("int", claims["iat"]) <= 60
    assert not [name for name, _ in cast("list[list[str]]", answer.json["headers"]) if "remote" in name.lower()]


def test_a_right_is_needed_and_holds_for_one_service_and_verb(world: World) -> None:
    before = len(world.add_on.seen)
    assert send(world.jim, "GET", f"{DASHBOARD}/").status == 403
    assert send(world.robot, "GET", f"{ROOT}/namespaces/apps/services/other/proxy/").status == 403
    assert send(world.robot, "GET", f"{ROOT}/namespaces/apps/services/dashboard:80/proxy/").status == 403
    assert send(world.robot, "POST", f"{DASHBOARD}/", body=b"x").status == 403
    assert send(world.jane, "GET", f"{ROOT}/namespaces/kube-system/services/dashboard/proxy/").status == 403
    anonymous = world.plane.client(world.plane.token_kubeconfig())
    assert send(anonymous, "GET", f"{DASHBOARD}/").status == 403
    assert len(world.add_on.seen) == before
    assert send(world.jane, "POST", f"{ROOT}/namespaces/apps/services/other/proxy/", body=b"x").json["body"] == "x"


@pytest.mark.parametrize("who", ["nobody", "a user of the cluster", "another name", "another CA"])
def test_whoever_walks_around_kube_apiserver_reaches_nobody(world: World, who: str) -> None:
    before = len(world.add_on.seen)
    directory = world.directory / "strangers"
    certificate = {
        "nobody": lambda: None,
        "a user of the cluster": lambda: certify(Authority("kubernetes"), directory, "admin", client=True),
        "another name": lambda: certify(world.front, directory, "aggregator", client=True),
        "another CA": lambda: certify(Authority("front-proxy-ca"), directory, "front-proxy-client", client=True),
    }[who]()
    headers = {"X-Remote-User": "jane@example.com", "X-Remote-Group": "system:masters"}
    for path in (f"{DASHBOARD}/", ROOT):
        if who in {"nobody", "another name"}:
            answer = ask(world.direct(certificate), world.port, "GET", path, headers)
            assert answer.status == 401
            assert answer.json["reason"] == "Unauthorized"
        else:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                ask(world.direct(certificate), world.port, "GET", path, headers)
    assert len(world.add_on.seen) == before


def test_a_websocket_passes_kube_apiserver_with_a_token_of_its_own(world: World) -> None:
    url = world.jane.server.replace("https", "wss") + f"{DASHBOARD}/ws?add-auth=true"
    with connect(url, ssl=world.jane.tls, subprotocols=["echo"], open_timeout=60) as socket:  # pyright: ignore[reportArgumentType]
        assert socket.subprotocol == "echo"
        for word in ("hello", "again"):
            socket.send(word)
            assert socket.recv(timeout=60) == word[::-1]
    seen = [each for each in world.add_on.seen if str(each["path"]).startswith("/ws")][-1]
    assert seen["path"] == "/ws"
    headers = dict(cast("list[tuple[str, str]]", seen["headers"]))
    claims = pyjwt.decode(headers["Authorization"].removeprefix("Bearer "), options={"verify_signature": False})
    assert claims["sub"] == "jane@example.com"


def test_what_a_user_says_of_himself_is_gone(world: World) -> None:
    spoofed = {
        "X-Remote-User": "root",
        "X-Remote-Group": "system:masters",
        "X-Remote-Extra-Scopes": "all",
        "X-Remote-Uid": "0",
        "X_Remote_User": "root",
        "X.Remote.User": "root",
        "X-Authenticated-User": "root",
        "X_Authenticated_User": "root",
        "X-Forwarded-User": "root",
        "Impersonate-Foo": "root",
        "Proxy-Authorization": "Basic root",
        "Authorization": "Basic cm9vdA==",
    }
    answer = send(world.jane, "GET", f"{DASHBOARD}/", spoofed)
    assert answer.status == 200
    claims = verified(world, answer, "apps/dashboard")
    assert claims["sub"] == "jane@example.com"
    assert claims.get("uid") != "0"
    assert "system:masters" not in cast("list[str]", claims["groups"])
    assert "root" not in answer.body.decode()
    assert "cm9vdA" not in answer.body.decode()
