"""A bug in one controller restarts that controller, and touches no other."""

from __future__ import annotations

import asyncio
import logging

import pytest
from fake_api import FakeApi
from polling import others_run

from nodeattest_controller.runtime.changes import ChangeBus
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.supervisor import SupervisedRunner, supervise
from nodeattest_kube.backoff import BackoffPolicy
from nodeattest_kube.client import ApiClient, ApiError

KEY = ClusterKey("fleet/blue")
AT_ONCE = BackoffPolicy(initial=0.001, cap=0.002)


class Runner:
    """Fails so many times, then runs."""

    def __init__(self, controller: Scripted) -> None:
        self.controller = controller
        self.synced = True
        self.last_error: ApiError | None = None

    async def run(self) -> None:
        if self.controller.bugs:
            self.controller.bugs -= 1
            raise TypeError("no such attribute")
        self.controller.running.set()
        await asyncio.Event().wait()

    def changed(self, keys: frozenset[str] | None) -> None:
        if self.controller.broken_handler:
            raise KeyError("lost")
        self.controller.changes.append(keys)


class WithoutHealth(Runner):
    """Has a bug in what says whether its informers are synced."""

    @property
    def synced(self) -> bool:
        raise TypeError("no such attribute")

    @synced.setter
    def synced(self, value: bool) -> None:
        del value


class Scripted:
    """A controller whose first runners have bugs."""

    name = "scripted"
    runner: type[Runner] = Runner

    def __init__(self, bugs: int = 0, *, broken_handler: bool = False) -> None:
        self.bugs = bugs
        self.broken_handler = broken_handler
        self.made = 0
        self.changes: list[frozenset[str] | None] = []
        self.running = asyncio.Event()

    def for_cluster(self, key: ClusterKey, client: ApiClient) -> Runner:
        assert (key, client.server) == (KEY, "https://fake.example")
        self.made += 1
        return self.runner(self)


async def test_a_controller_with_a_bug_starts_anew_and_the_log_names_it(caplog: pytest.LogCaptureFixture) -> None:
    controller = Scripted(bugs=3)
    with caplog.at_level(logging.ERROR):
        runner = SupervisedRunner(controller, KEY, FakeApi(), backoff=AT_ONCE)
        assert not runner.is_healthy
        await asyncio.wait_for(controller.running.wait(), 60)
    assert controller.made == 4
    assert runner.is_healthy
    assert len(caplog.records) == 3
    assert all(record.exc_info is not None for record in caplog.records)
    await runner.close()


async def test_a_controller_starts_anew_after_a_bug_in_one_of_its_tasks(caplog: pytest.LogCaptureFixture) -> None:
    starts = 0
    again = asyncio.Event()

    async def bug() -> None:
        await asyncio.sleep(0)
        if starts == 1:
            raise TypeError("no such attribute")
        again.set()

    async def run() -> None:
        nonlocal starts
        starts += 1
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(bug())
            tasks.create_task(asyncio.Event().wait())

    task = asyncio.create_task(supervise("tasks", run, backoff=AT_ONCE))
    await asyncio.wait_for(again.wait(), 60)
    assert [record.exc_info is not None for record in caplog.records] == [True]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_closing_ends_a_controller_for_good_whatever_it_dies_of(caplog: pytest.LogCaptureFixture) -> None:
    controller = Scripted()
    runner = SupervisedRunner(controller, KEY, FakeApi(), backoff=AT_ONCE)
    await controller.running.wait()
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


async def test_a_controller_that_ends_by_itself_is_not_started_again_and_nothing_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    starts = 0

    async def ends() -> None:
        nonlocal starts
        starts += 1

    await asyncio.wait_for(supervise("ends", ends, backoff=AT_ONCE), 60)
    assert starts == 1
    assert caplog.records == []


async def test_a_bug_in_a_change_handler_is_its_own(caplog: pytest.LogCaptureFixture) -> None:
    controller = Scripted(broken_handler=True)
    runner = SupervisedRunner(controller, KEY, FakeApi(), backoff=AT_ONCE)
    await controller.running.wait()
    runner.changed(None)
    assert runner.is_healthy
    assert controller.made == 1
    assert "a bug in a controller's handler" in caplog.text
    await runner.close()


async def test_a_controller_that_fails_to_tell_its_health_is_not_healthy_and_the_log_says_it_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    controller = Scripted()
    controller.runner = WithoutHealth
    runner = SupervisedRunner(controller, KEY, FakeApi(), backoff=AT_ONCE)
    await controller.running.wait()
    assert [runner.is_healthy, runner.is_healthy] == [False, False]
    [record] = caplog.records
    assert record.exc_info is not None
    await runner.close()


def test_a_subscriber_with_a_bug_keeps_no_other_from_being_notified() -> None:
    bus, seen = ChangeBus(), list[object]()

    def broken(*_: object) -> None:
        raise TypeError("no such attribute")

    bus.subscribe_clusters(broken)
    bus.subscribe_clusters(lambda cluster, keys: seen.append((cluster, keys)))
    bus.subscribe_policies(broken)
    bus.subscribe_policies(seen.append)
    bus.cluster_changed(KEY, None)
    bus.policies_changed("fleet")
    assert seen == [(KEY, None), "fleet"]
