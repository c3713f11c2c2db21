"""The webhook over real TLS: whatever is sent to it, and whatever its API server does, it answers what it must."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from bootstrap_config_kit import Versioned, agent, alone, answer_of, config, control_plane, handled, patched, review
from front_kit import LOOPBACK, Answer, Authority, ask
from polling import until
from virtual import advance, run_virtually

from nodeattest_controller import manifests
from nodeattest_controller.controllers.bootstrap_config.admission_review import MAX_BODY
from nodeattest_controller.controllers.bootstrap_config.config_reviewer import PATH
from nodeattest_controller.controllers.bootstrap_config.facts import FactReader, RenderFacts
from nodeattest_controller.controllers.bootstrap_config.handler import (
    MAX_HELD,
    MAX_REVIEWS,
    MAX_WAIT,
    AdmissionHandler,
)
from nodeattest_controller.controllers.bootstrap_config.refusal_reporter import RefusalReporter
from nodeattest_controller.controllers.bootstrap_config.server import FileCertificate, unauthenticated_limits
from nodeattest_controller.controllers.bootstrap_config.subject import Subject
from nodeattest_controller.metrics import Metrics
from nodeattest_discovery.front.service import FrontLimits
from nodeattest_kube.client import ApiClient
from nodeattest_kube.events import EventRecorder
from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.values import JsonObject
from nodeattest_sandbox.control_plane import ControlPlane, start_sandbox
from nodeattest_sandbox.definitions import install_cluster_api, install_definitions
from nodeattest_serving.bounded_server import BindAddress, SettingsError
from nodeattest_serving.listener import Listener
from nodeattest_serving.replies import Reply

CLUSTERS = "/apis/cluster.x-k8s.io/v1beta2/namespaces/default/clusters"
POLICIES = "/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/default/nodeattestationpolicies"
JSON = "application/json"
SMALL = json.dumps(review(config())).encode()
_CONNECTIONS = 64
"""Of one address."""


def now() -> datetime:
    """The test CA's certificates are good from their making."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Webhook:
    """One that runs."""

    port: int
    authority: Authority
    metrics: Metrics
    client: ApiClient
    reporter: RefusalReporter
    handler: AdmissionHandler

    async def send(self, request: bytes, client: tuple[Path, Path] | None = None) -> Answer:
        return await ask(self.port, request, self.authority, client)

    async def ask(self, document: JsonObject) -> JsonObject:
        """POST a review as kube-apiserver does, and give the response."""
        answer = await self.send(post(json.dumps(document).encode()))
        assert answer.status == 200, answer.body
        response = answer_of(answer.body)
        assert response["uid"] == text(document, "request", "uid")
        return response


