"""A bug in one controller restarts that controller, and touches no other."""

from __future__ import annotations

import asyncio
import logging

import pytest
from fake_api import FakeApi
from management_kit import ScriptedController
from polling import others_run, until
from virtual import advance, now, run_virtually

from nodeattest_controller.runtime.cluster_controller import ClusterController, SupervisedRunner, supervise
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_kube.errors import ApiError
from nodeattest_kube.periodic import BackoffPolicy, PeriodicReconciler, ResyncConfig

KEY = ClusterKey("fleet/blue")
AT_ONCE = BackoffPolicy(initial=0.001, cap=0.002)


async def test_a_controller_with_a_bug_starts_anew_and_the_log_names_it(caplog: pytest.LogCaptureFixture) -> None:
    controller = ScriptedController(bugs=3)
    with caplog.at_level(logging.ERROR):
        runner = SupervisedRunner(
            ClusterController("scripted", controller.for_cluster), KEY, FakeApi(), backoff=AT_ONCE
        )
        assert not runner.is_healthy
        await until(lambda: controller.running)
    assert controller.made == 4
    assert runner.is_healthy
    assert len(caplog.records) == 3
    assert all(record.exc_info is not None for record in caplog.records)
    await runner.close()


async def test_closing_ends_a_controller_for_good_whatever_it_dies_of(caplog: pytest.LogCaptureFixture) -> None:
    controller = ScriptedController()
    scripted = ClusterController("scripted", controller.for_cluster)
    runner = SupervisedRunner(scripted, KEY, FakeApi(), backoff=AT_ONCE)
    await until(lambda: controller.running)
    await runner.close()
    await others_run()
    assert controller.made == 1

    async def dies_at_its_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise TypeError("while it was closed")

    task = asyncio.create_task(supervise("other", dies_at_its_end, backoff=AT_ONCE))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 60)
    assert caplog.records == []


# When a controller looks: soon after a change, ever later after failures, and never more than a tenth of the time


REFUSED = ApiError(500, "InternalError", "broken")
QUICK = ResyncConfig(spread=0, period=30, min_interval=0.001, retry=0.02, max_retry=0.08)


class Task:
    """A periodic task that fails as a script says, and notes when it began."""

    def __init__(self, *script: ApiError | None, every: ApiError | None = None) -> None:
        self.script, self.every = list(script), every
        self.runs: list[float] = []
        self.failures: list[tuple[int, float]] = []
        self.reconciler = PeriodicReconciler(self, QUICK, clock=now, random=lambda: 0.5)

    async def reconcile(self) -> float | None:
        self.runs.append(now())
        error = self.script.pop(0) if self.script else self.every
        if error is not None:
            raise error
        return None

    async def failed(self, error: ApiError, failures: int, delay: float) -> None:
        self.failures.append((failures, delay))
        if error.retry_after is not None:
            self.reconciler.hurry()


def look_for(looks: PeriodicReconciler, seconds: float) -> None:
    """Let it look for so many seconds of virtual time."""

    async def main() -> None:
        task = asyncio.create_task(looks.run())
        await advance(seconds)
        task.cancel()

    run_virtually(main())


def test_a_server_that_asks_to_be_left_alone_is_although_it_is_urgent() -> None:
    busy = Task(every=ApiError(429, "TooManyRequests", "busy", retry_after=40.0))
    look_for(busy.reconciler, 100.0)
    assert busy.runs == [0.0, 40.0, 80.0]


def test_failures_double_the_wait_up_to_the_longest_and_a_success_forgets_them() -> None:
    task = Task(REFUSED, REFUSED, REFUSED, REFUSED, None, REFUSED)
    look_for(task.reconciler, 100.0)
    assert task.failures == [(1, 0.02), (2, 0.04), (3, 0.08), (4, 0.08), (1, 0.02)]


@pytest.mark.parametrize(("takes", "most"), [(0.1, 61), (1.0, 13), (3.0, 10), (120.0, 1)])
def test_in_ten_minutes_of_changes_it_looks_less_often_the_longer_it_takes(takes: float, most: int) -> None:
    looks = 0

    class Slow:
        async def reconcile(self) -> float | None:
            nonlocal looks
            looks += 1
            await advance(takes)
            reconciler.changed()
            return None

        async def failed(self, error: ApiError, failures: int, delay: float) -> None:
            raise AssertionError(error, failures, delay)

    reconciler = PeriodicReconciler(Slow(), ResyncConfig(spread=0, share_of_changes=50), clock=now, random=lambda: 0.5)
    look_for(reconciler, 600)
    assert looks in {most - 1, most}
