"""D9: whoever answers a node that looks for its cluster, or for news of it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from catalogue import Row, attacks, evaluated
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from lying_servers import LOOPBACK, QUIET, Ca, LyingServer, Reply, VirtualTime, config_map, signed, status
from test_by_file import Cluster, downgrade, text_of
from test_by_token import CASES, TOKEN, World, standing

from nodeattest_discovery import clusterinfo, jws
from nodeattest_discovery.node.by_token import by_front, by_token, refresh
from nodeattest_discovery.pins import CaPin
from nodeattest_discovery.token import BootstrapToken
from nodeattest_parsing.strict_base64 import encode_base64url

REAL: Final = Ca("real")
EVIL: Final = Ca("evil")
WORLD: Final = World(REAL, EVIL)
PINS: Final = frozenset({REAL.pin})


@dataclass(frozen=True, slots=True)
class Scene:
    """The servers of an attack, which stand until it is over, and the node."""

    stack: ExitStack
    servers: list[LyingServer] = field(default_factory=list[LyingServer])
    attackers: list[LyingServer] = field(default_factory=list[LyingServer])
    """No question may reach them."""

    def stand(self, certificate: bytes, says: Reply | None = None) -> LyingServer:
        server = self.stack.enter_context(LyingServer(certificate, says or status(404)))
        self.servers.append(server)
        return server

    def attacker(self, certificate: bytes) -> LyingServer:
        self.attackers.append(self.stand(certificate))
        return self.attackers[-1]

    def join(self, *endpoints: str, pins: frozenset[CaPin] = PINS) -> object:
        return by_token(endpoints, TOKEN, pins, VirtualTime().environment(limit=12))

    def refresh(self, server: LyingServer, *trusted: Ca) -> object:
        bundle = b"".join(ca.pem for ca in trusted or (REAL,))
        return refresh([server.url], bundle, VirtualTime().environment())


@pytest.fixture
def scene() -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(stack)


Attack = Callable[[Scene], object]


# The first look and the second


def case(name: str) -> Attack:
    def attack(scene: Scene) -> object:
        server, other = scene.stack.enter_context(standing(CASES[name], WORLD))
        scene.servers.extend((server, other))
        return scene.join(server.endpoint)

    return attack


def answered(make: Callable[[LyingServer], Reply]) -> Attack:
    """Let the cluster's own server give an answer."""

    def attack(scene: Scene) -> object:
        server = scene.stand(REAL.server())
        server.says = make(server)
        return scene.join(server.endpoint)

    return attack


def text(server: LyingServer, *authorities: Ca) -> str:
    return WORLD.text(server, *authorities)


def under(sign: Callable[[bytes], str]) -> Attack:
    return answered(lambda server: signed(text(server), TOKEN, sign(text(server).encode())))


def signed_text(change: Callable[[str], str]) -> Attack:
    return answered(lambda server: signed(change(text(server)), TOKEN))


def nameless(content: bytes) -> str:
    return f"{encode_base64url(json.dumps({'alg': 'none', 'kid': TOKEN.id}).encode())}..{encode_base64url(content[:0])}"


def of_a_node(scene: Scene) -> object:
    server = scene.stand(REAL.server(["node-1"], []))
    named = f"server: {server.url}\n    tls-server-name: node-1"
    server.says = signed(text(server, REAL, EVIL).replace(f"server: {server.url}", named), TOKEN)
    return scene.join(server.endpoint)


def expired(scene: Scene) -> object:
    ca = Ca("real", starts=-600, lasts=-300)
    server = scene.stand(ca.server())
    server.says = signed(text(server, ca), TOKEN)
    return scene.join(server.endpoint, pins=frozenset({ca.pin}))


def leaf(scene: Scene) -> object:
    made = REAL.server()
    server = scene.stand(made)
    certificate = made[made.index(b"-----BEGIN CERT") :]
    content = text(server).replace(_encoded(REAL.pem), _encoded(certificate))
    server.says = signed(content, TOKEN)
    return scene.join(server.endpoint)


