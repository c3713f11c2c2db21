"""The webhook over a management cluster in memory: whatever is sent, and whatever the API server does."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from bootstrap_config_kit import agent, answer_of, config, control_plane, handled, handler_of, now, patched, review
from fake_api import FakeApi
from front_kit import LOOPBACK, Answer, Authority, ask
from management_kit import CAPI, POLICIES, cluster_path, management_api
from polling import until
from virtual import advance, run_virtually

from nodeattest_controller.controllers.bootstrap_config.admission_review import MAX_BODY, cost
from nodeattest_controller.controllers.bootstrap_config.config_reviewer import PATH, FactReader, RenderFacts
from nodeattest_controller.controllers.bootstrap_config.decide import POLICY_PATH, UNLABELLED_PATH, Subject
from nodeattest_controller.controllers.bootstrap_config.server import (
    MAX_HELD,
    MAX_REVIEWS,
    MAX_WAIT,
    AdmissionHandler,
    FileCertificate,
    serve_webhook,
)
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.settings import Settings
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import Forbidden
from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_serving.bounded_server import SettingsError
from nodeattest_serving.http_server import Reply

OF_CLUSTER: dict[str, JsonValue] = {"cluster.x-k8s.io/cluster-name": "prod"}
POLICY: JsonObject = {
    "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
    "kind": "NodeAttestationPolicy",
    "metadata": {"name": "metal", "namespace": "fleet"},
    "spec": {"clusterSelector": {}, "authorizedAttestors": ["tpm"]},
}
OTHER_KIND: JsonObject = {**config({"path": "/x", "content": "x" * (64 << 10)}), "kind": "Pod"}
"""Its answer needs no read of the API server."""
REVIEW = json.dumps(review(config())).encode()


@pytest.fixture
def api() -> FakeApi:
    """A management cluster whose policies select ``prod`` once, ``twice`` twice, and ``other`` not at all."""
    made = management_api()
    for name, env in (("prod", "prod"), ("paused", "prod"), ("other", "dev"), ("twice", "twice")):
        reference: JsonObject = {"kind": "KubeadmControlPlane", "name": f"{name}-control-plane"}
        spec: JsonObject = {"controlPlaneRef": reference, "paused": name == "paused"}
        made.put(cluster_path(name), {"kind": "Cluster", "metadata": {"labels": {"env": env}}, "spec": spec})
    for name, env in (("prod", "prod"), ("one", "twice"), ("two", "twice")):
        selector: JsonObject = {"clusterSelector": {"matchLabels": {"env": env}}, "authorizedAttestors": ["tpm"]}
        made.put(f"{POLICIES}/{name}", {**POLICY, "metadata": {"name": name}, "spec": selector})
    return made


async def hang(_method: str, _path: str) -> None:
    """Answer no request."""
    await asyncio.Event().wait()


async def asked(
    handler: AdmissionHandler, whole: JsonObject, before: JsonObject | None = None, **request: JsonValue
) -> JsonObject:
    """Ask for a review as kube-apiserver does, and return the response."""
    document = review(whole, before, **request)
    reply = await handled(handler, "192.0.2.1", json.dumps(document).encode())
    assert reply.status == 200, reply.body
    response = answer_of(reply.body)
    assert response["uid"] == text(document, "request", "uid")
    return response


def is_untouched(response: JsonObject) -> bool:
    return (response["allowed"], response.keys()) == (True, {"uid", "allowed"})


async def test_a_new_configuration_is_rendered_for_a_policys_cluster_and_for_no_other(api: FakeApi) -> None:
    handler, mine = handler_of(api, verifies_clients=True), config()
    assert items(patched(mine, await asked(handler, mine)), "spec", "files") == [agent()]
    unlabelled = await asked(handler, control_plane())  # its Cluster refers to it before it has the label
    assert text(unlabelled, "patchType") == "JSONPatch"
    for cluster in ("other", "gone", "paused", "", "a/b", ".."):
        labels: dict[str, JsonValue] = {"cluster.x-k8s.io/cluster-name": cluster} if cluster else {}
        assert is_untouched(await asked(handler, config(labels=labels))), cluster
    for namespace in ("a/b", ""):
        assert is_untouched(await asked(handler, mine, namespace=namespace)), namespace


async def test_a_control_plane_is_left_as_it_is_once_it_has_a_machine(api: FakeApi) -> None:
    handler, mine = handler_of(api), control_plane(labels=OF_CLUSTER)
    assert "patch" in await asked(handler, mine, mine)
    labels: JsonObject = {**OF_CLUSTER, "cluster.x-k8s.io/control-plane": ""}
    api.put(f"{CAPI}/v1beta2/namespaces/fleet/machines/cp-0", {"kind": "Machine", "metadata": {"labels": labels}})
    assert "rollout restart" in str((await asked(handler, mine, mine))["warnings"])


async def test_a_refusal_is_reported_once_on_the_machine_set_that_exists_and_its_deployment(api: FakeApi) -> None:
    capi: JsonObject = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineSet", "name": "md-0-x"}
    deployment: JsonObject = {**capi, "kind": "MachineDeployment", "name": "md-0", "uid": "d"}
    handler = handler_of(api)

    async def reported(name: str, *, dry_run: bool = False) -> list[tuple[str, str]]:
        made = config({"path": "/conflict"})
        meta: JsonObject = {**mapping(made, "metadata"), "ownerReferences": [{**capi, "name": name}]}
        whole: JsonObject = {**made, "metadata": meta}
        assert not (await asked(handler, whole, dryRun=dry_run))["allowed"]
        await asyncio.sleep(0)
        events = [obj for path, obj in api.objects.items() if "/events/" in path]
        assert all("remove it" in text(event, "message") for event in events)
        return [(text(event, "involvedObject", "kind"), text(event, "involvedObject", "name")) for event in events]

    assert await reported("md-0-x") == []
    meta: JsonObject = {"uid": "s", "ownerReferences": [deployment]}
    api.put(f"{CAPI}/v1beta2/namespaces/fleet/machinesets/md-0-x", {**capi, "metadata": meta})
    for name in ("gone", "..", ""):
        assert await reported(name) == []
    assert await reported("md-0-x", dry_run=True) == []
    for _again in range(2):
        assert await reported("md-0-x") == [("MachineSet", "md-0-x"), ("MachineDeployment", "md-0")]
    api.fail("GET", "/machinesets/", Forbidden(403, "Forbidden", "no"))
    assert len(await reported("md-0-x")) == 2


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
    reply = await handled(handler_of(), "192.0.2.1", body, **more)  # pyright: ignore[reportArgumentType] - texts only
    assert reply.status == status
    assert words in json.loads(reply.body)["message"]


def test_while_facts_cannot_be_had_new_configuration_waits_and_updates_of_other_things_pass(api: FakeApi) -> None:
    api.on_call = hang

    async def responses() -> list[JsonObject]:
        handler = handler_of(api, verifies_clients=True)
        pairs = (
            (config(), None),
            (config(), config(labels={})),
            (config(agent(2)), config(verbosity=1)),
            (control_plane(), control_plane()),
        )
        return await asyncio.gather(*(asked(handler, *pair) for pair in pairs))

    *waiting, same = run_virtually(responses())
    for response in waiting:
        assert response["allowed"] is False
        said = mapping(response, "status")
        assert (said["code"], said["reason"]) == (503, "ServiceUnavailable")
        assert "try again" in str(said["message"])
    assert same["allowed"] is True


def test_a_caller_that_is_not_verified_learns_no_policys_name(api: FakeApi) -> None:
    both = config(labels={"cluster.x-k8s.io/cluster-name": "twice"})

    async def responses() -> list[JsonObject]:
        handler = handler_of(api)
        answered = [
            await asked(handler, both),
            await asked(handler, both, both),
            await asked(handler, config({"path": "/unfit"})),
        ]
        api.on_call = hang
        return [*answered, await asked(handler, config())]

    refused, left, in_own_object, unread = run_virtually(responses())
    assert (refused["allowed"], text(refused, "status", "reason")) == (False, "PolicyInvalid")
    assert "see the policy's status" in text(refused, "status", "message")
    assert (left["allowed"], "left without attestation" in json.dumps(left)) == (True, True)
    assert text(unread, "status", "message") == "cannot read the object's Cluster and policy; try again"
    assert "take it out" in text(in_own_object, "status", "message")
    said = json.dumps([refused, left, unread])
    assert not [word for word in ("one", "two", "clusterSelector", "/apis/") if word in said.split()]


def test_large_bodies_of_one_address_leave_memory_to_others() -> None:
    async def flood(addresses: int) -> tuple[int, int]:
        """Send thirty of the largest bodies, each without its last byte; return what is held, and another's status."""
        handler = handler_of()
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
        handler = handler_of(reader=SlowFacts)
        reply = await handled(handler, "192.0.2.1", REVIEW, seconds)
        assert handler.held == (0 if reply.status == 408 else len(reply.body))
        return reply, asyncio.get_running_loop().time()

    reply, when = run_virtually(when_slow(0.7 * MAX_WAIT))
    assert mapping(answer_of(reply.body), "status")["code"] == 503
    assert when == pytest.approx(MAX_WAIT)  # pyright: ignore[reportUnknownMemberType] - of virtual time
    reply, when = run_virtually(when_slow(3 * MAX_WAIT))
    assert reply.status == 408


