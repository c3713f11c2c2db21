"""The webhook's resources beside a sandbox: whatever is sent, and whatever the API server does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from bootstrap_config_kit import KUBECONFIG, agent, alone, answer_of, config, control_plane, handled, patched, review
from front_kit import LOOPBACK, Answer, Authority, ask
from polling import until
from virtual import advance, run_virtually

from nodeattest_controller import manifests
from nodeattest_controller.controllers.bootstrap_config.admission_review import MAX_BODY, cost
from nodeattest_controller.controllers.bootstrap_config.config_reviewer import PATH, FactReader, RenderFacts
from nodeattest_controller.controllers.bootstrap_config.decide import POLICY_PATH, UNLABELLED_PATH, Subject
from nodeattest_controller.controllers.bootstrap_config.server import (
    MAX_HELD,
    MAX_REVIEWS,
    MAX_WAIT,
    AdmissionHandler,
    FileCertificate,
    WebhookServer,
)
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.settings import Settings
from nodeattest_kube.client import ApiClient
from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_sandbox.control_plane import ControlPlane, start_sandbox
from nodeattest_sandbox.definitions import install_cluster_api, install_definitions
from nodeattest_serving.bounded_server import SettingsError
from nodeattest_serving.http_server import Reply

CLUSTERS = "/apis/cluster.x-k8s.io/v1beta2/namespaces/default/clusters"
POLICIES = "/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/default/nodeattestationpolicies"
ENFORCING: JsonObject = {
    "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
    "kind": "NodeAttestationPolicy",
    "metadata": {"name": "metal", "namespace": "default"},
    "spec": {"clusterSelector": {}, "authorizedAttestors": ["tpm"]},
}
OTHER_KIND: JsonObject = {**config({"path": "/x", "content": "x" * (64 << 10)}), "kind": "Pod"}
"""Its answer needs no read of the API server."""


def now() -> datetime:
    """The test CA's certificates are good from their making."""
    return datetime.now(UTC)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with start_sandbox(tmp_path_factory.mktemp("admission"), name="management") as running:
        client = running.client()
        install_cluster_api(client)
        install_definitions(client, manifests.crds())  # pyright: ignore[reportArgumentType] - the sandbox's own JSON type
        for name, env in (("prod", "prod"), ("paused", "prod"), ("other", "dev"), ("twice", "twice")):
            reference = {"kind": "KubeadmControlPlane", "name": f"{name}-control-plane"}
            spec = {"controlPlaneRef": reference, "paused": name == "paused"}
            client.create(CLUSTERS, {"metadata": {"name": name, "labels": {"env": env}}, "spec": spec})  # pyright: ignore[reportArgumentType] - the same
        for name, env in (("prod", "prod"), ("one", "twice"), ("two", "twice")):
            spec = {"clusterSelector": {"matchLabels": {"env": env}}, "authorizedAttestors": ["tpm"]}
            kind = {"apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "NodeAttestationPolicy"}
            client.create(POLICIES, {**kind, "metadata": {"name": name}, "spec": spec})  # pyright: ignore[reportArgumentType] - the same
        yield running


async def asked(handler: AdmissionHandler, whole: JsonObject, before: JsonObject | None = None) -> JsonObject:
    """Ask for a review as kube-apiserver does, and return the response."""
    document = review(whole, before)
    reply = await handled(handler, "192.0.2.1", json.dumps(document).encode())
    assert reply.status == 200, reply.body
    response = answer_of(reply.body)
    assert response["uid"] == text(document, "request", "uid")
    return response


async def test_a_new_configuration_is_rendered_for_a_policys_cluster_and_for_no_other(plane: ControlPlane) -> None:
    async with alone(plane=plane, verifies_clients=True) as handler:
        mine = config()
        assert items(patched(mine, await asked(handler, mine)), "spec", "files") == [agent()]
        unlabelled = await asked(handler, control_plane())  # its Cluster refers to it before it has the label
        assert text(unlabelled, "patchType") == "JSONPatch"
        for cluster in ("other", "gone", "paused", ""):
            labels: dict[str, JsonValue] = {"cluster.x-k8s.io/cluster-name": cluster} if cluster else {}
            response = await asked(handler, config(labels=labels))
            assert (response["allowed"], response.keys()) == (True, {"uid", "allowed"})


@pytest.mark.parametrize(
    ("body", "more", "status", "words"),
    [
        (b"{}", {"path": "/"}, 404, f"expected {PATH}"),
        (b"{}", {"method": "GET"}, 405, "expected POST"),
        (b"{}", {"kind": "text/plain"}, 415, "expected Content-Type application/json"),
        (b"{}", {"encoding": "gzip"}, 415, "expected Content-Type application/json"),
        (b"x", {}, 400, "expected a JSON object"),
        (b" " * (MAX_BODY + 1), {}, 413, "expected at most"),
    ],
)
async def test_what_is_no_review_is_told_so(body: bytes, more: dict[str, str], status: int, words: str) -> None:
    async with alone() as handler:
        reply = await handled(handler, "192.0.2.1", body, **more)  # pyright: ignore[reportArgumentType] - texts only
    assert reply.status == status
    assert words in json.loads(reply.body)["message"]


async def test_a_flood_of_malformed_reviews_leaves_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    async with alone() as handler:
        for number in range(30):
            await handled(handler, f"192.0.2.{number}", b"x")
    assert len(caplog.records) == 20


async def test_while_facts_cannot_be_had_new_configuration_waits_and_updates_of_other_things_pass(
    plane: ControlPlane,
) -> None:
    async with alone(plane=plane, verifies_clients=True, max_wait=2.0) as handler:
        plane.freeze()
        try:
            *waiting, same = await asyncio.gather(
                asked(handler, config()),
                asked(handler, config(), config(labels={})),
                asked(handler, config(agent(2)), config(verbosity=1)),
                asked(handler, control_plane(), control_plane()),
            )
        finally:
            plane.resume()
    for response in waiting:
        assert response["allowed"] is False
        said = mapping(response, "status")
        assert (said["code"], said["reason"]) == (503, "ServiceUnavailable")
        assert "try again" in str(said["message"])
    assert same["allowed"] is True


async def test_a_caller_that_is_not_verified_learns_no_policys_name(plane: ControlPlane) -> None:
    both = config(labels={"cluster.x-k8s.io/cluster-name": "twice"})
    async with alone(plane=plane, max_wait=2.0) as handler:
        refused = await asked(handler, both)
        left = await asked(handler, both, both)
        in_own_object = await asked(handler, config({"path": "/unfit"}))
        plane.freeze()
        try:
            unread = await asked(handler, config())
        finally:
            plane.resume()
    assert (refused["allowed"], text(refused, "status", "reason")) == (False, "PolicyInvalid")
    assert "see the policy's status" in text(refused, "status", "message")
    assert (left["allowed"], "left without attestation" in json.dumps(left)) == (True, True)
    assert text(unread, "status", "message") == "cannot read the object's Cluster and policy; try again"
    assert "take it out" in text(in_own_object, "status", "message")
    said = json.dumps([refused, left, unread])
    assert not [word for word in ("one", "two", "clusterSelector", "127.0.0.1", "/apis/") if word in said.split()]


def test_large_bodies_of_one_address_leave_memory_to_others() -> None:
    async def flood(addresses: int) -> tuple[int, int]:
        """Send thirty of the largest bodies, each without its last byte; return what is held, and another's status."""
        async with alone() as handler:
            slow = [
                asyncio.create_task(handled(handler, f"198.51.100.{number % addresses}", b" " * MAX_BODY, 2.0))
                for number in range(30)
            ]
            await advance(1.0)
            held = handler.held
            reply = await handled(handler, "192.0.2.1", json.dumps(review(OTHER_KIND)).encode())
            reply.written()
            assert {(await each).status for each in slow} == {400, 503}
            assert handler.held == 0
            return held, reply.status

    for addresses in (1, 10):
        held, status = run_virtually(flood(addresses))
        assert MAX_HELD // 3 < held <= MAX_HELD * addresses // (addresses + 1)
        assert status == 200


class SlowFacts(FactReader):
    """Takes two fifths of a review's time for the first reviews, and never ends for others."""

    def __init__(self, client: ApiClient) -> None:
        super().__init__(client, namespace=None, now=now)
        self._left = MAX_REVIEWS

    async def of(self, subject: Subject) -> RenderFacts | None:
        self._left -= 1
        await advance(0.4 * MAX_WAIT if self._left >= 0 else 100 * MAX_WAIT)
        return None


def test_the_time_that_a_body_takes_is_taken_from_the_rest_and_a_late_one_is_no_review() -> None:
    async def when_slow(seconds: float) -> tuple[Reply, float]:
        async with alone(SlowFacts) as handler:
            reply = await handled(handler, "192.0.2.1", json.dumps(review(config())).encode(), seconds)
            assert handler.held == (0 if reply.status == 408 else len(reply.body))
            return reply, asyncio.get_running_loop().time()

    reply, when = run_virtually(when_slow(0.7 * MAX_WAIT))
    assert mapping(answer_of(reply.body), "status")["code"] == 503
    assert when == pytest.approx(MAX_WAIT)  # pyright: ignore[reportUnknownMemberType] - of virtual time
    reply, when = run_virtually(when_slow(3 * MAX_WAIT))
    assert reply.status == 408


def test_what_a_review_costs_is_held_until_it_is_answered_or_its_client_is_gone() -> None:
    body = json.dumps(review(config())).encode()

    async def held() -> tuple[int, int]:
        async with alone(SlowFacts) as handler:
            asking = asyncio.create_task(handled(handler, "192.0.2.1", body))
            await advance(1.0)
            while_read = handler.held
            asking.cancel()
            await asyncio.wait([asking])
            return while_read, handler.held

    assert run_virtually(held()) == (cost(body), 0)


def test_one_clients_slow_reviews_leave_half_of_the_places_to_others() -> None:
    async def when_answered() -> float:
        async with alone(SlowFacts) as handler:
            slow = [
                asyncio.create_task(handled(handler, "198.51.100.1", json.dumps(review(config())).encode()))
                for _ in range(MAX_REVIEWS)
            ]
            await advance(1.0)
            await handled(handler, "192.0.2.1", json.dumps(review({**config(), "kind": "Pod"})).encode())
            answered = asyncio.get_running_loop().time()
            await asyncio.wait(slow)
            return answered

    assert run_virtually(when_answered()) == pytest.approx(1.0)  # pyright: ignore[reportUnknownMemberType] - of virtual time


@pytest.mark.parametrize("path", [PATH, POLICY_PATH])
async def test_what_is_in_a_namespace_of_another_controller_passes(path: str, plane: ControlPlane) -> None:
    invalid: JsonObject = {"apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "NodeAttestationPolicy"}
    invalid |= {"metadata": {"name": "p", "namespace": "default"}, "spec": {"a": 1}}
    whole = config() if path == PATH else invalid
    for namespace, passes in ((None, False), ("default", False), ("mine", True)):
        async with alone(
            lambda client, namespace=namespace: FactReader(client, namespace=namespace, now=now), plane=plane
        ) as handler:
            reply = await handled(handler, "192.0.2.1", json.dumps(review(whole)).encode(), path=path)
        assert (answer_of(reply.body).keys() == {"uid", "allowed"}) is passes


async def test_a_client_that_sends_many_large_reviews_delays_anothers_by_one() -> None:
    order: list[str] = []
    async with alone() as handler:

        async def ask_as(client: str) -> None:
            reply = await handled(handler, client, json.dumps(review(OTHER_KIND)).encode())
            order.append(client)
            reply.written()

        await asyncio.gather(*map(ask_as, ("stranger",) * 8 + ("api-server",)))
        assert order.index("api-server") <= 2, order
        assert handler.held == 0


async def test_where_a_client_ca_is_configured_only_its_certificates_are_answered(tmp_path: Path) -> None:
    server, clients, others = Authority(), Authority("clients"), Authority("others")
    for file, name in zip(server.certify(tmp_path), ("tls.crt", "tls.key"), strict=True):
        file.rename(tmp_path / name)
    ca = tmp_path / "clients.pem"
    ca.write_bytes(clients.pem)
    api_server = clients.certify(tmp_path / "a", "kube-apiserver", client=True)
    node = clients.certify(tmp_path / "b", "system:node:a", client=True)
    stranger = others.certify(tmp_path / "c", "kube-apiserver", client=True)
    settings = Settings(
        identity="a",
        webhook_bind_address=f"{LOOPBACK}:0",
        webhook_cert_dir=str(tmp_path),
        webhook_client_ca_file=ca,
        webhook_client_names=("kube-apiserver",),
    )
    body = json.dumps(review(OTHER_KIND)).encode()
    head = f"POST {PATH}?timeout=5s HTTP/1.1\r\nHost: w\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async with (
        ApiClient.from_kubeconfig(KUBECONFIG) as client,
        WebhookServer(settings, client, Metrics()) as webhook,
    ):

        async def answer(certificate: tuple[Path, Path] | None) -> Answer:
            return await ask(webhook.port, request, server, certificate)

        async def is_answered(certificate: tuple[Path, Path] | None) -> bool:
            try:
                return (await answer(certificate)).status == 200
            except OSError:
                return False

        assert answer_of((await answer(api_server)).body)["allowed"] is True
        unnamed = await answer(node)
        assert unnamed.status == 403
        assert json.loads(unnamed.body)["message"] == "expected the client certificate of an API server"
        assert not await is_answered(stranger)
        assert not await is_answered(None)
        ca.write_bytes(others.pem)
        await until(lambda: is_answered(stranger))
        assert not await is_answered(api_server)


def test_a_folder_without_a_certificate_is_told_at_the_start_and_an_expired_one_while_it_runs(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"tls.crt.*: expected a certificate in PEM and its key"):
        FileCertificate(tmp_path, now=now)
    certificate, key = Authority().certify(tmp_path)
    certificate.rename(tmp_path / "tls.crt")
    key.rename(tmp_path / "tls.key")
    held = FileCertificate(tmp_path, now=now)
    assert held.trouble() is None
    late = FileCertificate(tmp_path, now=lambda: now().replace(year=now().year + 30, day=1))
    assert "check why its issuer does not renew it" in (late.trouble() or "")
    (tmp_path / "tls.crt").write_bytes(b"no certificate")
    assert "holds no certificate" in (held.trouble() or "")
    (tmp_path / "tls.crt").unlink()
    assert "cannot be read" in (held.trouble() or "")


async def test_an_api_server_says_by_the_path_that_the_namespace_has_no_label() -> None:
    async with alone() as handler:
        asked = json.dumps(review(ENFORCING)).encode()
        reply = await handled(handler, "client", asked, path=UNLABELLED_PATH)
    refused = answer_of(reply.body)
    assert (refused["allowed"], text(refused, "status", "reason")) == (False, "PolicyInvalid")
    assert "kubectl label namespace default" in text(refused, "status", "message")