def _encoded(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


def twice(server: LyingServer) -> Reply:
    sound = signed(text(server), TOKEN)
    return Reply(body=sound.body.replace(b'"kubeconfig"', b'"kubeconfig": "a", "kubeconfig"'))


def redirected(scene: Scene) -> object:
    evil = scene.stand(EVIL.server())
    evil.says = signed(text(evil), TOKEN)
    server = scene.stand(REAL.server(), Reply(status=302, headers={"Location": evil.url + clusterinfo.PATH}))
    try:
        return scene.join(server.endpoint)
    finally:
        assert evil.seen == []


def evil_first(scene: Scene) -> object:
    evil, good = scene.stand(EVIL.server()), scene.stand(REAL.server())
    evil.says, good.says = signed(text(evil, REAL, EVIL), TOKEN), signed(text(good), TOKEN)
    found = by_token([evil.endpoint, good.endpoint], TOKEN, PINS, VirtualTime().environment(limit=12))
    assert (found.asked, found.info.ca_pem) == (good.url, REAL.pem)
    return found


DISCOVERED: dict[str, Attack] = {
    "D9-40": case("evil_bundle_plus_real"),
    "D9-41": case("evil_first_then_real"),
    "D9-42": case("evil_only"),
    "D9-43": case("pinned_but_served_by_evil"),
    "D9-44": case("second_fetch_differs"),
    "D9-45": case("typ_header"),
    "D9-46": case("swapped_header_order"),
    "D9-47": under(lambda content: jws.sign(content, BootstrapToken(TOKEN.id, "fedcba9876543210"))),
    "D9-48": under(lambda content: jws.sign(content, BootstrapToken("ffffff", TOKEN.secret))),
    "D9-49": under(nameless),
    "D9-50": under(lambda content: jws.sign(content.rstrip(), TOKEN)),
    "D9-51": answered(lambda server: config_map({"kubeconfig": text(server)})),
    "D9-52": of_a_node,
    "D9-53": expired,
    "D9-54": leaf,
    "D9-55": signed_text(lambda told: told.replace("users: null", "users: [{name: a, user: {exec: {command: sh}}}]")),
    "D9-56": signed_text(lambda told: told.replace("    server:", "    insecure-skip-tls-verify: true\n    server:")),
    "D9-57": signed_text(
        lambda told: told.replace("contexts:", "- cluster: {server: 'https://a:1'}\n  name: b\ncontexts:")
    ),
    "D9-58": answered(twice),
    "D9-59": redirected,
    "D9-60": answered(lambda _: Reply(body=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})),
    "D9-61": answered(lambda _: Reply(raw=b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (3 << 20))),
    "D9-62": evil_first,
    "D9-63": lambda scene: scene.join(scene.stand(REAL.server()).endpoint, pins=frozenset()),
    "D9-64": lambda scene: scene.join(scene.stand(REAL.server()).url + "/evil"),
}


@pytest.mark.parametrize(("row", "attack"), attacks(DISCOVERED))
def test_a_server_that_lies_is_not_believed_and_sees_no_credential(scene: Scene, row: Row, attack: Attack) -> None:
    assert evaluated(lambda: attack(scene)) == row.expected
    assert all(server.headers <= QUIET for server in scene.servers)


# Files


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack, tmp_path)


def filed(**user: object) -> Callable[[Cluster], object]:
    return lambda cluster: cluster.find(cluster.config(user=user))


def reaching_out(cluster: Cluster) -> object:
    cluster.stdin = text_of(cluster.config(user={"tokenFile": "/etc/hostname"})).encode
    return cluster.find_at("-", allow_credentials=True)


def ambiguous(cluster: Cluster) -> object:
    config = cluster.config(user={"exec": {"command": "kubelet-authenticator"}})
    config["clusters"].append({"name": "b", "cluster": {"server": cluster.stand(EVIL, status(403)).url}})
    config["contexts"][0]["context"]["cluster"] = "b"
    return cluster.find(config)


def moved_away(cluster: Cluster) -> object:
    evil = cluster.stand(EVIL, status(403))
    try:
        return cluster.find(cluster.config(server=evil.url, user={"token": "secret"}), allow_credentials=True)
    finally:
        assert evil.seen == []


FILES: dict[str, Callable[[Cluster], object]] = {
    "D9-65": lambda cluster: cluster.find_at("http://127.0.0.1:1/discovery.conf"),
    "D9-66": lambda cluster: cluster.find_at(downgrade(cluster)),
    "D9-67": filed(token="secret"),
    "D9-68": filed(exec={"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/sh"}),
    "D9-69": reaching_out,
    "D9-70": ambiguous,
    "D9-71": moved_away,
}


@pytest.mark.parametrize(("row", "attack"), attacks(FILES))
def test_a_file_gives_no_power_and_no_credential_away(
    cluster: Cluster, row: Row, attack: Callable[[Cluster], object]
) -> None:
    assert evaluated(lambda: attack(cluster)) == row.expected
    assert cluster.server.headers <= QUIET


# News


def news(make: Callable[[Scene, LyingServer], str], ca: Ca = REAL) -> Attack:
    def attack(scene: Scene) -> object:
        server = scene.stand(ca.server())
        server.says = config_map({"kubeconfig": make(scene, server)})
        return scene.refresh(server)

    return attack


