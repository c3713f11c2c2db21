"""Discovery by token, from servers and a front: who is believed, and what they see; the peer is kubeadm itself."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kubernetes_assets import join_configuration
from lying_servers import CLUSTER_INFO, QUIET, Ca, LyingServer, Reply, VirtualTime, config_map, script, signed, status

from nodeattest_discovery import clusterinfo, jws, jwt
from nodeattest_discovery.node.by_token import by_front, by_token
from nodeattest_discovery.node.client import Found
from nodeattest_discovery.pins import CaPin
from nodeattest_discovery.token import BootstrapToken
from nodeattest_parsing.strict_base64 import encode_base64url
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.control_plane import kubeadm

TOKEN = BootstrapToken("abcdef", "0123456789abcdef")

# Eleven servers that a joining node may meet, and whether kubeadm 1.36.2 joins; tests/attacks tells what we do


@dataclass(frozen=True, slots=True)
class World:
    """The cluster's CA, the attacker's, and the server that the case is about."""

    real: Ca = field(default_factory=Ca)
    evil: Ca = field(default_factory=lambda: Ca("evil"))

    def text(self, server: LyingServer, *authorities: Ca) -> str:
        bundle = b"".join(one.pem for one in authorities or (self.real,))
        return clusterinfo.build(server.url, bundle)


@dataclass(frozen=True, slots=True)
class Case:
    """A server, and what kubeadm does with it."""

    says: Callable[[World, LyingServer, LyingServer], Callable[[int], Reply]]
    """The world, the server itself, and another one."""
    kubeadm_joins: bool = False
    evil_certificate: bool = False


def once(
    make: Callable[[World, LyingServer], Reply],
) -> Callable[[World, LyingServer, LyingServer], Callable[[int], Reply]]:
    return lambda world, server, _: script(make(world, server))


def header(text: str) -> Callable[[World, LyingServer], Reply]:
    """Sign under another header than kube-controller-manager's, with a sound MAC."""

    def make(world: World, server: LyingServer) -> Reply:
        content = world.text(server)
        first = encode_base64url(text.encode())
        mac = hmac.digest(
            TOKEN.secret.encode(), f"{first}.{encode_base64url(content.encode())}".encode(), hashlib.sha256
        )
        return signed(content, TOKEN, f"{first}..{encode_base64url(mac)}")

    return make


def no_kubeconfig(world: World, server: LyingServer) -> Reply:
    del world, server
    return config_map({"jws-kubeconfig-abcdef": "h..s"})


def second_differs(world: World, server: LyingServer, other: LyingServer) -> Callable[[int], Reply]:
    return script(signed(world.text(server), TOKEN), signed(world.text(other), TOKEN))


def bundle(*names: str) -> Callable[[World, LyingServer, LyingServer], Callable[[int], Reply]]:
    """Sign a text with these CAs of the world."""
    return once(lambda world, server: signed(world.text(server, *(getattr(world, name) for name in names)), TOKEN))


BAD_SIGNATURE = "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiY2RlZiJ9..AAAA"
CASES = {
    "good": Case(bundle("real"), kubeadm_joins=True),
    "typ_header": Case(once(header('{"alg":"HS256","kid":"abcdef","typ":"JWT"}'))),
    "swapped_header_order": Case(once(header('{"kid":"abcdef","alg":"HS256"}'))),
    "evil_bundle_plus_real": Case(bundle("real", "evil"), kubeadm_joins=True, evil_certificate=True),
    "evil_first_then_real": Case(bundle("evil", "real"), kubeadm_joins=True, evil_certificate=True),
    "evil_only": Case(bundle("evil"), evil_certificate=True),
    "pinned_but_served_by_evil": Case(bundle("real"), evil_certificate=True),
    "second_fetch_differs": Case(second_differs),
    "no_kubeconfig": Case(once(no_kubeconfig)),
    "bad_sig": Case(once(lambda world, server: signed(world.text(server), TOKEN, BAD_SIGNATURE))),
    "server_elsewhere": Case(lambda world, _, other: script(signed(world.text(other), TOKEN)), kubeadm_joins=True),
}


@contextmanager
def standing(case: Case, world: World) -> Generator[tuple[LyingServer, LyingServer]]:
    """Let a case's server stand, and another of the same cluster."""
    with ExitStack() as stack:
        authority = world.evil if case.evil_certificate else world.real
        server = stack.enter_context(LyingServer(authority.server(), status(404)))
        other = stack.enter_context(LyingServer(world.real.server(), status(404)))
        says = case.says(world, server, other)
        infos = iter(range(1 << 20))

        def reply(number: int) -> Reply:
            info = server.seen[number].path.startswith(clusterinfo.PATH)
            return says(next(infos)) if info else status(404, "NotFound")

        server.says = reply
        yield server, other


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def find(
    *servers: LyingServer | str, pins: frozenset[CaPin] | None, time: VirtualTime | None = None, limit: float = 12
) -> Found:
    endpoints = [server if isinstance(server, str) else server.endpoint for server in servers]
    return by_token(endpoints, TOKEN, pins, (time or VirtualTime()).environment(limit=limit))


