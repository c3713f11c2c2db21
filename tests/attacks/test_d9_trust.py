"""D9: whoever holds some certificate of the cluster's CA, or may write cluster-info, and would be the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

import pytest
from catalogue import Row, attacks, evaluated
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from lying_servers import LOOPBACK, QUIET, Ca, LyingServer, Reply, VirtualTime, config_map, signed, status

from nodeattest_discovery import clusterinfo, jws
from nodeattest_discovery.node.by_token import by_front, by_token, refresh
from nodeattest_discovery.token import BootstrapToken

TOKEN: Final = BootstrapToken("abcdef", "0123456789abcdef")
REAL: Final = Ca("real")
EVIL: Final = Ca("evil")
PINS: Final = frozenset({REAL.pin})


@dataclass(frozen=True, slots=True)
class Scene:
    """The servers of an attack, the attacker's apart: no question may reach those."""

    stack: ExitStack
    attackers: list[LyingServer] = field(default_factory=list[LyingServer])

    def api(self, text: str = "") -> LyingServer:
        return self._stand(REAL.server(), text)

    def attacker(self, certificate: bytes) -> LyingServer:
        server = self._stand(certificate)
        self.attackers.append(server)
        return server

    def front(self, text: str) -> LyingServer:
        front = self._stand(EVIL.server())
        body = config_map({"kubeconfig": text}).body
        front.says = Reply(body=body, headers={"X-Kubernetes-JWS": jws.sign(body, TOKEN)})
        return front

    def _stand(self, certificate: bytes, text: str = "") -> LyingServer:
        says = config_map({"kubeconfig": text}) if text else status(404)
        return self.stack.enter_context(LyingServer(certificate, says))


@pytest.fixture
def scene() -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(stack)


Attack = Callable[[Scene], object]


def text(server: LyingServer, *authorities: Ca, name: str | None = None) -> str:
    made = clusterinfo.build(server.url, b"".join(ca.pem for ca in authorities))
    return made.replace("    server:", f"    tls-server-name: {name}\n    server:") if name else made


def front_names_a_node(scene: Scene, *, hides: bool = False) -> object:
    node = scene.attacker(REAL.kubelets())
    told = text(node, REAL, EVIL, name="worker-1")
    node.says = status(401) if hides else config_map({"kubeconfig": told})
    return by_front(scene.front(told).endpoint, TOKEN, PINS, VirtualTime().environment())


def front_names_another(scene: Scene) -> object:
    other = scene.attacker(REAL.certified("hook", x509.DNSName("hook.example")))
    told = text(other, REAL, EVIL, name="hook.example")
    other.says = config_map({"kubeconfig": told})
    api = scene.api("# the cluster's own\n")
    return by_front(scene.front(told).endpoint, TOKEN, PINS, VirtualTime().environment(), servers=[api.endpoint])


def news(api: LyingServer, *trusted: Ca) -> object:
    return refresh([api.url], b"".join(ca.pem for ca in trusted), VirtualTime().environment())


def moved(certificate: Callable[[], bytes], trusted: tuple[Ca, ...], last: tuple[Ca, ...]) -> Attack:
    """Write cluster-info anew to name the attacker's server."""

    def attack(scene: Scene) -> object:
        evil = scene.attacker(certificate())
        told = text(evil, *last)
        evil.says = config_map({"kubeconfig": told})
        return news(scene.api(told), *trusted)

    return attack


def twice(last: tuple[Ca, ...]) -> Attack:
    """Write cluster-info twice; the first write looks like the begin of a rotation, and is believed."""
    second = moved(EVIL.server, (REAL, EVIL), last)

    def attack(scene: Scene) -> object:
        api = scene.api()
        api.says = config_map({"kubeconfig": text(api, REAL, EVIL)})
        assert news(api, REAL) is not None
        return second(scene)

    return attack


def renamed(scene: Scene) -> object:
    api = scene.api()
    api.says = config_map({"kubeconfig": text(api, REAL, name="other")})
    return news(api, REAL)


def shown(certificate: bytes, host: str = "127.0.0.1") -> Attack:
    """Answer a node that joins under this certificate."""

    def attack(scene: Scene) -> object:
        server = scene.stack.enter_context(LyingServer(certificate, status(404)))
        server.says = signed(text(server, REAL), TOKEN)
        try:
            return by_token([f"{host}:{server.port}"], TOKEN, PINS, VirtualTime().environment(limit=12))
        finally:
            assert server.headers <= QUIET

    return attack


CASES: dict[str, Attack] = {
    "D9-130": front_names_a_node,
    "D9-131": lambda scene: front_names_a_node(scene, hides=True),
    "D9-132": front_names_another,
    "D9-133": moved(REAL.kubelets, (REAL,), (REAL,)),
    "D9-134": twice((REAL, EVIL)),
    "D9-135": twice((EVIL,)),
    "D9-136": renamed,
    "D9-137": shown(REAL.certified("localhost", LOOPBACK), "localhost"),
    "D9-138": shown(REAL.certified("system:admin", LOOPBACK, usage=ExtendedKeyUsageOID.CLIENT_AUTH)),
}


@pytest.mark.parametrize(("row", "attack"), attacks(CASES))
def test_a_certificate_of_the_ca_or_a_word_in_cluster_info_does_not_make_a_cluster(
    scene: Scene, row: Row, attack: Attack
) -> None:
    assert evaluated(lambda: attack(scene)) == row.expected
    assert not any(server.seen for server in scene.attackers)
