"""The queue of requests: what waits is woken, what fails is tried again and logged, what ends leaves nothing behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from fake_api import FakeApi
from management_kit import tasks
from polling import others_run, until
from virtual import advance, now, virtually

from nodeattest_controller.controllers.csr.controller import REPEATED, CSRController, CSRRunner
from nodeattest_controller.controllers.csr.reconciler import Reconciler, Result
from nodeattest_controller.controllers.csr.task import NODE_BURST, REQUESTER_BURST, REQUESTER_RATE, RequestLimiter
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.cluster_log import ClusterLog
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.workload_client import WorkloadClient
from nodeattest_kube.errors import TooManyRequests
from nodeattest_kube.store import MemoryPool
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject

KEY = ClusterKey("fleet/blue")
CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"


class Scripted(Reconciler):
    """A reconciler that answers as it is told, per request."""

    def __init__(self) -> None:
        self.results: dict[str, Result | Exception] = {}
        self.seen: list[str] = []
        self.hung: set[ClusterKey] = set()
        """Clusters whose requests never end."""
        self.ended: list[str] = []
        """UIDs of requests that are open no more."""

    def settled(self, cluster: ClusterKey, uid: str) -> None:
        del cluster
        self.ended.append(uid)

    async def reconcile(self, workload: WorkloadClient, name: str) -> Result:
        self.seen.append(name)
        if workload.key in self.hung:
            await asyncio.Event().wait()
        result = self.results.get(name, Result())
        if isinstance(result, Exception):
            raise result
        return result


def add_request(api: FakeApi, name: str, provider: str = "tpm") -> None:
    signer = f"cluster.x-k8s.io/kube-apiserver-client-kubelet-{provider}"
    spec: JsonObject = {"signerName": signer, "username": "system:bootstrap:abcdef", "request": ""}
    api.put(f"{CSRS}/{name}", {"metadata": {}, "spec": spec})


def controller_of(script: Scripted, metrics: Metrics | None = None, *, workers: int = 2) -> CSRController:
    return CSRController(
        script,
        has_provider=lambda name: name == "tpm",
        metrics=metrics or Metrics(),
        log=ClusterLog(),
        now=lambda: datetime.now(UTC),
        memory=MemoryPool(1 << 30),
        workers=workers,
    )


@asynccontextmanager
async def running(
    api: FakeApi, script: Scripted, metrics: Metrics
) -> AsyncGenerator[tuple[CSRRunner, asyncio.Task[None]]]:
    controller = controller_of(script, metrics)
    runner = controller.for_cluster(KEY, api)
    async with tasks(controller.run(), runner.run()) as both:
        await until(lambda: runner.synced)
        yield runner, both[1]


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


@virtually
async def test_a_request_whose_write_is_refused_with_retry_after_is_left_alone_until_then() -> None:
    api, attempts = FakeApi(), list[float]()

    class Refused(Scripted):
        async def reconcile(self, workload: WorkloadClient, name: str) -> Result:
            attempts.append(now())
            raise TooManyRequests(429, "TooManyRequests", "busy", retry_after=30.0)

    add_request(api, "a")
    async with running(api, Refused(), Metrics()):
        await advance(65.0)
    assert [round(later - attempts[0]) for later in attempts] == [0, 30, 60]


async def test_no_plan_is_left_of_a_request_with_which_nothing_is_left_to_do() -> None:
    script = Scripted()
    controller = controller_of(script)
    api = FakeApi()
    runner = controller.for_cluster(KEY, api)
    script.results |= {name: Result(requeue_after=900, waits_for="tpm://a") for name in "ab"}
    add_request(api, "a")
    add_request(api, "b")
    async with tasks(controller.run(), runner.run()):
        await until(lambda: controller.queue.delayed == 2)
        script.results["a"] = Result()
        await runner.reconcile("a")
        assert controller.queue.delayed == 1
        kept = runner.workload.requests.get("b")
        assert kept is not None
        await runner.workload.deny(kept, "Tested", "by somebody else")
        await until(lambda: script.ended == [text(kept, "metadata", "uid")])
        assert controller.queue.delayed == 0
        runner.changed(frozenset({"tpm://a"}))
        assert controller.queue.depth == 0


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


async def test_fifty_hung_clusters_of_one_namespace_leave_workers_to_another() -> None:
    script, workers = Scripted(), 8
    controller = controller_of(script, workers=workers)
    hostile = [ClusterKey(f"hostile/c{number}") for number in range(50)]
    script.hung.update(hostile)
    apis = {key: FakeApi() for key in (*hostile, KEY)}
    for api in apis.values():
        for number in range(5):
            add_request(api, f"first-{number}")
    runners = {key: controller.for_cluster(key, api) for key, api in apis.items()}
    async with tasks(*(runner.run() for runner in runners.values())):
        await until(lambda: all(runner.synced for runner in runners.values()))
        async with tasks(controller.run()):
            await until(lambda: controller.queue.in_flight == workers - workers // 4)
            await until(lambda: len(script.seen) - controller.queue.in_flight == 5)
            add_request(apis[KEY], "honest")
            await until(lambda: "honest" in script.seen)
            await until(lambda: controller.queue.in_flight == workers - workers // 4)


# Budgets: who is over it waits for a turn, the turns come in order, and nobody else pays


MAX_WAIT = 900.0


def delay(budgets: RequestLimiter, uid: str, node: str = "node-0", cluster: str = "a") -> float | None:
    """Return how long a request has to wait: 0.0 where it is admitted, None for longer than it may."""
    limited = budgets.admit(cluster, "a token", node, uid, MAX_WAIT)
    return 0.0 if limited is None else limited.delay


def test_a_turn_is_kept_however_often_the_request_is_woken_and_is_used_once() -> None:
    clock = [50.0]
    budgets = RequestLimiter(lambda: clock[0])
    for number in range(REQUESTER_BURST):
        assert delay(budgets, f"u-{number}", f"node-{number}") == 0.0
    assert [delay(budgets, "late", "late") for _ in range(50)] == [pytest.approx(1 / REQUESTER_RATE)] * 50
    assert delay(budgets, "later", "later") == pytest.approx(2 / REQUESTER_RATE)
    clock[0] += 1 / REQUESTER_RATE
    assert delay(budgets, "late", "late") == 0.0
    assert delay(budgets, "late", "late") != 0.0


def test_an_api_server_that_copies_a_uid_delays_no_request_of_another_cluster() -> None:
    budgets = RequestLimiter(lambda: 50.0)
    for number in range(NODE_BURST):
        assert delay(budgets, f"u-{number}", cluster="hostile") == 0.0
    assert delay(budgets, "copied", cluster="hostile") != 0.0
    assert delay(budgets, "copied") == 0.0
    budgets.forget("a", "copied")
    assert delay(budgets, "copied", cluster="hostile") != 0.0


def test_requests_for_one_node_leave_the_tokens_other_nodes_their_budget() -> None:
    budgets = RequestLimiter(lambda: 50.0)
    assert sum(delay(budgets, f"u-{number}") == 0.0 for number in range(5_000)) == NODE_BURST
    assert delay(budgets, "next") is None  # too many have a turn before it
    others = range(1, REQUESTER_BURST - NODE_BURST)
    assert all(delay(budgets, f"v-{number}", f"node-{number}") == 0.0 for number in others)