def of_the_attacker(scene: Scene, _: LyingServer) -> str:
    evil = scene.stand(EVIL.server())
    told = text(evil, REAL, EVIL)
    evil.says = config_map({"kubeconfig": told})
    return told


def of_another_server(scene: Scene, server: LyingServer) -> str:
    other = scene.stand(REAL.server())
    other.says = config_map({"kubeconfig": text(server)})
    return text(other)


NEWS: dict[str, Attack] = {
    "D9-72": news(lambda _, server: text(server, EVIL)),
    "D9-73": news(of_the_attacker),
    "D9-74": news(of_another_server),
    "D9-75": news(lambda _, server: text(server), EVIL),
}


@pytest.mark.parametrize(("row", "attack"), attacks(NEWS))
def test_news_needs_a_ca_that_was_trusted_before(scene: Scene, row: Row, attack: Attack) -> None:
    assert evaluated(lambda: attack(scene)) == row.expected
    assert all(server.headers <= QUIET for server in scene.servers)


# Whoever holds some certificate of the CA, or may write cluster-info


def named(server: LyingServer, *authorities: Ca, name: str) -> str:
    return text(server, *authorities).replace("    server:", f"    tls-server-name: {name}\n    server:")


def fronted(scene: Scene, told: str, *servers: str) -> object:
    """Ask a front under a certificate of nobody's, which has the token."""
    body = config_map({"kubeconfig": told}).body
    front = scene.stand(EVIL.server(), Reply(body=body, headers={"X-Kubernetes-JWS": jws.sign(body, TOKEN)}))
    return by_front(front.endpoint, TOKEN, PINS, VirtualTime().environment(), servers=servers)


def front_names_a_node(scene: Scene, *, hides: bool = False) -> object:
    node = scene.attacker(REAL.kubelets())
    told = named(node, REAL, EVIL, name="worker-1")
    node.says = status(401) if hides else config_map({"kubeconfig": told})
    return fronted(scene, told)


def front_names_another(scene: Scene) -> object:
    other = scene.attacker(REAL.certified("hook", x509.DNSName("hook.example")))
    told = named(other, REAL, EVIL, name="hook.example")
    other.says = config_map({"kubeconfig": told})
    api = scene.stand(REAL.server(), config_map({"kubeconfig": "# the cluster's own\n"}))
    return fronted(scene, told, api.endpoint)


def moved(certificate: Callable[[], bytes], trusted: tuple[Ca, ...], last: tuple[Ca, ...]) -> Attack:
    """Write cluster-info anew to name the attacker's server."""

    def attack(scene: Scene) -> object:
        evil = scene.attacker(certificate())
        evil.says = config_map({"kubeconfig": text(evil, *last)})
        return scene.refresh(scene.stand(REAL.server(), evil.says), *trusted)

    return attack


def moved_later(*last: Ca) -> Attack:
    """Write cluster-info twice; the first write looks like the begin of a rotation, and is believed."""

    def attack(scene: Scene) -> object:
        api = scene.stand(REAL.server())
        api.says = config_map({"kubeconfig": text(api, REAL, EVIL)})
        assert scene.refresh(api) is not None
        return moved(EVIL.server, (REAL, EVIL), last)(scene)

    return attack


def renamed(scene: Scene) -> object:
    api = scene.stand(REAL.server())
    api.says = config_map({"kubeconfig": named(api, REAL, name="other")})
    return scene.refresh(api)


def shown(certificate: bytes, host: str = "127.0.0.1") -> Attack:
    """Answer a node that joins under this certificate."""

    def attack(scene: Scene) -> object:
        server = scene.stand(certificate)
        server.says = signed(text(server), TOKEN)
        try:
            return scene.join(f"{host}:{server.port}")
        finally:
            assert server.headers <= QUIET

    return attack


CLAIMS: dict[str, Attack] = {
    "D9-130": front_names_a_node,
    "D9-131": lambda scene: front_names_a_node(scene, hides=True),
    "D9-132": front_names_another,
    "D9-133": moved(REAL.kubelets, (REAL,), (REAL,)),
    "D9-134": moved_later(REAL, EVIL),
    "D9-135": moved_later(EVIL),
    "D9-136": renamed,
    "D9-137": shown(REAL.certified("localhost", LOOPBACK), "localhost"),
    "D9-138": shown(REAL.certified("system:admin", LOOPBACK, usage=ExtendedKeyUsageOID.CLIENT_AUTH)),
}


@pytest.mark.parametrize(("row", "attack"), attacks(CLAIMS))
def test_a_certificate_of_the_ca_or_a_word_in_cluster_info_does_not_make_a_cluster(
    scene: Scene, row: Row, attack: Attack
) -> None:
    assert evaluated(lambda: attack(scene)) == row.expected
    assert not any(server.seen for server in scene.attackers)
