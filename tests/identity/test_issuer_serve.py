"""A server of issuers' documents: HTTP, files that change, API servers that err and lie, and a fleet of clusters."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import threading
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp.test_utils import make_mocked_request
from issuer_kit import ask_until, new_key, pem, serving
from issuer_server import IssuerServer, Reply, api_server, jwks_of, kubeconfig
from polling import until
from proxy_kit import LOOPBACK, exchange, request

from nodeattest_identity.issuer.documents import CONFIGURATION_PATH, JWKS_PATH, JWKS_TYPE, Documents, documents
from nodeattest_identity.issuer.keys import VerifyingKey
from nodeattest_identity.serve import clusters as of_clusters
from nodeattest_identity.serve.app import KeysSource
from nodeattest_identity.serve.clusters import Clusters, KubeconfigSecretsSource
from nodeattest_identity.serve.service import IssuerPaths, Metrics, RouteTable, issuer_paths
from nodeattest_identity.serve.sources import KeyFileReader, Poller, SourceError, read_api_server
from nodeattest_kube.addresses import AddressRules, parse_network
from nodeattest_kube.client import ApiClient
from nodeattest_parsing.values import JsonObject
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_serving.http_server import Reply as Answered
from nodeattest_serving.program import Ports

ISSUER = "https://issuer.example/c"
PLACE = issuer_paths(ISSUER)
ONE, OTHER = new_key(), new_key()


# HTTP, as relying parties, caches and browsers speak it


def table(*issuers: str, jwks_uri: str | None = None) -> RouteTable:
    routes = RouteTable(max_age=3600, secure=False)
    for issuer in issuers:
        paths = issuer_paths(issuer, jwks_uri)
        routes.open(paths)
        routes.publish(paths, documents(issuer, paths.jwks_uri, [ONE, OTHER]))
    return routes


def ask(routes: RouteTable, path: str, method: str = "GET", **headers: str) -> Answered:
    return routes.answer(make_mocked_request(method, path, {key.replace("_", "-"): headers[key] for key in headers}))


def test_each_issuer_has_its_documents_under_its_own_path() -> None:
    issuers = ("https://issuer.example", "https://issuer.example/clusters/a", "https://issuer.example/old/")
    routes = table(*issuers)
    for issuer in issuers:
        path = issuer.removeprefix("https://issuer.example").removesuffix("/")
        made = documents(issuer, f"https://issuer.example{path}/openid/v1/jwks", [ONE, OTHER])
        assert ask(routes, f"{path}/.well-known/openid-configuration").body == made.configuration
        assert ask(routes, f"{path}/openid/v1/jwks").body == made.jwks


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/c/openid/v1/jwks/", {}),
        ("/c/openid/v1/jwks?format=yaml", {}),
        ("/c/openid/v1/jwks/?a=/../b", {"Accept": "text/html;q=0"}),
        ("/c/openid/v1/jwks", {"Accept": "application/json", "Host": "elsewhere.example", "Authorization": "Bearer x"}),
    ],
)
def test_a_slash_a_query_accept_and_credentials_change_nothing(path: str, headers: dict[str, str]) -> None:
    routes = table(ISSUER)
    assert ask(routes, path, **headers) == ask(routes, "/c/openid/v1/jwks")


def test_a_document_that_the_client_has_is_not_sent_again() -> None:
    routes = table(ISSUER)
    document = ask(routes, PLACE.jwks_path)
    etag = document.headers["ETag"]
    assert document.headers["Cache-Control"] == "public, max-age=3600"
    for line in (etag, f"W/{etag}", "*", f'"old", {etag}'):
        answer = ask(routes, PLACE.jwks_path, If_None_Match=line)
        assert (answer.status, answer.body, answer.headers) == (304, b"", document.headers)
    other = ask(routes, PLACE.configuration_path).headers["ETag"]
    assert ask(routes, PLACE.jwks_path, If_None_Match=other).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/", "/c", "/c/.well-known", "/c/.well-known/openid-configuration/x", "/c/openid/v1/jwks//",
        "//c/openid/v1/jwks", "/c/openid/v1/jwks/keys", "/c/openid/v1/%6awks", "/c/openid/v1/../v1/jwks",
        "/C/openid/v1/jwks", "/healthz", "/metrics", "http://issuer.example/c/openid/v1/jwks", "/c/openid/v1/jwks#x",
    ],
)  # fmt: skip
def test_every_other_path_is_not_found(path: str) -> None:
    assert ask(table(ISSUER), path).status == 404


@pytest.mark.parametrize(
    ("issuers", "jwks_uri"),
    [
        (("https://a.example", "https://b.example"), None),
        (("https://a.example/x", "https://a.example/x/"), None),
        (("https://a.example",), "https://a.example/.well-known/openid-configuration"),
        (("https://a.example/x", "https://a.example/y"), "https://a.example/y/openid/v1/jwks"),
    ],
)
def test_two_documents_under_one_path_are_an_error(issuers: tuple[str, ...], jwks_uri: str | None) -> None:
    with pytest.raises(ValueError, match="under"):
        table(*issuers, jwks_uri=jwks_uri)


@pytest.mark.parametrize("method", ["POST", "DELETE", "OPTIONS"])
def test_other_methods_are_told_which_there_are(method: str) -> None:
    answer = ask(table(ISSUER), PLACE.jwks_path, method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


# Files


async def test_files_that_change_are_read_when_they_stay_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "keys.pem"
    file.write_bytes(pem(ONE))
    keys = KeyFileReader([file])
    assert await keys.read() == (ONE,)
    file.write_bytes(pem(ONE, OTHER)[: len(pem(ONE))])  # the writer is not done
    os.utime(file, ns=(1, 1))
    assert await keys.read() is None
    file.write_bytes(pem(ONE, OTHER))
    os.utime(file, ns=(2, 2))
    assert await keys.read() is None
    assert await keys.read() == (ONE, OTHER)


@pytest.mark.parametrize("content", [b"", b"rubbish", pem(ONE)[:-10], pem(ONE) + pem(OTHER)[:-30]])
async def test_files_that_cannot_be_used_are_errors_and_are_tried_again(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "keys.pem"
    file.write_bytes(content)
    keys = KeyFileReader([file])
    for _ in range(2):
        with pytest.raises(SourceError, match=r"keys\.pem: expected"):
            await keys.read()
    file.write_bytes(pem(OTHER))
    os.utime(file, ns=(1, 1))
    assert await keys.read() is None
    assert await keys.read() == (OTHER,)


async def test_a_pipe_in_place_of_a_key_file_is_an_error_and_blocks_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "keys.pem")
    with pytest.raises(SourceError, match=r"keys\.pem: expected a file"):
        await KeyFileReader([tmp_path / "keys.pem"]).read()


# API servers


def private_set() -> bytes:
    (member,) = json.loads(jwks_of(ISSUER, [ONE]))["keys"]
    return json.dumps({"keys": [{**member, "d": "AAAA"}]}).encode()


FOREIGN, SLASH = (documents(each, ISSUER, [ONE]).configuration for each in ("https://issuer.example/d", f"{ISSUER}/"))
SPOILT: dict[str, tuple[str, Reply, str, str]] = {
    "another's issuer": (CONFIGURATION_PATH, Reply(FOREIGN), "other-issuer", "as its first"),
    "a slash more": (CONFIGURATION_PATH, Reply(SLASH), "other-issuer", "first"),
    "no configuration": (CONFIGURATION_PATH, Reply(b"<html>"), "unusable", "OpenID configuration in JSON"),
    "a configuration without end": (CONFIGURATION_PATH, Reply(b"{" + b" " * 70_000), "refused", "larger than"),
    "an empty set": (JWKS_PATH, Reply(b'{"keys":[]}'), "unusable", "1 to"),
    "a private member": (JWKS_PATH, Reply(private_set()), "unusable", "private or symmetric"),
    "a set without end": (JWKS_PATH, Reply(b'{"keys":[' + b" " * (1 << 20)), "refused", "larger than"),
    "no right": (JWKS_PATH, Reply(status=403), "forbidden", "manifests/workload-issuer"),
    "no documents": (CONFIGURATION_PATH, Reply(status=404), "absent", "all RSA, P-256, P-384 or P-521"),
    "trouble": (CONFIGURATION_PATH, Reply(status=500), "refused", "500"),
    "a redirect": (CONFIGURATION_PATH, Reply(status=302), "refused", "302"),
}


@pytest.mark.parametrize("name", SPOILT)
async def test_what_else_an_api_server_may_answer_is_an_error_that_says_what_helps(name: str, tmp_path: Path) -> None:
    path, reply, outcome, said = SPOILT[name]
    with api_server(tmp_path, ISSUER, [ONE]) as there:
        async with ApiClient.from_kubeconfig(there.kubeconfig) as client:
            assert await read_api_server(client, ISSUER) == (ONE,)
            assert there.accepted == {CONFIGURATION_PATH: "application/json", JWKS_PATH: JWKS_TYPE}
            there.answers[path] = reply
            with pytest.raises(SourceError, match=said) as caught:
                await read_api_server(client, ISSUER)
    assert caught.value.outcome == outcome
    assert "secret-token" not in str(caught.value)


async def test_what_was_read_last_is_served_while_the_source_is_away_and_not_for_ever() -> None:
    gives: list[tuple[VerifyingKey, ...] | SourceError] = [(ONE,)]
    routes, time = RouteTable(max_age=60, secure=False), [1000.0]
    routes.open(PLACE)

    async def read() -> tuple[VerifyingKey, ...]:
        if isinstance(gives[0], SourceError):
            raise gives[0]
        return gives[0]

    poller = Poller(
        [PLACE], read, routes=routes, metrics=Metrics(), period=60.0, max_stale=3600.0, clock=lambda: time[0]
    )
    assert await poller.poll()
    last = ask(routes, PLACE.jwks_path)
    gives[0] = SourceError("unreachable", "away")
    time[0] += 3600
    assert not await poller.poll()
    assert (ask(routes, PLACE.jwks_path), poller.last_error) == (last, "away")
    time[0] += 1
    assert not await poller.poll()
    assert (ask(routes, PLACE.jwks_path).status, poller.unready_reason()) == (503, "away")
    gives[0] = (ONE, OTHER)
    assert await poller.poll()
    assert ask(routes, PLACE.jwks_path).body == jwks_of(ISSUER, [ONE, OTHER])
    assert poller.last_error is None


async def test_files_that_are_being_written_make_nothing_ready_and_end_no_error() -> None:
    gives: list[tuple[VerifyingKey, ...] | SourceError | None] = []
    routes = table()
    routes.open(PLACE)

    async def read() -> tuple[VerifyingKey, ...] | None:
        given = gives.pop()
        if isinstance(given, SourceError):
            raise given
        return given

    poller = Poller([PLACE], read, routes=routes, metrics=Metrics(), period=60.0)
    for given, said in ((None, "not read yet"), (SourceError("unusable", "spoilt"), "spoilt"), (None, "spoilt")):
        gives.append(given)
        await poller.poll()
        assert said in (poller.unready_reason() or "")
    gives.extend([None, (ONE,)])
    assert (await poller.poll(), await poller.poll(), poller.unready_reason()) == (True, True, None)
    assert ask(routes, PLACE.jwks_path).body == jwks_of(ISSUER, [ONE])


async def test_however_many_ask_an_api_server_is_asked_once(tmp_path: Path) -> None:
    """Its keys are served under our own key set's URL, and readiness says so."""
    jwks, configuration = request("/c/openid/v1/jwks"), request("/c/.well-known/openid-configuration")
    with api_server(tmp_path, ISSUER, [ONE]) as there:
        there.spoil = lambda _path, _reply: Reply(status=403)
        source, hang = KeysSource(issuers=(PLACE,)), threading.Event()
        async with serving(source, lambda: ApiClient.from_kubeconfig(there.kubeconfig), period=60.0) as ports:
            assert ports.health is not None
            await until(lambda: there.asked)
            assert (await exchange(ports.health, request("/readyz"))).status == 500
            there.spoil = lambda _path, reply: replace(reply, after=hang)
            there.asked.clear()
            for status in (503, 200):
                answers = await asyncio.gather(*(exchange(ports.main, jwks) for _ in range(50)))
                assert {answer.status for answer in answers} == {status}
                hang.set()
                await ask_until(lambda answer: answer.status == 200, ports.main, jwks)
            assert len(there.asked) == 2
            assert json.loads((await exchange(ports.main, configuration)).body)["jwks_uri"] == PLACE.jwks_uri
            assert (await exchange(ports.health, request("/readyz"))).status == 200
            metrics = (await exchange(ports.health, request("/metrics"))).body.decode()
    assert f'nodeattest_issuer_keys{{issuer="{ISSUER}"}} 1.0' in metrics
    assert f'nodeattest_issuer_reads_total{{issuer="{ISSUER}",outcome="forbidden"}}' in metrics


