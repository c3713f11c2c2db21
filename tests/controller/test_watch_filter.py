"""Two controllers beside one management cluster: each serves the Clusters with its label, and no two serve one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fake_api import FakeApi
from management_kit import POLICIES, add_cluster, add_policy, cluster_path, management_api, tasks
from polling import until

from nodeattest_controller.build import build_manager
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.cluster_manager import ANOTHER, TOO_MANY
from nodeattest_controller.runtime.guard import SERVED, WATCH_FILTER_LABEL, mark_of
from nodeattest_controller.settings import Settings
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import Forbidden
from nodeattest_parsing.objects import dig, mapping, text
from nodeattest_parsing.values import JsonObject

LEDGERS = "/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/fleet/machineattestations"
DEFAULT, BLUE = (f"nodeattest-system/node-attestation-controller{suffix}" for suffix in ("", "-blue"))


class Controller:
    """One controller that leads, beside others; its connections to workload clusters are its own."""

    def __init__(
        self,
        management: FakeApi,
        watch_filter: str | None,
        *others: Controller,
        limit: int = 10,
        controllers: tuple[str, ...] = ("attestation",),
    ) -> None:
        self.settings = Settings(
            identity="one", watch_filter=watch_filter, controllers=controllers, clusters_per_namespace=limit
        )
        self.management = management
        self.metrics = Metrics()
        self.connections: list[FakeApi] = []
        self.names: list[str] = []
        self.others, self.leads = others, True
        self.beside_another = 0
        """How often a cluster was connected while another controller was connected to any."""

    def serves(self, name: str) -> bool:
        made = zip(self.names, self.connections, strict=True)
        return any(cluster == name and not connection.closed for cluster, connection in made)

    def connect(self, kubeconfig: bytes) -> ApiClient:
        self.names.append(kubeconfig.decode())
        self.beside_another += any(not one.closed for other in self.others for one in other.connections)
        self.connections.append(FakeApi("https://workload.example"))
        return self.connections[-1]

    async def still_leads(self) -> bool:
        return True

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        manager = build_manager(
            self.settings,
            self.management,
            self.metrics,
            connect=self.connect,
            leads=lambda: self.leads,
            still_leads=self.still_leads,
            signers={},
        )
        async with tasks(manager.run("one")):
            yield
        await manager.aclose()


def relabel(api: FakeApi, name: str, watch_filter: str | None) -> None:
    cluster = api.objects[cluster_path(name)]
    labels: JsonObject = {} if watch_filter is None else {WATCH_FILTER_LABEL: watch_filter}
    api.put(cluster_path(name), {**cluster, "metadata": {**mapping(cluster, "metadata"), "labels": labels}})


def mark(api: FakeApi) -> str:
    return mark_of(api.objects[cluster_path()])


def set_mark(api: FakeApi, controller: str | None) -> None:
    """Mark the Cluster as another controller's, or as nobody's."""
    condition: JsonObject = {"type": SERVED, "status": "True", "message": f"by {controller}"}
    api.put(
        cluster_path(), {**api.objects[cluster_path()], "status": {"conditions": [condition] if controller else []}}
    )


def events(api: FakeApi, reason: str = ANOTHER) -> list[str]:
    found = (one for path, one in api.objects.items() if "/events/" in path)
    return [text(one, "message") for one in found if text(one, "reason") == reason]


def one_cluster() -> FakeApi:
    api = management_api()
    add_policy(api)
    add_cluster(api, kubeconfig=b"blue")
    return api


async def test_the_leader_connects_every_cluster_and_runs_every_controller() -> None:
    api = one_cluster()
    leader = Controller(api, None, controllers=("*", "bootstrap-signer", "token-cleaner"))
    secret = "/api/v1/namespaces/nodeattest-system/secrets/node-attestation-challenge-keys"
    async with leader.running():
        await until(lambda: bool(leader.connections))
        [workload] = leader.connections
        await until(lambda: workload.count("WATCH", "certificatesigningrequests") >= 1)
        await until(lambda: secret in api.objects)
        await until(lambda: dig(api.objects[f"{POLICIES}/p"], "status", "clusters") == 1)
        assert not workload.closed
    assert workload.closed
    leader.leads = False
    assert not api.may_send()
    assert b"cluster_connected{" not in leader.metrics.render()


async def test_each_controller_serves_the_clusters_with_its_label_and_no_other() -> None:
    api = management_api()
    add_policy(api)
    for name, label in (("plain", None), ("ours", "blue"), ("others", "red")):
        add_cluster(api, name, kubeconfig=name.encode())
        relabel(api, name, label)
    default, blue = Controller(api, None), Controller(api, "blue")
    async with default.running(), blue.running():
        await until(lambda: default.serves("plain") and blue.serves("ours"))
        assert not any(default.serves(name) for name in ("ours", "others"))
        assert not any(blue.serves(name) for name in ("plain", "others"))
        relabel(api, "ours", None)
        await until(lambda: default.serves("ours") and not blue.serves("ours"))


async def test_a_cluster_that_is_relabeled_is_served_by_one_controller_at_a_time() -> None:
    api = one_cluster()
    default = Controller(api, None)
    blue = Controller(api, "blue", default)
    default.others = (blue,)
    async with default.running(), blue.running():
        await until(lambda: default.serves("blue"))
        assert mark(api) == DEFAULT
        for turn in range(4):
            label, new, old = (None, default, blue) if turn % 2 else ("blue", blue, default)
            relabel(api, "blue", label)
            await until(lambda: new.serves("blue") and not old.serves("blue"))
            assert mark(api) == (DEFAULT if turn % 2 else BLUE)
    assert (default.beside_another, blue.beside_another) == (0, 0)
    assert (len(default.connections), len(blue.connections)) == (3, 2)


async def test_a_controller_that_finds_anothers_mark_stops_and_leaves_it() -> None:
    api = one_cluster()
    default = Controller(api, None)
    async with default.running():
        await until(lambda: default.serves("blue"))
        set_mark(api, BLUE)
        await until(lambda: default.connections[0].closed and bool(events(api)))
        assert not default.serves("blue")
        assert mark(api) == BLUE


async def test_a_cluster_whose_mark_cannot_be_written_again_is_served_no_longer() -> None:
    api = one_cluster()
    default = Controller(api, None)
    async with default.running():
        await until(lambda: default.serves("blue"), seconds=20)

        async def refuse(method: str, path: str) -> None:
            if method == "PATCH" and path == f"{cluster_path()}/status":
                raise Forbidden(403, "Forbidden", "no right to patch clusters/status")

        api.on_call = refuse
        set_mark(api, None)
        await until(lambda: default.connections[0].closed, seconds=20)
        assert not default.serves("blue")
        api.on_call = None
        await until(lambda: default.serves("blue"), seconds=20)
        assert mark(api) == DEFAULT


async def test_a_namespace_has_only_so_many_clusters_and_the_next_waits_for_the_end_of_one() -> None:
    api = one_cluster()
    add_cluster(api, "green", kubeconfig=b"green")
    default = Controller(api, None, limit=1)
    async with default.running():
        await until(lambda: bool(events(api, TOO_MANY)) and len(default.names) == 1)
        [message] = events(api, TOO_MANY)
        assert "serves 1 Clusters of this namespace (clustersPerNamespace)" in message
        [first] = default.names
        other = "green" if first == "blue" else "blue"
        api.remove(cluster_path(first))
        await until(lambda: default.serves(other))
        assert not default.serves(first)


async def test_a_cluster_that_goes_before_it_is_served_leaves_its_room_to_another() -> None:
    api = one_cluster()
    refused: list[str] = []

    async def refuse(method: str, path: str) -> None:
        if method == "PATCH" and path == f"{cluster_path()}/status":
            refused.append(path)
            raise Forbidden(403, "Forbidden", "no right to patch clusters/status")

    api.on_call = refuse
    default = Controller(api, None, limit=1)
    async with default.running():
        await until(lambda: bool(refused))
        api.remove(cluster_path())
        add_cluster(api, "green", kubeconfig=b"green")
        await until(lambda: default.serves("green"))


async def test_a_cluster_is_served_after_the_records_of_its_former_controller_are_here() -> None:
    api = one_cluster()
    relabel(api, "blue", "red")
    caught_up = asyncio.Event()

    async def lag(method: str, path: str) -> None:
        if method == "WATCH" and path.endswith("machineattestations"):
            await caught_up.wait()

    api.on_call = lag
    default = Controller(api, None)
    async with default.running():
        await until(lambda: api.count("WATCH", "machineattestations") > 0)
        labels: JsonObject = {"cluster.x-k8s.io/cluster-name": "blue"}
        api.put(f"{LEDGERS}/a", {"metadata": {"labels": labels}, "spec": {"clusterName": "blue"}})
        listed = api.count("LIST", "machineattestations")
        relabel(api, "blue", None)
        await until(lambda: api.count("LIST", "machineattestations") >= listed + 2)
        assert (mark(api), default.connections) == ("", [])
        caught_up.set()
        await until(lambda: default.serves("blue"))
