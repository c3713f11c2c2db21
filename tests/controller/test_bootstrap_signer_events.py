"""What operators hear of the token controllers: once a minute, counted always, a missing right with its remedy."""

from __future__ import annotations

import asyncio

import pytest
from fake_api import FakeApi
from management_kit import add_cluster, cached, deps_of, management_api, tasks
from polling import until

from nodeattest_controller.controllers.bootstrap_signer import REASON, REMEDY, TokenPairRunner
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.cluster_log import PERIOD
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_discovery.controllers.bootstrap_signer import TokenController
from nodeattest_kube.errors import ApiError, Conflict, Forbidden, Unreachable

REFUSAL = Forbidden(403, "Forbidden", "may not update configmaps")


async def test_failures_are_counted_by_kind_and_a_missing_right_is_told_on_the_cluster_once_in_ten_minutes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api, workload, metrics, seconds = management_api(), FakeApi(), Metrics(), [0.0]
    add_cluster(api)

    async def forbid(_method: str, _path: str) -> None:
        raise REFUSAL

    workload.on_call = forbid
    async with cached(api) as management:
        deps = deps_of(management, metrics=metrics, clock=lambda: seconds[0])
        runner = TokenPairRunner(deps, frozenset(TokenController), ClusterKey("fleet/blue"), workload)
        outcomes: dict[str, ApiError] = {
            "conflict": Conflict(409, "Conflict", "changed"),
            "forbidden": REFUSAL,
            "unreachable": Unreachable("no route"),
            "refused": ApiError(500, "InternalError", "sorry"),
        }
        for outcome, error in outcomes.items():
            runner.failed(TokenController.SIGNER, error, 1.0)
            labels = {"controller": "bootstrap-signer", "outcome": outcome}
            assert metrics.registry.get_sample_value("nodeattest_token_writes_total", labels) == 1
        async with tasks(runner.run()):
            await until(lambda: runner.last_error is not None)
        for _ in range(3):
            runner.failed(TokenController.SIGNER, REFUSAL, 1.0)
            runner.report_missing_right()
        await until(lambda: len(api.events()) == 2)
        seconds[0] += PERIOD
        runner.report_missing_right()
        await until(lambda: len(api.events()) == 3)
        await asyncio.sleep(0)
    assert {*api.events()} == {REASON}
    assert all("may not update configmaps" in said and REMEDY in said for said in api.events("message"))
    assert REMEDY in str([record.__dict__ for record in caplog.records])
