"""Discovery by a front: which answers are believed, what the front gets to see, and what the cluster must bear out."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from lying_servers import CLUSTER_INFO, QUIET, Ca, LyingServer, Reply, VirtualTime, config_map, status

from nodeattest_discovery import clusterinfo, jws, jwt
from nodeattest_discovery.node.by_token import by_front
from nodeattest_discovery.node.client import Found
from nodeattest_discovery.pins import CaPin
from nodeattest_discovery.token import BootstrapToken
from nodeattest_providers.errors import Denied, Reason, Unavailable

TOKEN = BootstrapToken("abcdef", "0123456789abcdef")
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
def standing(certificate: bytes | None = None) -> Generator[Scene]:
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
    with standing() as made:
        yield made


def answer(text: str, token: BootstrapToken = TOKEN, **changes: object) -> Reply:
    return sign(config_map({"kubeconfig": text}, **changes).body, token)


def sign(body: bytes, token: BootstrapToken = TOKEN) -> Reply:
    return Reply(body=body, headers={"X-Kubernetes-JWS": jws.sign(body, token)})


def raw(body: bytes, *headers: str, first: str = "HTTP/1.1 200 OK") -> Reply:
    lines = [first, f"Content-Length: {len(body)}", *headers, "", ""]
    return Reply(raw="\r\n".join(lines).encode() + body)


def test_a_signed_answer_that_the_cluster_bears_out_is_found(scene: Scene) -> None:
    found = scene.find()
    assert found == Found(kubeconfig=scene.text, info=found.info, ca_pem=REAL.pem, asked=scene.cluster.url)
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


BODY = config_map({"kubeconfig": clusterinfo.build("https://10.0.0.1:6443", REAL.pem)}).body
OTHER = BootstrapToken("abcdef", "fedcba9876543210")
WRONG, UNSIGNED = Reason.CLUSTER_INFO_SIGNATURE_INVALID, Reason.CLUSTER_INFO_UNSIGNED
LATER, SHAPE = Reason.API_UNAVAILABLE, Reason.CLUSTER_INFO_MALFORMED


@pytest.mark.parametrize(
    ("reply", "kind", "reason"),
    [
        pytest.param(status(401), Unavailable, LATER, id="401"),
        pytest.param(status(503), Unavailable, LATER, id="503"),
        pytest.param(Reply(raw=b"hello"), Unavailable, LATER, id="no HTTP"),
        pytest.param(sign(BODY + b" " * (1 << 20)), Unavailable, LATER, id="more than 1 MiB"),
        pytest.param(raw(BODY[:-9] + b"", f"X-Kubernetes-JWS: {jws.sign(BODY, TOKEN)}"), Denied, WRONG, id="cut"),
        pytest.param(Reply(body=BODY), Unavailable, UNSIGNED, id="unsigned"),
        pytest.param(sign(BODY, OTHER), Denied, WRONG, id="another secret"),
        pytest.param(sign(BODY.replace(b"ConfigMap", b"Secret")), Denied, SHAPE, id="another kind"),
        pytest.param(sign(b"{}"), Denied, SHAPE, id="no object"),
        pytest.param(answer(""), Denied, SHAPE, id="no kubeconfig"),
        pytest.param(
            answer(clusterinfo.build("https://10.0.0.1", EVIL.pem)), Denied, Reason.CA_NOT_PINNED, id="unpinned"
        ),
    ],
)
def test_an_answer_with_one_thing_spoilt_is_not_believed(
    reply: Reply, kind: type[Exception], reason: Reason, scene: Scene
) -> None:
    scene.front.says = reply
    assert scene.reason() == (kind, reason)
    assert not scene.cluster.seen


def test_credentials_in_the_kubeconfig_are_refused(scene: Scene) -> None:
    scene.front.says = answer(scene.text.replace("users: null", "users: [{name: a, user: {token: b}}]"))
    assert scene.reason() == (Denied, SHAPE)


@pytest.mark.parametrize(
    ("reply", "kind", "reason"),
    [
        (config_map({"kubeconfig": "# another\n"}), Denied, Reason.CLUSTER_INFO_CHANGED),
        (config_map({}), Denied, Reason.CLUSTER_INFO_CHANGED),
        (status(404), Unavailable, LATER),
        (status(500), Unavailable, LATER),
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
    assert (found.ca_pem, found.info.ca_certificates) == (REAL.pem, (REAL.certificate,))
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
