"""One server for every workload cluster of a management cluster: each under its own name, none waits for another."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from issuer_kit import LOOPBACK, Upstream, ask, ask_until, get, kubeconfig, new_key, running, upstream
from polling import until

from nodeattest_identity.issuer.documents import Documents, documents
from nodeattest_identity.serve.app import ServeSettings
from nodeattest_identity.serve.clusters import Clusters, KubeconfigSecretsSource
from nodeattest_identity.serve.service import IssuerPaths, Metrics, RouteTable
from nodeattest_identity.serve.sources import PollConfig
from nodeattest_kube.addresses import AddressRules, parse_network
from nodeattest_kube.client import ApiClient
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_serving.bounded_server import BindAddress
from nodeattest_serving.program import Ports

BASE = "https://issuer.example/fleet"


class Management:
    """Writes kubeconfig Secrets as Cluster API does."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace
        self._client = plane.client()
        self._client.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        self._path = f"/api/v1/namespaces/{namespace}/secrets"

    def put(self, cluster: str, config: bytes, suffix: str = "-kubeconfig", label: str | None = None) -> None:
        name = f"{cluster}{suffix}"
        metadata: JsonMap = {
            "name": name,
            "labels": {"cluster.x-k8s.io/cluster-name": cluster if label is None else label},
        }
        data: JsonMap = {"value": base64.b64encode(config).decode()}
        self._client.create(self._path, {"metadata": metadata, "type": "cluster.x-k8s.io/secret", "data": data})

    def change(self, cluster: str, config: bytes) -> None:
        data = {"value": base64.b64encode(config).decode()}
        self._client.patch(f"{self._path}/{cluster}-kubeconfig", {"data": {**data}})

    def relabel(self, cluster: str, value: str) -> None:
        """Make another version of the Secret, with the same kubeconfig."""
        self._client.patch(f"{self._path}/{cluster}-kubeconfig", {"metadata": {"labels": {"version": value}}})

    def delete(self, cluster: str) -> None:
        self._client.delete(f"{self._path}/{cluster}-kubeconfig")

    def issuer(self, cluster: str) -> str:
        return f"{BASE}/{self.namespace}/{cluster}"

    def jwks(self, cluster: str) -> bytes:
        return get(f"/fleet/{self.namespace}/{cluster}/openid/v1/jwks")


@asynccontextmanager
async def fleet(management: Management, **changes: str) -> AsyncGenerator[Ports]:
    source = KubeconfigSecretsSource(
        base_url=BASE,
        namespace=management.namespace,
        addresses=AddressRules((parse_network("127.0.0.0/8"),)),
        **changes,
    )
    settings = ServeSettings(
        address=BindAddress(LOOPBACK, 0), health=BindAddress(LOOPBACK, 0), source=source, period=0.05, max_stale=3600.0
    )
    async with running(settings, lambda: ApiClient.from_kubeconfig_file(management.plane.admin_kubeconfig)) as ports:
        yield ports


async def served(ports: Ports, management: Management, there: Upstream, cluster: str) -> bytes:
    own = management.issuer(cluster)
    wanted = documents(own, f"{own}/openid/v1/jwks", there.documents.keys).jwks
    answer = await ask_until(lambda answer: answer.body == wanted, ports.main, management.jwks(cluster))
    return answer.body