def reason(action: Callable[[], object]) -> Reason | None:
    try:
        action()
    except (Denied, Unavailable) as error:
        return error.reason
    return None


@pytest.mark.conformance
@pytest.mark.parametrize("name", CASES)
def test_kubeadm_gives_the_verdict_that_the_table_says(name: str, world: World, assets: Path, tmp_path: Path) -> None:
    with standing(CASES[name], world) as (server, other):
        discovery: JsonMap = {
            "bootstrapToken": {
                "token": TOKEN.reveal(),
                "apiServerEndpoint": server.endpoint,
                "caCertHashes": [str(world.real.pin)],
            },
        }
        (tmp_path / "join.yaml").write_text(join_configuration(discovery, seconds=3))
        words = ["join", "phase", "preflight", "--config", str(tmp_path / "join.yaml"), "--ignore-preflight-errors=all"]
        done = kubeadm(assets, *words)
        asked = [seen for seen in (*server.seen, *other.seen) if "/kubeadm-config" in seen.path]
        assert bool(asked) == CASES[name].kubeadm_joins, done.stderr
        assert all(("authorization", f"Bearer {TOKEN.reveal()}") in seen.headers for seen in asked)


# What a server is asked, and how often


def test_what_is_found_is_the_exact_text_and_the_whole_bundle(world: World) -> None:
    with LyingServer(world.real.server(), status(404)) as server:
        text = world.text(server, world.evil, world.real)
        server.says = signed(text, TOKEN)
        found = find(server, pins=frozenset({world.real.pin}))
    assert (found.info, found.asked) == (clusterinfo.parse(text), server.url)
    assert found.info.ca_pem == world.evil.pem + world.real.pem
    assert "not pinned" in found.notes[0]
    assert len(server.seen) == 2


def test_without_pins_there_is_one_question_and_a_warning(world: World) -> None:
    with standing(CASES["good"], world) as (server, _):
        found = find(server, pins=None)
        assert server.paths == [CLUSTER_INFO]
    assert "no CA was pinned" in found.notes[0]


def test_an_answer_without_a_kubeconfig_is_refused(world: World) -> None:
    with standing(CASES["no_kubeconfig"], world) as (server, _):
        assert reason(lambda: find(server, pins=None)) == Reason.CLUSTER_INFO_MALFORMED


def test_it_waits_for_the_signer_at_once_and_every_five_seconds(world: World) -> None:
    time = VirtualTime()
    with LyingServer(world.real.server(), status(404)) as server:
        text = world.text(server)
        unsigned = config_map({"kubeconfig": text, "jws-kubeconfig-ffffff": "x"})
        server.says = script(status(404), status(403), unsigned, signed(text, TOKEN))
        find(server, pins=frozenset({world.real.pin}), time=time, limit=300)
    assert time.moment == 15
    assert len(server.seen) == 5


# Several servers


def test_a_refused_server_is_not_asked_again_while_another_comes_up(world: World) -> None:
    with standing(CASES["bad_sig"], world) as (bad, _), LyingServer(world.real.server(), status(404)) as late:
        late.says = script(status(503), status(503), signed(world.text(late), TOKEN))
        time = VirtualTime()
        assert find(bad, late, pins=frozenset({world.real.pin}), time=time).asked == late.url
        assert len(bad.seen) == 1
        assert any(bad.url in line and "SignatureInvalid" in line for line in time.told)


# What nobody is asked for


@pytest.mark.parametrize("endpoints", [[], ["127.0.0.1"], ["https://127.0.0.1:1/path"], ["127.0.0.1:1", ""]])
def test_endpoints_are_read_before_any_is_asked(world: World, endpoints: list[str]) -> None:
    pins = frozenset({world.real.pin})
    assert reason(lambda: find(*endpoints, pins=pins)) == Reason.DISCOVERY_ENDPOINT_MALFORMED


# Other servers that must not be believed


def test_a_ca_must_be_valid_pinned_or_not() -> None:
    ca = Ca("real", starts=300, lasts=600)
    with LyingServer(ca.server(), status(404)) as server:
        server.says = signed(clusterinfo.build(server.url, ca.pem), TOKEN)
        for pins in (frozenset({ca.pin}), None):
            assert reason(lambda pins=pins: find(server, pins=pins)) == Reason.SERVER_NOT_TRUSTED


# By a front


REAL, EVIL = Ca(), Ca("evil")
PINS = frozenset({REAL.pin})