def post(
    body: bytes, path: str = f"{PATH}?timeout=5s", method: str = "POST", kind: str = JSON, more: str = ""
) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: webhook\r\nContent-Type: {kind}\r\n{more}"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with start_sandbox(tmp_path_factory.mktemp("admission"), name="management") as running:
        client = running.client()
        install_cluster_api(client)
        install_definitions(client, manifests.crds())  # pyright: ignore[reportArgumentType] - the sandbox's own JSON type
        for name, env in (("prod", "prod"), ("other", "dev"), ("twice", "twice")):
            client.create(CLUSTERS, {"metadata": {"name": name, "labels": {"env": env}}, "spec": {}})
        for name, env in (("prod", "prod"), ("one", "twice"), ("two", "twice")):
            spec = {"clusterSelector": {"matchLabels": {"env": env}}, "authorizedAttestors": ["tpm"]}
            kind = {"apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "NodeAttestationPolicy"}
            client.create(POLICIES, {**kind, "metadata": {"name": name}, "spec": spec})  # pyright: ignore[reportArgumentType] - the same
        yield running


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
async def webhook(plane: ControlPlane, authority: Authority, tmp_path: Path) -> AsyncGenerator[Webhook]:
    """One whose callers are verified elsewhere."""
    async with serving(plane, authority, tmp_path, verifies_clients=True) as made:
        yield made


@pytest.fixture
async def hasty(plane: ControlPlane, authority: Authority, tmp_path: Path) -> AsyncGenerator[Webhook]:
    """The same, which waits for nothing longer than two seconds."""
    async with serving(plane, authority, tmp_path, verifies_clients=True, max_wait=2.0) as made:
        yield made


@asynccontextmanager
async def serving(
    plane: ControlPlane,
    authority: Authority,
    directory: Path,
    *,
    verifies_clients: bool = False,
    client_ca: Path | None = None,
    client_names: tuple[str, ...] = (),
    max_wait: float = 10.0,
) -> AsyncGenerator[Webhook]:
    certificate, key = authority.certify(directory)
    certificate.rename(directory / "tls.crt")
    key.rename(directory / "tls.key")
    context = FileCertificate(directory, client_ca, now=now).context
    metrics = Metrics()
    async with ApiClient.from_kubeconfig_file(plane.admin_kubeconfig) as client:
        events = EventRecorder(client, component="test", instance="test", now=now)
        reporter = RefusalReporter(client, events=events, now=now, clock=time.monotonic)
        service = AdmissionHandler(
            FactReader(client, namespace=None, now=now),
            Versioned(),
            metrics,
            clock=lambda: 0.0,
            reporter=reporter,
            verifies_clients=verifies_clients,
            client_names=client_names,
            max_wait=max_wait,
        )
        limits = FrontLimits(connection_seconds=20.0, connections_of_client=_CONNECTIONS)
        strangers = None if client_ca is None else unauthenticated_limits(client_names)
        listener = Listener(
            service.handle,
            BindAddress(LOOPBACK, 0),
            context,
            limits,
            unauthenticated=strangers,
        )
        await listener.start()
        yield Webhook(listener.port, authority, metrics, client, reporter, service)
        await listener.stop()


def files(whole: JsonObject, response: JsonObject) -> list[JsonObject]:
    return items(patched(whole, response), "spec", "files")


async def test_a_new_configuration_is_rendered_for_a_policys_cluster_and_for_no_other(webhook: Webhook) -> None:
    mine = config()
    assert files(mine, await webhook.ask(review(mine))) == [agent()]
    for labels in ({"cluster.x-k8s.io/cluster-name": "other"}, {"cluster.x-k8s.io/cluster-name": "gone"}, {}):
        other = config(labels=dict(labels))
        assert await webhook.ask(review(other)) == {"uid": text(review(other), "request", "uid"), "allowed": True}


@pytest.mark.parametrize(
    ("request_", "status", "words"),
    [
        (post(b"{}", path="/"), 404, f"expected {PATH}"),
        (post(b"", method="GET"), 405, "expected POST"),
        (post(b"{}", kind="text/plain"), 415, "expected Content-Type application/json"),
        (post(b""), 400, "expected a JSON object"),
        (post(json.dumps(review(config(), uid=None)).encode()), 400, "expected request.uid"),
        (post(b" " * (MAX_BODY + 1)), 413, "expected at most"),
    ],
)
async def test_what_is_no_review_is_told_so(request_: bytes, status: int, words: str, webhook: Webhook) -> None:
    answer = await webhook.send(request_)
    assert answer.status == status
    assert words in json.loads(answer.body)["message"]


async def test_while_facts_cannot_be_had_new_configuration_waits_and_updates_of_other_things_pass(
    plane: ControlPlane, hasty: Webhook
) -> None:
    plane.freeze()
    try:
        created, labelled, changed, same = await asyncio.gather(
            hasty.ask(review(config())),
            hasty.ask(review(config(), config(labels={}))),
            hasty.ask(review(config(agent(2)), config(verbosity=1))),
            hasty.ask(review(control_plane(), control_plane())),
        )
    finally:
        plane.resume()
    for response in (created, labelled, changed):
        assert response["allowed"] is False
        said = mapping(response, "status")
        assert (said["code"], said["reason"]) == (503, "ServiceUnavailable")
        assert "try again" in str(said["message"])
    assert same["allowed"] is True


async def test_a_caller_that_is_not_verified_learns_no_policys_name(
    plane: ControlPlane, authority: Authority, tmp_path: Path
) -> None:
    both = config(labels={"cluster.x-k8s.io/cluster-name": "twice"})
    async with serving(plane, authority, tmp_path, max_wait=2.0) as webhook:
        refused = await webhook.ask(review(both))
        left = await webhook.ask(review(both, both))
        plane.freeze()
        try:
            unread = await webhook.ask(review(config()))
        finally:
            plane.resume()
        in_own_object = await webhook.ask(review(config({"path": "/unfit"})))
    assert (refused["allowed"], text(refused, "status", "reason")) == (False, "PolicyInvalid")
    assert text(refused, "status", "message") == (
        "PolicyInvalid: its cluster's policy does not allow it: see the policy's status, Events of the machine's "
        "owner, and the controller's log"
    )
    assert (left["allowed"], "left without attestation" in json.dumps(left)) == (True, True)
    assert text(unread, "status", "message") == "cannot read the object's Cluster and policy; try again"
    assert "take it out" in text(in_own_object, "status", "message")
    said = json.dumps([refused, left, unread])
    assert not [word for word in ("one", "two", "clusterSelector", "127.0.0.1", "/apis/") if word in said.split()]


async def test_where_a_client_ca_is_configured_only_its_certificates_are_answered(
    plane: ControlPlane, authority: Authority, tmp_path: Path
) -> None:
    clients, others = Authority("clients"), Authority("others")
    ca = tmp_path / "clients.pem"
    ca.write_bytes(clients.pem)
    api_server = clients.certify(tmp_path / "a", "kube-apiserver", client=True)
    node = clients.certify(tmp_path / "b", "system:node:a", client=True)
    stranger = others.certify(tmp_path / "c", "kube-apiserver", client=True)
    asked = post(json.dumps(review(config())).encode())
    async with serving(
        plane,
        authority,
        tmp_path,
        verifies_clients=True,
        client_ca=ca,
        client_names=("kube-apiserver",),
    ) as webhook:
        assert answer_of((await webhook.send(asked, api_server)).body)["allowed"] is True
        unnamed = await webhook.send(asked, node)
        assert unnamed.status == 403
        assert json.loads(unnamed.body)["message"] == "expected the client certificate of an API server"
        for shown in (stranger, None):
            assert not await is_answered(webhook, asked, shown)
        ca.write_bytes(others.pem)
        await until(lambda: is_answered(webhook, asked, stranger))
        assert not await is_answered(webhook, asked, api_server)


async def is_answered(webhook: Webhook, request: bytes, client: tuple[Path, Path] | None) -> bool:
    try:
        return (await webhook.send(request, client)).status == 200
    except OSError:
        return False


async def test_what_a_review_costs_is_counted_until_its_answer_is_read(webhook: Webhook) -> None:
    body = json.dumps(review(config({"path": "/large", "content": "x" * (3 << 20)}))).encode()
    context = ssl.create_default_context(cadata=webhook.authority.pem.decode())
    for number, reads in enumerate((True, False), 1):
        small = socket.socket()
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        small.settimeout(0)
        await asyncio.get_running_loop().sock_connect(small, (LOOPBACK, webhook.port))
        reader, writer = await asyncio.open_connection(sock=small, ssl=context, server_hostname=LOOPBACK, limit=4096)
        writer.write(post(body))
        line = f'{{kind="KubeadmConfig",outcome="rendered"}} {number}.0'
        await until(lambda line=line: line in webhook.metrics.render().decode())
        assert webhook.handler.held > len(body)
        if reads:
            assert len(await reader.read(-1)) > len(body)
        writer.transport.abort()
        await until(lambda: webhook.handler.held == 0)


async def test_one_clients_large_reviews_leave_half_of_the_memory_to_others(
    plane: ControlPlane, authority: Authority, tmp_path: Path
) -> None:
    body = json.dumps(review(config({"path": "/large", "content": "x" * (3 << 20)}))).encode()
    async with serving(plane, authority, tmp_path) as webhook:
        plane.freeze()
        try:
            asked = [asyncio.create_task(webhook.send(post(body))) for _ in range(12)]
            done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            assert {(await each).status for each in done} == {503}
            assert webhook.handler.held <= MAX_HELD // 2
        finally:
            plane.resume()
        statuses = sorted([(await each).status for each in asked])
    assert statuses[0] == 200
    assert webhook.handler.held == 0


async def test_strangers_large_bodies_leave_memory_to_api_servers(webhook: Webhook) -> None:
    context = ssl.create_default_context(cadata=webhook.authority.pem.decode())
    whole = post(b" " * MAX_BODY)
    strangers: list[asyncio.StreamWriter] = []
    for number in range(30):
        address = (f"127.0.9.{number % 10 + 1}", 0)
        _, writer = await asyncio.open_connection(
            LOOPBACK, webhook.port, ssl=context, server_hostname=LOOPBACK, local_addr=address
        )
        strangers.append(writer)
        writer.write(whole[:-1])
    await until(lambda: webhook.handler.held > MAX_HELD // 2)
    assert webhook.handler.held <= MAX_HELD * 10 // 11
    large = json.dumps(review(config({"path": "/large", "content": "x" * (1 << 20)}))).encode()
    assert (await webhook.send(post(large))).status == 200
    for writer in strangers:
        writer.transport.abort()


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
            reply = await handled(handler, "192.0.2.1", SMALL, comes_after=seconds)
            assert handler.held == (0 if reply.status == 408 else len(reply.body))
            return reply, asyncio.get_running_loop().time()

    reply, when = run_virtually(when_slow(0.7 * MAX_WAIT))
    assert mapping(answer_of(reply.body), "status")["code"] == 503
    assert when == pytest.approx(MAX_WAIT)  # pyright: ignore[reportUnknownMemberType] - of virtual time
    reply, when = run_virtually(when_slow(3 * MAX_WAIT))
    assert reply.status == 408


async def test_a_client_that_sends_many_large_reviews_delays_anothers_by_one(
    plane: ControlPlane, authority: Authority, tmp_path: Path
) -> None:
    """Both at one time, of one server: only what the handler is told of their addresses differs."""
    large = json.dumps(review({**config({"path": "/x", "content": "x" * (64 << 10)}), "kind": "Pod"})).encode()
    order: list[str] = []

    async def ask_as(webhook: Webhook, client: str) -> None:
        reply = await handled(webhook.handler, client, large)
        order.append(client)
        reply.written()

    async with serving(plane, authority, tmp_path) as webhook:
        await asyncio.gather(*(ask_as(webhook, client) for client in ("stranger",) * 8 + ("api-server",)))
        assert order.index("api-server") <= 2, order
        assert webhook.handler.held == 0


def test_a_folder_without_a_certificate_is_told_at_the_start_and_an_expired_one_while_it_runs(
    tmp_path: Path, authority: Authority
) -> None:
    with pytest.raises(SettingsError, match=r"tls.crt.*: expected a certificate in PEM and its key"):
        FileCertificate(tmp_path, now=now)
    certificate, key = authority.certify(tmp_path)
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