# All clusters of a management cluster

BASE = "https://issuer.example/fleet"


class Management:
    """Writes kubeconfig Secrets as Cluster API does."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace, self.client = plane, namespace, plane.client()
        self.client.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        self.path = f"/api/v1/namespaces/{namespace}/secrets"

    def put(self, cluster: str, config: bytes, label: str | None = None) -> None:
        metadata: JsonMap = {
            "name": f"{cluster}-kubeconfig",
            "labels": {"cluster.x-k8s.io/cluster-name": label or cluster},
        }
        data: JsonMap = {"value": base64.b64encode(config).decode()}
        self.client.create(self.path, {"metadata": metadata, "type": "cluster.x-k8s.io/secret", "data": data})

    def issuer(self, cluster: str) -> str:
        return f"{BASE}/{self.namespace}/{cluster}"

    def jwks(self, cluster: str) -> bytes:
        return request(f"/fleet/{self.namespace}/{cluster}/openid/v1/jwks")

    def source(self, *allowed: str) -> KubeconfigSecretsSource:
        addresses = AddressRules(tuple(map(parse_network, allowed)))
        return KubeconfigSecretsSource(base_url=BASE, namespace=self.namespace, addresses=addresses)

    @asynccontextmanager
    async def serving(self, *allowed: str) -> AsyncGenerator[Ports]:
        connect, source = ApiClient.from_kubeconfig_file, self.source(*allowed or ("127.0.0.0/8",))
        async with serving(source, lambda: connect(self.plane.admin_kubeconfig), period=0.05) as ports:
            yield ports

    async def served(self, ports: Ports, cluster: str, *keys: VerifyingKey) -> None:
        wanted = jwks_of(self.issuer(cluster), keys)
        await ask_until(lambda answer: answer.body == wanted, ports.main, self.jwks(cluster))


async def test_clusters_come_change_and_go_while_one_is_out_of_reach(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    management = Management(control_plane, "issuers-come")

    def cluster(name: str, folder: str, key: VerifyingKey) -> IssuerServer:
        return stack.enter_context(api_server(tmp_path / folder, management.issuer(name), [key]))

    keys = [new_key() for _ in range(4)]
    with ExitStack() as stack:
        silent = stack.enter_context(socket.create_server((LOOPBACK, 0)))
        a, b, moved = cluster("a", "a", keys[0]), cluster("b", "b", keys[1]), cluster("a", "moved", keys[2])
        management.put("silent", kubeconfig(f"https://{LOOPBACK}:{silent.getsockname()[1]}", a.ca.read_bytes()))
        management.put("a", a.kubeconfig)
        async with management.serving() as ports:
            await management.served(ports, "a", keys[0])
            await ask_until(lambda answer: answer.status == 503, ports.main, management.jwks("silent"))
            assert (await exchange(ports.main, management.jwks("b"))).status == 404
            management.put("b", b.kubeconfig)  # comes
            await management.served(ports, "b", keys[1])
            a.publish([keys[0], keys[3]], issuer=management.issuer("a"))  # rotates its keys
            await management.served(ports, "a", keys[0], keys[3])
            data: JsonMap = {"value": base64.b64encode(moved.kubeconfig).decode()}
            management.client.patch(f"{management.path}/a-kubeconfig", {"data": data})  # its API server moves
            await management.served(ports, "a", keys[2])
            moved.spoil = lambda _path, _reply: Reply(status=500)  # and has trouble
            asked = len(moved.asked)
            await ask_until(lambda _: len(moved.asked) > asked + 2, ports.main, management.jwks("b"))
            await management.served(ports, "a", keys[2])
            management.client.delete(f"{management.path}/b-kubeconfig")  # goes
            await ask_until(lambda answer: answer.status == 404, ports.main, management.jwks("b"))
            metrics = (await exchange(ports.health or 0, request("/metrics"))).body.decode()
    assert management.issuer("b") not in metrics
    assert f'nodeattest_issuer_keys{{issuer="{management.issuer("a")}"}} 1.0' in metrics


async def test_a_cluster_publishes_under_its_own_name_only(control_plane: ControlPlane, tmp_path: Path) -> None:
    management, key = Management(control_plane, "issuers-own"), new_key()
    victims = management.issuer("victim")
    with (
        api_server(tmp_path / "evil", victims, [new_key()]) as evil,
        api_server(tmp_path / "victim", victims, [key]) as victim,
    ):
        management.put("evil", evil.kubeconfig, label="victim")
        management.put("victim", victim.kubeconfig)
        async with management.serving() as ports:
            await management.served(ports, "victim", key)
            await ask_until(lambda _: bool(evil.asked), ports.main, management.jwks("victim"))
            assert (await exchange(ports.main, management.jwks("evil"))).status == 503
            await ask_until(lambda answer: answer.status == 200, ports.health or 0, request("/readyz"))
            metrics = (await exchange(ports.health or 0, request("/metrics"))).body.decode()
    assert f'nodeattest_issuer_reads_total{{issuer="{management.issuer("evil")}",outcome="other-issuer"}}' in metrics


async def test_a_cluster_at_an_address_that_is_not_allowed_is_never_asked(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    management = Management(control_plane, "issuers-here")
    with api_server(tmp_path, management.issuer("here"), [ONE]) as here:
        management.put("here", here.kubeconfig)
        async with management.serving("10.0.0.0/8") as ports:
            await ask_until(lambda answer: answer.status == 503, ports.main, management.jwks("here"))
            await ask_until(lambda answer: answer.status == 200, ports.health or 0, request("/readyz"))
            counted = f'issuer="{management.issuer("here")}",outcome="unusable"'.encode()  # ends with ``max_stale``
            await ask_until(lambda answer: counted in answer.body, ports.health or 0, request("/metrics"))
        assert here.asked == []


@pytest.mark.parametrize(("name", "kept"), [("a-kubeconfig", {"value": "a"}), ("a-ca", {"value": ""})])
def test_of_a_secret_nothing_is_kept_but_a_kubeconfig(name: str, kept: dict[str, str]) -> None:
    metadata: JsonObject = {"name": name, "namespace": "n", "annotations": {"last-applied": "secret"}}
    secret: JsonObject = {"metadata": metadata, "data": {"value": "a", "tls.key": "secret"}}
    slim = of_clusters._kubeconfig_only("-kubeconfig", secret)  # pyright: ignore[reportPrivateUsage] - what stays in memory
    assert slim == {"metadata": {"name": name, "namespace": "n"}, "data": kept}


class FaultyOnce(RouteTable):
    """Has a bug, the first time."""

    has_bug = True

    def publish(self, paths: IssuerPaths, documents: Documents) -> None:
        if self.has_bug:
            self.has_bug = False
            raise RuntimeError("a bug")
        super().publish(paths, documents)


async def test_an_internal_error_of_one_cluster_is_logged_tried_again_and_stops_no_other(
    control_plane: ControlPlane, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    management, routes, key = Management(control_plane, "issuers-bug"), FaultyOnce(max_age=60, secure=False), new_key()
    with (
        api_server(tmp_path / "met", management.issuer("met"), [key]) as met,
        api_server(tmp_path / "other", management.issuer("other"), [key]) as other,
    ):
        async with ApiClient.from_kubeconfig_file(management.plane.admin_kubeconfig) as client:
            clusters = Clusters(
                client,
                management.source("127.0.0.0/8"),
                routes=routes,
                metrics=Metrics(),
                period=0.05,
                max_stale=3600.0,
            )
            running = asyncio.create_task(clusters.run())
            management.put("met", met.kubeconfig)
            await until(lambda: "ended the poller of issuers-bug/met-kubeconfig" in caplog.text)
            management.put("other", other.kubeconfig)
            for name in ("other", "met"):
                path, wanted = f"/fleet/issuers-bug/{name}/openid/v1/jwks", jwks_of(management.issuer(name), [key])
                await until(lambda path=path, wanted=wanted: ask(routes, path).body == wanted)
            assert clusters.unready_reason() is None
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
