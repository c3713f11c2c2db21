"""The queue of requests: what waits is woken, what fails is tried again and logged, what ends leaves nothing behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from fake_api import FakeApi
from polling import others_run, until
from virtual import advance, now, run_virtually

from nodeattest_controller.controllers.csr.controller import REPEATED, CSRController, CSRRunner
from nodeattest_controller.controllers.csr.reconciler import Result
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model.objects import mapping
from nodeattest_controller.runtime.cluster_log import ClusterLog
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.workload_client import WorkloadClient
from nodeattest_kube.client import TooManyRequests, Unreachable
from nodeattest_kube.jsontypes import dig_text

KEY = ClusterKey("fleet/blue")
CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"


class Scripted:
    """A reconciler that answers as it is told, per request."""

    def __init__(self) -> None:
        self.results: dict[str, Result | Exception] = {}
        self.seen: list[str] = []
        self.block = asyncio.Event()
        self.block.set()
        self.cancelled: list[str] = []
        self.hung: set[ClusterKey] = set()
        """Clusters whose requests never end."""
        self.ended: list[str] = []
        """UIDs of requests that are open no more."""
        self.followed: list[ClusterKey] = []
        """Clusters whose platforms are followed."""

    async def follow_platforms(self, workload: WorkloadClient) -> None:
        self.followed.append(workload.key)

    def settled(self, uid: str) -> None:
        self.ended.append(uid)

    async def reconcile(self, workload: WorkloadClient, name: str) -> Result:
        self.seen.append(name)
        if workload.key in self.hung:
            await asyncio.Event().wait()
        try:
            await self.block.wait()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        result = self.results.get(name, Result())
        if isinstance(result, Exception):
            raise result
        return result


def add_request(api: FakeApi, name: str, provider: str = "tpm") -> None:
    spec = {
        "signerName": f"cluster.x-k8s.io/kube-apiserver-client-kubelet-{provider}",
        "username": "system:bootstrap:abcdef",
    }
    api.put(f"{CSRS}/{name}", {"metadata": {}, "spec": {**spec, "request": ""}})


@asynccontextmanager
async def running(
    api: FakeApi, script: Scripted, metrics: Metrics
) -> AsyncGenerator[tuple[CSRRunner, asyncio.Task[None]]]:
    controller = CSRController(
        script,
        follow_platforms=script.follow_platforms,
        has_provider=lambda name: name == "tpm",
        metrics=metrics,
        log=ClusterLog(),
        now=lambda: datetime.now(UTC),
        workers=2,
    )
    runner = controller.for_cluster(KEY, api)
    tasks = [asyncio.create_task(controller.run()), asyncio.create_task(runner.run())]
    await until(lambda: runner.synced)
    try:
        yield runner, tasks[1]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_request_for_a_signer_that_only_begins_as_ours_is_neither_kept_nor_worked_on() -> None:
    api, script = FakeApi(), Scripted()
    async with running(api, script, Metrics()) as (runner, _):
        add_request(api, "theirs", "tpm2")
        add_request(api, "ours")
        await until(lambda: script.seen == ["ours"])
        kept = runner.workload.requests.get("theirs")
        assert kept is not None
        assert runner.workload.summarize(kept) is None
        assert "request" not in mapping(kept, "spec")
        assert "request" in mapping(runner.workload.requests.get("ours") or {}, "spec")


async def test_requests_that_were_not_taken_stay_counted_when_the_connection_ends() -> None:
    api, metrics, said = FakeApi(), Metrics(), 'nodeattest_requests_passed_over_total{cluster="fleet/blue"}'
    add_request(api, "n" * 1025)
    for connections in (1, 2):
        async with running(api, Scripted(), metrics) as (runner, _):
            assert runner.workload.requests.passed_over == 1
        assert f"{said} {float(connections)}" in metrics.render().decode()


async def test_a_request_that_waits_is_woken_by_its_machine_and_by_no_other() -> None:
    api, script = FakeApi(), Scripted()
    script.results["a"] = Result(waits_for="tpm://a")
    add_request(api, "a")
    async with running(api, script, Metrics()) as (runner, _):
        await until(lambda: script.seen == ["a"])
        runner.changed(frozenset({"tpm://b"}))
        await others_run()
        assert script.seen == ["a"]
        runner.changed(frozenset({"tpm://a"}))
        await until(lambda: script.seen == ["a", "a"])
        runner.changed(None)
        await until(lambda: len(script.seen) == 3)


def test_a_request_whose_write_is_refused_with_retry_after_is_left_alone_until_then() -> None:
    api, attempts = FakeApi(), list[float]()

    async def refuse(method: str, path: str) -> None:
        if (method, path) == ("PUT", f"{CSRS}/a/approval"):
            attempts.append(now())
            raise TooManyRequests(429, "TooManyRequests", "busy", retry_after=30.0)

    class Approver(Scripted):
        async def reconcile(self, workload: WorkloadClient, name: str) -> Result:
            await api.replace(f"{CSRS}/{name}/approval", {})
            return Result()

    async def main() -> None:
        api.on_call = refuse
        add_request(api, "a")
        async with running(api, Approver(), Metrics()):
            await advance(65.0)

    run_virtually(main())
    assert [round(later - attempts[0]) for later in attempts] == [0, 30, 60]


async def test_no_plan_is_left_of_a_request_with_which_nothing_is_left_to_do() -> None:
    script = Scripted()
    controller = CSRController(
        script,
        follow_platforms=script.follow_platforms,
        has_provider=lambda name: name == "tpm",
        metrics=Metrics(),
        log=ClusterLog(),
        now=lambda: datetime.now(UTC),
        workers=2,
    )
    api = FakeApi()
    runner = controller.for_cluster(KEY, api)
    script.results |= {name: Result(requeue_after=900, waits_for="tpm://a") for name in "ab"}
    add_request(api, "a")
    add_request(api, "b")
    tasks = [asyncio.create_task(controller.run()), asyncio.create_task(runner.run())]
    try:
        await until(lambda: controller.queue.delayed == 2)
        script.results["a"] = Result()
        await runner.reconcile("a")
        assert controller.queue.delayed == 1
        kept = runner.workload.requests.get("b")
        assert kept is not None
        await runner.workload.deny(kept, "Tested", "by somebody else")
        await until(lambda: script.ended == [dig_text(kept, "metadata", "uid")])
        assert controller.queue.delayed == 0
        runner.changed(frozenset({"tpm://a"}))
        assert controller.queue.depth == 0
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_change_while_a_request_is_worked_on_brings_it_back() -> None:
    api, script = FakeApi(), Scripted()
    script.results["a"] = Result(waits_for="tpm://a")
    script.block.clear()
    add_request(api, "a")
    async with running(api, script, Metrics()) as (runner, _):
        await until(lambda: script.seen == ["a"])
        runner.changed(frozenset({"tpm://a"}))
        script.block.set()
        await until(lambda: len(script.seen) == 2)


async def test_a_request_that_meets_a_missing_object_each_time_does_not_do_so_in_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api, script = FakeApi(), Scripted()
    script.results["a"] = Result(requeue=True)
    add_request(api, "a")
    async with running(api, script, Metrics()) as (runner, _):
        await until(lambda: len(script.seen) == 1)
        with caplog.at_level(logging.WARNING):
            while len(script.seen) < REPEATED and not caplog.records:
                await runner.reconcile("a")
    [record] = caplog.records
    assert "again and again" in record.getMessage()


async def test_what_the_connections_report_says_is_debug_of_a_request(caplog: pytest.LogCaptureFixture) -> None:
    api, script = FakeApi(), Scripted()
    script.results["a"] = Unreachable("no route")
    add_request(api, "a")
    api.has_reported = lambda error: isinstance(error, Unreachable)
    caplog.set_level(logging.DEBUG)
    async with running(api, script, Metrics()):
        await until(lambda: "will try again" in caplog.messages)
    assert {record.levelname for record in caplog.records if record.message == "will try again"} == {"DEBUG"}


async def test_an_api_error_is_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    api, script = FakeApi(), Scripted()
    script.results["a"] = Unreachable("no route")
    add_request(api, "a")
    with caplog.at_level(logging.WARNING):
        async with running(api, script, Metrics()):
            await until(lambda: len(script.seen) == 2)
    assert any(record.getMessage() == "will try again" for record in caplog.records)


async def test_requests_named_by_another_are_looked_at() -> None:
    api, script = FakeApi(), Scripted()
    script.results["a"] = Result(requeue_keys=("older",))
    add_request(api, "a")
    async with running(api, script, Metrics()):
        await until(lambda: script.seen == ["a", "older"])


async def test_the_end_of_a_runner_leaves_nothing_of_its_cluster_under_way() -> None:
    api, script, metrics = FakeApi(), Scripted(), Metrics()
    script.block.clear()
    add_request(api, "a")
    async with running(api, script, metrics) as (_, task):
        await until(lambda: script.seen == ["a"])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert script.cancelled == ["a"]
        script.block.set()
        await others_run()
        assert script.seen == ["a"]


async def test_bootstrap_tokens_may_file_requests_once_a_cluster_is_connected() -> None:
    api, script = FakeApi(), Scripted()
    async with running(api, script, Metrics()):
        await until(lambda: api.count("POST", "clusterrolebindings") == 1)


async def test_a_connected_clusters_platforms_are_followed() -> None:
    async with running(FakeApi(), script := Scripted(), Metrics()):
        await until(lambda: script.followed == [KEY])


async def test_fifty_hung_clusters_of_one_namespace_leave_workers_to_another() -> None:
    script, workers = Scripted(), 8
    controller = CSRController(
        script,
        follow_platforms=script.follow_platforms,
        has_provider=lambda name: name == "tpm",
        metrics=Metrics(),
        log=ClusterLog(),
        now=lambda: datetime.now(UTC),
        workers=workers,
    )
    hostile = [ClusterKey(f"hostile/c{number}") for number in range(50)]
    script.hung.update(hostile)
    apis = {key: FakeApi() for key in (*hostile, KEY)}
    for api in apis.values():
        for number in range(5):
            add_request(api, f"first-{number}")
    runners = {key: controller.for_cluster(key, api) for key, api in apis.items()}
    tasks = [asyncio.create_task(runner.run()) for runner in runners.values()]
    await until(lambda: all(runner.synced for runner in runners.values()))
    tasks.append(asyncio.create_task(controller.run()))
    try:
        await until(lambda: controller.queue.in_flight == workers - workers // 4)
        await until(lambda: len(script.seen) - controller.queue.in_flight == 5)
        add_request(apis[KEY], "honest")
        await until(lambda: "honest" in script.seen)
        await until(lambda: controller.queue.in_flight == workers - workers // 4)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
