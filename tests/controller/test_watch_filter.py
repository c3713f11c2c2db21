"""Two controllers beside one management cluster: each serves the Clusters whose watch-filter label is its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fake_api import FakeApi
from management_kit import add_cluster, add_policy, cluster_path, management_api
from polling import until

from nodeattest_controller.build import build_manager
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.guard import WATCH_FILTER_LABEL
from nodeattest_controller.settings import Settings
from nodeattest_kube.client import ApiClient


class Controller:
    """One controller that leads; its view of the workload clusters is its own."""

    def __init__(self, management: FakeApi, watch_filter: str | None) -> None:
        self.settings = Settings(identity="one", watch_filter=watch_filter, controllers=("attestation",))
        self.management = management
        self.metrics = Metrics()

    def serves(self, name: str) -> bool:
        cluster = {"cluster": f"fleet/{name}"}
        return self.metrics.registry.get_sample_value("nodeattest_cluster_connected", cluster) is not None

    def connect(self, kubeconfig: bytes) -> ApiClient:
        assert kubeconfig == b"good"
        return FakeApi("https://workload.example")

    async def still_leads(self) -> bool:
        return True

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        manager = build_manager(
            self.settings,
            self.management,
            self.metrics,
            connect=self.connect,
            may_act=lambda: True,
            still_leads=self.still_leads,
            signers={},
        )
        task = asyncio.create_task(manager.run("one"))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await manager.aclose()


def relabel(api: FakeApi, name: str, watch_filter: str | None) -> None:
    """Set the label of a Cluster, or take it away."""
    cluster = api.objects[cluster_path(name)]
    labels = {} if watch_filter is None else {WATCH_FILTER_LABEL: watch_filter}
    api.put(cluster_path(name), {**cluster, "metadata": {"name": name, "labels": dict(labels)}})


async def test_each_controller_serves_the_clusters_with_its_label_and_no_other() -> None:
    api = management_api()
    add_policy(api)
    for name, label in (("plain", None), ("ours", "blue"), ("others", "red")):
        add_cluster(api, name)
        relabel(api, name, label)
    default, blue = Controller(api, None), Controller(api, "blue")
    async with default.running(), blue.running():
        await until(lambda: default.serves("plain") and blue.serves("ours"), seconds=20)
        assert not any(default.serves(name) for name in ("ours", "others"))
        assert not any(blue.serves(name) for name in ("plain", "others"))
        relabel(api, "ours", None)
        await until(lambda: default.serves("ours") and not blue.serves("ours"), seconds=20)


def test_controllers_with_different_filters_never_wait_for_one_lease() -> None:
    names = {Settings(identity="one", watch_filter=value).instance for value in (None, "blue", "red")}
    assert names == {f"node-attestation-controller{suffix}" for suffix in ("", "-blue", "-red")}
