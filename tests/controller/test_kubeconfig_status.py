"""A Cluster whose kubeconfig is refused says so by a condition, which goes when it is not refused any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from management_kit import add_cluster, add_policy, cached, cluster_path, management_api
from polling import others_run, until

from nodeattest_controller.model.objects import condition, items, text
from nodeattest_controller.runtime.changes import ChangeBus
from nodeattest_controller.runtime.guard import ClusterGuard, LeaderOwnsAll
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.kubeconfig_status import ACCEPTED, REFUSED, KubeconfigStatus
from nodeattest_kube.client import ApiError
from nodeattest_kube.events import EventRecorder
from nodeattest_kube.jsontypes import JsonObject

KEY = ClusterKey("fleet/blue")
EXPECTED = "an address of a cluster"


class World:
    """A status over a management cluster with one Cluster, at a time that the test moves."""

    def __init__(self) -> None:
        self.api = management_api()
        self.now = 1000.0
        self.leads = True
        add_cluster(self.api)
        add_policy(self.api)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[KubeconfigStatus]:
        async with cached(self.api, ChangeBus()) as management:
            recorder = EventRecorder(self.api, component="c", instance="i", now=lambda: datetime.now(UTC))
            status = KubeconfigStatus(
                management,
                guard=ClusterGuard(management, LeaderOwnsAll(lambda: self.leads)),
                events=recorder,
                now=lambda: datetime.now(UTC),
                clock=lambda: self.now,
            )
            task = asyncio.create_task(status.run())
            try:
                yield status
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await recorder.drain()

    @property
    def said(self) -> JsonObject | None:
        found = condition(items(self.api.objects[cluster_path()], "status", "conditions"), ACCEPTED)
        return None if found is None else dict(found)

    @property
    def writes(self) -> int:
        return self.api.count("PATCH", cluster_path())


async def test_a_refused_kubeconfig_is_a_condition_of_its_cluster_until_it_is_not_refused() -> None:
    world = World()
    async with world.running() as status:
        status.refused(KEY, EXPECTED, "got 127.0.0.1: correct it")
        await until(lambda: world.said is not None)
        assert world.said is not None
        assert (world.said["status"], world.said["reason"]) == ("False", REFUSED)
        assert text(world.said, "message") == "got 127.0.0.1: correct it"
        status.not_refused(KEY)  # at once: the cache may be behind
        await until(lambda: world.said is None)
    events = [each for path, each in world.api.objects.items() if "/events/" in path]
    assert [text(each, "reason") for each in events] == [REFUSED]


async def test_a_name_that_leads_elsewhere_every_time_costs_two_writes_a_minute() -> None:
    world = World()
    async with world.running() as status:
        status.refused(KEY, EXPECTED, "got 127.0.0.1")
        await until(lambda: world.said is not None)
        for number in range(100):
            status.not_refused(KEY)
            await asyncio.sleep(0)
            status.refused(KEY, EXPECTED, f"got 127.0.0.{number}")
            await asyncio.sleep(0)
        await until(lambda: world.said is None)
        assert world.writes == 2
        world.now += 61
        status.refused(KEY, EXPECTED, "got 127.0.0.7")
        await until(lambda: world.said is not None)
        assert world.writes == 3


async def test_a_cluster_of_another_replica_is_left_alone_and_a_write_that_failed_is_repeated() -> None:
    world = World()
    failures = [ApiError(500, "InternalError", "no")]

    async def fail(method: str, path: str) -> None:
        if method == "PATCH" and path.startswith(cluster_path()) and failures:
            raise failures.pop()

    async with world.running() as status:
        world.leads = False
        status.refused(KEY, EXPECTED, "got 127.0.0.1")
        await others_run()
        assert world.writes == 0
        world.leads, world.now, world.api.on_call = True, world.now + 61, fail
        status.refused(KEY, EXPECTED, "got 127.0.0.1")
        await until(lambda: world.said is not None)
        assert not failures