def test_what_a_review_costs_is_held_until_it_is_answered_or_its_client_is_gone() -> None:
    async def held() -> tuple[int, int]:
        handler = handler_of(reader=SlowFacts)
        asking = asyncio.create_task(handled(handler, "192.0.2.1", REVIEW))
        await advance(1.0)
        while_read = handler.held
        asking.cancel()
        await asyncio.wait([asking])
        return while_read, handler.held

    assert run_virtually(held()) == (cost(REVIEW), 0)


def test_one_clients_slow_reviews_leave_half_of_the_places_to_others() -> None:
    async def when_answered() -> float:
        handler = handler_of(reader=SlowFacts)
        slow = [asyncio.create_task(handled(handler, "198.51.100.1", REVIEW)) for _ in range(MAX_REVIEWS)]
        await advance(1.0)
        await handled(handler, "192.0.2.1", json.dumps(review({**config(), "kind": "Pod"})).encode())
        answered = asyncio.get_running_loop().time()
        await asyncio.wait(slow)
        return answered

    assert run_virtually(when_answered()) == pytest.approx(1.0)  # pyright: ignore[reportUnknownMemberType] - of virtual time


async def test_a_client_that_sends_many_large_reviews_delays_anothers_by_one() -> None:
    order, handler = list[str](), handler_of()

    async def ask_as(client: str) -> None:
        reply = await handled(handler, client, json.dumps(review(OTHER_KIND)).encode())
        order.append(client)
        reply.written()

    await asyncio.gather(*map(ask_as, ("stranger",) * 8 + ("api-server",)))
    assert order.index("api-server") <= 2, order
    assert handler.held == 0


@pytest.mark.parametrize("path", [PATH, POLICY_PATH])
async def test_what_is_in_a_namespace_of_another_controller_passes(path: str, api: FakeApi) -> None:
    mistyped: JsonObject = {**POLICY, "spec": {"a": 1}}
    whole = config() if path == PATH else mistyped
    for namespace, passes in ((None, False), ("fleet", False), ("mine", True)):
        handler = handler_of(api, namespace=namespace)
        reply = await handled(handler, "192.0.2.1", json.dumps(review(whole)).encode(), path=path)
        assert is_untouched(answer_of(reply.body)) is passes


async def test_an_api_server_says_by_the_path_that_the_namespace_has_no_label() -> None:
    reply = await handled(handler_of(), "client", json.dumps(review(POLICY)).encode(), path=UNLABELLED_PATH)
    refused = answer_of(reply.body)
    assert (refused["allowed"], text(refused, "status", "reason")) == (False, "PolicyInvalid")
    assert "kubectl label namespace fleet" in text(refused, "status", "message")


# Certificates of both sides


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

    async with serve_webhook(settings, FakeApi(), Metrics()) as webhook:
        assert webhook is not None

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
