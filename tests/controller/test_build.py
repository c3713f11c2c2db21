"""The whole manager in the test's process, on API servers in memory: it connects, acts, and closes what it opened."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fake_api import FakeApi
from management_kit import add_cluster, add_policy, management_api, tasks
from polling import until

from nodeattest_controller.build import build_manager
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.manager import Manager
from nodeattest_controller.settings import Settings
from nodeattest_kube.client import ApiClient
from nodeattest_parsing.objects import dig
from nodeattest_parsing.strict_base64 import encode_base64
from nodeattest_parsing.values import JsonObject

ALL = ("*", "standing", "hardening", "bootstrap-token", "bootstrap-signer", "token-cleaner")
SECRET = "/api/v1/namespaces/nodeattest-system/secrets/node-attestation-challenge-keys"


def token(name: str = "abcdef", *, expiration: str) -> JsonObject:
    """The Secret of a token that signs."""
    meta: JsonObject = {"name": f"bootstrap-token-{name}", "namespace": "kube-system"}
    texts = {
        "token-id": name,
        "token-secret": "0123456789abcdef",
        "expiration": expiration,
        "usage-bootstrap-signing": "true",
    }
    data: JsonObject = {key: encode_base64(text.encode()) for key, text in texts.items()}
    return {"metadata": meta, "type": "bootstrap.kubernetes.io/token", "data": data}


class World:
    """A management cluster with one Cluster, and its workload cluster."""

    def __init__(self) -> None:
        self.management, self.workload = management_api(), FakeApi("https://workload.example")
        add_cluster(self.management)
        self.policy = add_policy(self.management)
        self.metrics = Metrics()
        self.acts = True
        self.asked = 0

    def may_act(self) -> bool:
        self.asked += 1
        return self.acts

    def connect(self, kubeconfig: bytes) -> ApiClient:
        assert kubeconfig == b"good"
        return self.workload

    async def still_leads(self) -> bool:
        return self.may_act()

    def build(self, settings: Settings) -> Manager:
        return build_manager(
            settings,
            self.management,
            self.metrics,
            connect=self.connect,
            may_act=self.may_act,
            still_leads=self.still_leads,
            signers={},
        )

    @asynccontextmanager
    async def running(self, settings: Settings) -> AsyncGenerator[Manager]:
        manager = self.build(settings)
        async with tasks(manager.run(settings.identity)):
            yield manager
        await manager.aclose()

    @property
    def connected(self) -> float | None:
        return self.metrics.registry.get_sample_value("nodeattest_cluster_connected", {"cluster": "fleet/blue"})


async def test_the_leader_connects_every_cluster_and_writes_the_status_of_policies() -> None:
    world = World()
    async with world.running(Settings(identity="one", controllers=ALL)) as manager:
        await until(lambda: world.workload.count("WATCH", "certificatesigningrequests") >= 1)
        await until(lambda: SECRET in world.management.objects)
        await until(lambda: dig(world.management.objects[world.policy], "status", "clusters") == 1)
        assert manager.unhealthy() is None
        assert not world.workload.closed
    assert world.workload.closed
    assert world.connected is None
