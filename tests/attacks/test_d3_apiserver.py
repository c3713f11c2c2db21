"""D3: what a real API server itself refuses or puts right; the controller builds on it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import Final

import pytest
from apiserver_kit import CSRS, RBAC, SIGNER, bind, condition, csr_object, encoded, grant, refusal
from catalogue import Expected, Row, Verdict, attacks
from polling import succeeds

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, map_at, text_at
from nodeattest_sandbox.client import ApiRefusal, Client
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_sandbox.fleet import create_bootstrap_token

pytestmark = pytest.mark.conformance

NUMBERS: Final = count(1)


def unique() -> str:
    return f"d3-{next(NUMBERS)}"


@dataclass(frozen=True, slots=True)
class Scene:
    """One control plane, seen by who may do all, by the holder of a bootstrap token, and by a node."""

    plane: ControlPlane
    admin: Client
    thief: Client
    node: Client

    def pending(self) -> JsonMap:
        return self.admin.create(CSRS, csr_object(unique()))

    def decided(self, kind: str) -> JsonMap:
        value = self.pending()
        value["status"] = {"conditions": [condition(kind)]}
        return self.admin.replace(f"{at(value)}/approval", value)

    def certified(self) -> JsonMap:
        path = at(self.decided("Approved"))
        certificate = encoded(self.plane.ca_certificate.read_bytes())
        return self.admin.patch(f"{path}/status", {"status": {"certificate": certificate}})

    def bearer(self, token: str) -> Client:
        return self.plane.client(self.plane.token_kubeconfig(token))

    def limited(self, resource: str) -> Client:
        """Make a user who may update the subresource and holds no verb on any signer."""
        name = unique()
        grant(self.admin, name, "User", name, ("update", "certificates.k8s.io", resource))
        return self.plane.client(self.plane.client_kubeconfig(name))


def at(value: JsonMap) -> str:
    return f"{CSRS}/{text_at(value, 'metadata', 'name')}"


def token_of(admin: Client, **options: object) -> str:
    token = f"d3{next(NUMBERS):04d}.0123456789abcdef"
    return create_bootstrap_token(admin, token, **options)  # pyright: ignore[reportArgumentType] - the tests name real options


@pytest.fixture(scope="module")
def scene(real_control_plane: ControlPlane) -> Generator[Scene]:
    control_plane = real_control_plane
    admin = control_plane.client()
    name = unique()
    bind(admin, name, "system:node-bootstrapper", "Group", "system:bootstrappers")
    token = control_plane.await_token(token_of(admin))
    thief = control_plane.client(control_plane.token_kubeconfig(token))
    succeeds(lambda: thief.create(CSRS, csr_object(unique())))
    node = control_plane.client(control_plane.client_kubeconfig("system:node:thief", ["system:nodes"]))
    admin.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "victim"}})
    yield Scene(control_plane, admin, thief, node)
    admin.delete(f"{RBAC}/clusterrolebindings/{name}")


Attempt = Callable[[Scene], object]


def asking(**spec: JsonValue) -> Attempt:
    """File a request of this spec, as one who may file any."""

    def attempt(scene: Scene) -> object:
        body = csr_object(unique())
        map_at(body, "spec").update(spec)
        return scene.admin.create(CSRS, body)

    return attempt


def fat(scene: Scene) -> object:
    body = csr_object(unique())
    map_at(body, "metadata")["annotations"] = {"x": "y" * 300 * 1024}
    return scene.thief.create(CSRS, body)


def somebody_else(scene: Scene) -> object:
    stored = scene.thief.create(
        CSRS, csr_object(unique(), username="system:node:victim", uid="u", groups=["system:masters"])
    )
    assert text_at(stored, "spec", "username").startswith("system:bootstrap:")
    assert "system:masters" not in str(map_at(stored, "spec")["groups"])
    return stored


def born_certified(scene: Scene) -> object:
    body = csr_object(unique())
    body["status"] = {"conditions": [condition("Approved")], "certificate": encoded(b"x")}
    assert scene.thief.create(CSRS, body)["status"] == {}
    return body


def by_thief(subresource: str, change: JsonMap) -> Attempt:
    return lambda scene: scene.thief.patch(f"{at(scene.pending())}{subresource}", change)


def creating_a_node(scene: Scene) -> object:
    body: JsonMap = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": unique()}}
    return scene.thief.create("/api/v1/nodes", body)


def wrong_secret(scene: Scene) -> object:
    token = scene.plane.await_token(token_of(scene.admin))
    return scene.bearer(token[:-1] + "0").create(CSRS, csr_object(unique()))


def expired(scene: Scene) -> object:
    token = token_of(scene.admin, expiration=datetime.now(UTC) - timedelta(hours=1))
    scene.plane.await_token(token_of(scene.admin))  # by now the server knows of the earlier one, too
    return scene.bearer(token).create(CSRS, csr_object(unique()))


def for_signing_only(scene: Scene) -> object:
    token = token_of(scene.admin, authentication=False)
    scene.plane.await_token(token_of(scene.admin))
    return scene.bearer(token).create(CSRS, csr_object(unique()))


APPROVED: Final[JsonMap] = {"status": {"conditions": [condition("Approved")]}}


def stale(scene: Scene) -> object:
    value = scene.pending()
    scene.admin.patch(at(value), {"metadata": {"labels": {"changed": "since"}}})
    return scene.admin.replace(f"{at(value)}/approval", {**value, **APPROVED})


def two_faced(scene: Scene) -> object:
    value = scene.pending()
    value["status"] = {"conditions": [condition("Approved"), condition("Denied")]}
    return scene.admin.replace(f"{at(value)}/approval", value)


def taken_back(scene: Scene) -> object:
    value = scene.decided("Denied")
    return scene.admin.replace(f"{at(value)}/approval", {**value, "status": {}})


def certified_again(scene: Scene) -> object:
    certificate = scene.plane.ca_certificate.read_bytes()
    other: JsonMap = {"status": {"certificate": encoded(certificate + certificate)}}
    return scene.admin.patch(f"{at(scene.certified())}/status", other)


def without_the_verb(scene: Scene, verb: str) -> object:
    subresource, kind = ("approval", "Approved") if verb == "approve" else ("status", "Failed")
    client = scene.limited(f"certificatesigningrequests/{subresource}")
    value = scene.pending()
    value["status"] = {"conditions": [condition(kind)]}

    def write() -> ApiRefusal:
        refused = refusal(lambda: client.replace(f"{at(value)}/{subresource}", value))
        assert f"{verb} requests with signerName" in str(refused)  # until then the role is not known yet
        return refused

    raise succeeds(write)


ATTEMPTS: Final[Mapping[str, Attempt]] = {
    "D3-40": asking(signerName="cluster-x-k8s-io/kubelet-serving-tpm"),
    "D3-41": asking(signerName="cluster.x-k8s.io"),
    "D3-42": asking(signerName="cluster.x-k8s.io/kubelet/tpm"),
    "D3-43": asking(signerName="cluster.x-k8s.io/kubelet-TPM"),
    "D3-44": asking(signerName="kubernetes.io/legacy-unknown"),
    "D3-45": asking(signerName=""),
    "D3-46": asking(usages=["client auth", "client auth"]),
    "D3-47": asking(usages=["fishing"]),
    "D3-48": asking(usages=[]),
    "D3-49": lambda s: s.thief.create(CSRS, csr_object(text_at(s.pending(), "metadata", "name"))),
    "D3-50": fat,
    "D3-51": somebody_else,
    "D3-52": born_certified,
    "D3-53": by_thief("", {"metadata": {"annotations": {"verified": "true"}}}),
    "D3-54": by_thief("/approval", APPROVED),
    "D3-55": by_thief("/status", {"status": {"certificate": encoded(b"x")}}),
    "D3-56": lambda scene: scene.thief.delete(at(scene.pending())),
    "D3-57": lambda scene: scene.thief.list("/api/v1/namespaces/kube-system/secrets"),
    "D3-58": creating_a_node,
    "D3-59": lambda scene: scene.thief.send(
        "GET", "/api/v1/namespaces/kube-system/secrets", headers={"Impersonate-User": "admin"}
    ),
    "D3-60": lambda s: bind(s.thief, unique(), "cluster-admin", "User", "me"),
    "D3-61": wrong_secret,
    "D3-62": expired,
    "D3-63": for_signing_only,
    "D3-64": lambda s: s.node.patch(f"{at(s.node.create(CSRS, csr_object(unique())))}/approval", APPROVED),
    "D3-65": lambda s: s.node.patch("/api/v1/nodes/victim/status", {"status": {"phase": "Running"}}),
    "D3-66": stale,
    "D3-67": two_faced,
    "D3-68": taken_back,
    "D3-69": certified_again,
    "D3-70": lambda scene: scene.admin.patch(
        f"{at(scene.decided('Approved'))}/status", {"status": {"certificate": encoded(b"x")}}
    ),
    "D3-71": partial(without_the_verb, verb="approve"),
    "D3-72": partial(without_the_verb, verb="sign"),
}


def outcome(action: Callable[[], object]) -> Expected:
    try:
        action()
    except ApiRefusal as refused:
        return Expected(Verdict.DENY, refused.reason)
    return Expected(Verdict.ACCEPT, "")


def test_the_request_that_the_attacks_spoil_is_stored(scene: Scene) -> None:
    assert text_at(scene.thief.create(CSRS, csr_object(unique())), "spec", "signerName") == SIGNER


@pytest.mark.parametrize(("row", "attempt"), attacks(ATTEMPTS))
def test_the_api_server_answers_as_the_controller_relies_on(scene: Scene, row: Row, attempt: Attempt) -> None:
    assert outcome(lambda: attempt(scene)) == row.expected