async def test_clusters_come_change_and_go_while_one_is_out_of_reach(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    management = Management(control_plane, "issuers-come")
    async with AsyncExitStack() as stack:
        silent = stack.enter_context(socket.create_server((LOOPBACK, 0)))
        a = await stack.enter_async_context(upstream(management.issuer("a"), [new_key()], tmp_path / "a"))
        b = await stack.enter_async_context(upstream(management.issuer("b"), [new_key()], tmp_path / "b"))
        again = await stack.enter_async_context(upstream(management.issuer("a"), [new_key()], tmp_path / "again"))
        ca = (tmp_path / "a" / "server.crt").read_bytes()
        management.put("silent", kubeconfig(f"https://{LOOPBACK}:{silent.getsockname()[1]}", ca))
        management.put("a", a.kubeconfig)
        ports = await stack.enter_async_context(fleet(management))
        await served(ports, management, a, "a")
        await ask_until(lambda answer: answer.status == 503, ports.main, management.jwks("silent"))
        assert (await ask(ports.main, management.jwks("b"))).status == 404
        management.put("b", b.kubeconfig)  # comes
        await served(ports, management, b, "b")
        a.rotate([*a.documents.keys, new_key()])  # rotates its keys
        await served(ports, management, a, "a")
        management.change("a", again.kubeconfig)  # its API server moves
        await served(ports, management, again, "a")
        last = await served(ports, management, again, "a")
        again.status = 500  # and has trouble
        asked = len(again.asked)
        await ask_until(lambda _: len(again.asked) > asked + 2, ports.main, management.jwks("b"))
        assert (await ask(ports.main, management.jwks("a"))).body == last
        management.delete("b")  # goes
        await ask_until(lambda answer: answer.status == 404, ports.main, management.jwks("b"))
        metrics = (await ask(ports.health or 0, get("/metrics"))).body.decode()
    assert management.issuer("b") not in metrics
    assert f'nodeattest_issuer_keys{{issuer="{management.issuer("a")}"}} 1.0' in metrics


async def test_a_cluster_publishes_under_its_own_name_only(control_plane: ControlPlane, tmp_path: Path) -> None:
    management = Management(control_plane, "issuers-own")
    async with (
        upstream(management.issuer("victim"), [new_key()], tmp_path / "evil") as evil,
        upstream(management.issuer("victim"), [new_key()], tmp_path / "victim") as victim,
    ):
        management.put("evil", evil.kubeconfig, label="victim")
        management.put("victim", victim.kubeconfig)
        async with fleet(management) as ports:
            await served(ports, management, victim, "victim")
            await ask_until(lambda _: bool(evil.asked), ports.main, management.jwks("victim"))
            assert (await ask(ports.main, management.jwks("evil"))).status == 503
            ready = await ask_until(lambda answer: answer.status == 200, ports.health or 0, get("/readyz"))
            metrics = (await ask(ports.health or 0, get("/metrics"))).body.decode()
    assert ready.body == b"ok"
    assert f'nodeattest_issuer_reads_total{{issuer="{management.issuer("evil")}",outcome="other-issuer"}}' in metrics


class Faulty(RouteTable):
    """Has a bug that one cluster meets twice."""

    def __init__(self) -> None:
        super().__init__(max_age=60, secure=True)
        self.bugs = 2
        self.served: set[str] = set()
        self.opened: set[str] = set()

    def open(self, paths: IssuerPaths) -> None:
        super().open(paths)
        self.opened.add(paths.issuer)

    def publish(self, paths: IssuerPaths, documents: Documents) -> None:
        if "/met/" in paths.jwks_path and self.bugs:
            self.bugs -= 1
            raise KeyError("a bug")
        super().publish(paths, documents)
        self.served.add(paths.issuer)


@asynccontextmanager
async def polling(management: Management, routes: RouteTable) -> AsyncGenerator[Clusters]:
    """Poll the clusters without a server."""
    async with ApiClient.from_kubeconfig_file(management.plane.admin_kubeconfig) as client:
        addresses = AddressRules((parse_network("127.0.0.0/8"),))
        source = KubeconfigSecretsSource(base_url=BASE, namespace=management.namespace, addresses=addresses)
        config = PollConfig(period=0.05, max_stale=None)
        clusters = Clusters(client, source, routes=routes, metrics=Metrics(), config=config)
        task = asyncio.create_task(clusters.run())
        try:
            yield clusters
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_an_internal_error_of_one_cluster_is_logged_tried_again_and_stops_no_other(
    control_plane: ControlPlane, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    management, routes = Management(control_plane, "issuers-bug"), Faulty()
    async with (
        upstream(management.issuer("other"), [new_key()], tmp_path / "other") as there,
        upstream(management.issuer("met"), [new_key()], tmp_path / "met") as met,
        polling(management, routes) as clusters,
    ):
        management.put("met", met.kubeconfig)
        await until_logged(caplog, "ended the poller of issuers-bug/met-kubeconfig")
        management.put("other", there.kubeconfig)
        both = {management.issuer("met"), management.issuer("other")}
        await until(lambda: routes.served == both, "both clusters", state=lambda: routes.served)
        await until(lambda: clusters.unready_reason() is None, "readiness", state=clusters.unready_reason)
        with socket.create_server((LOOPBACK, 0)) as silent:  # a tenant's new cluster ends no other's service
            address = f"https://{LOOPBACK}:{silent.getsockname()[1]}"
            management.put("silent", kubeconfig(address, (tmp_path / "met" / "server.crt").read_bytes()))
            opened = both | {management.issuer("silent")}
            await until(lambda: routes.opened == opened, "the new cluster", state=lambda: routes.opened)
            assert clusters.unready_reason() is None


async def until_logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    await until(lambda: any(text in message for message in caplog.messages), text, state=lambda: caplog.messages)