@dataclass(frozen=True)
class Scene:
    """A front under a stranger's certificate, and the cluster's own server."""

    front: LyingServer
    cluster: LyingServer

    @property
    def text(self) -> str:
        return clusterinfo.build(self.cluster.url, REAL.pem)

    def find(self, pins: frozenset[CaPin] | None = PINS, time: VirtualTime | None = None) -> Found:
        return by_front(self.front.endpoint, TOKEN, pins, (time or VirtualTime()).environment(limit=12))

    def reason(self, pins: frozenset[CaPin] | None = PINS) -> tuple[type[Exception], Reason] | None:
        try:
            self.find(pins)
        except (Denied, Unavailable) as error:
            kind = Denied if isinstance(error, Denied) else Unavailable
            return (kind, error.reason) if TOKEN.secret not in str(error) else None
        return None


@contextmanager
def fronted(certificate: bytes | None = None) -> Generator[Scene]:
    nothing = status(404)
    with (
        LyingServer(EVIL.server(), nothing) as front,
        LyingServer(certificate or REAL.server(), nothing) as cluster,
    ):
        scene = Scene(front, cluster)
        front.says, cluster.says = answer(scene.text), config_map({"kubeconfig": scene.text})
        yield scene


@pytest.fixture
def scene() -> Generator[Scene]:
    with fronted() as made:
        yield made


def answer(text: str, token: BootstrapToken = TOKEN, **changes: object) -> Reply:
    return sign(config_map({"kubeconfig": text}, **changes).body, token)


def sign(body: bytes, token: BootstrapToken = TOKEN) -> Reply:
    return Reply(body=body, headers={"X-Kubernetes-JWS": jws.sign(body, token)})


def test_a_signed_answer_that_the_cluster_bears_out_is_found(scene: Scene) -> None:
    found = scene.find()
    assert found == Found(info=clusterinfo.parse(scene.text), asked=scene.cluster.url)
    assert scene.front.paths == [CLUSTER_INFO]
    assert scene.cluster.paths == [CLUSTER_INFO]


def test_the_front_sees_a_jwt_and_the_cluster_no_credential_at_all(scene: Scene) -> None:
    scene.find()
    (seen,) = scene.front.seen
    assert seen.names == {*QUIET, "authorization"}
    scheme, _, question = dict(seen.headers)["authorization"].partition(" ")
    assert scheme == "Bearer"
    jwt.verify(jwt.parse(question.encode()), TOKEN, now=VirtualTime().environment().clock.now())
    assert TOKEN.secret not in str(seen)
    assert scene.cluster.headers == QUIET


def test_no_pins_at_all_are_refused_before_the_front_is_asked(scene: Scene) -> None:
    assert scene.reason(frozenset()) == (Denied, Reason.CA_PIN_MALFORMED)
    assert not scene.front.seen


@pytest.mark.parametrize(
    ("reply", "kind", "reason"),
    [
        (config_map({"kubeconfig": "# another\n"}), Denied, Reason.CLUSTER_INFO_CHANGED),
        (config_map({}), Denied, Reason.CLUSTER_INFO_CHANGED),
        (status(404), Unavailable, Reason.API_UNAVAILABLE),
        (status(500), Unavailable, Reason.API_UNAVAILABLE),
    ],
)
def test_what_the_cluster_does_not_bear_out_is_not_believed(
    reply: Reply, kind: type[Exception], reason: Reason, scene: Scene
) -> None:
    scene.cluster.says = reply
    assert scene.reason() == (kind, reason)


@pytest.mark.parametrize("code", [401, 403])
def test_where_the_cluster_tells_nobody_only_pinned_cas_are_found(code: int, scene: Scene) -> None:
    scene.front.says = answer(clusterinfo.build(scene.cluster.url, EVIL.pem + REAL.pem))
    scene.cluster.says = status(code)
    found = scene.find()
    assert (found.info.ca_pem, found.info.ca_certificates) == (REAL.pem, (REAL.certificate,))
    assert "only the pinned CAs" in found.notes[0]


@pytest.mark.parametrize("code", [401, 403])
def test_where_a_known_server_tells_nobody_it_is_the_one_that_is_found(scene: Scene, code: int) -> None:
    with LyingServer(REAL.server(), status(404)) as named:
        text = clusterinfo.build(named.url, REAL.pem).replace("    server:", "    tls-server-name: other\n    server:")
        scene.front.says, scene.cluster.says = answer(text), status(code)
        environment = VirtualTime().environment()
        found = by_front(scene.front.endpoint, TOKEN, PINS, environment, servers=[scene.cluster.endpoint])
        assert (found.asked, found.info.server, found.info.tls_server_name) == (*[scene.cluster.url] * 2, None)
        assert any(named.url in note for note in found.notes)
