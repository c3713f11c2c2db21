"""The token cleaner on live API servers: what it deletes, when, and what it never does."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from polling import until
from token_world import CLEANER, TokenCluster, VirtualTime, applied_writes, working

from nodeattest_discovery.controllers.deps import RECHECK, ControllerDeps
from nodeattest_sandbox.control_plane import ControlPlane

START = datetime(2020, 6, 1, tzinfo=UTC)


@pytest.fixture
def cluster(control_plane: ControlPlane) -> Iterator[TokenCluster]:
    made = TokenCluster(control_plane)
    made.clean()
    yield made
    made.clean()


async def test_an_expired_token_is_deleted_and_no_other(cluster: TokenCluster) -> None:
    cluster.add("cln001", expiration="2020-01-01T00:00:00Z")
    cluster.add("cln002", expiration="2999-01-01T00:00:00Z")
    cluster.add("cln003")
    async with working(cluster.kubeconfig(), enabled=CLEANER) as told:
        await until(lambda: told.names)
        await told.worked_off()
    assert told.names == ["bootstrap-token-cln001"]
    writes = await applied_writes(cluster, 1)
    assert [(entry.verb, entry.name) for entry in writes] == [("delete", "bootstrap-token-cln001")]
    assert [cluster.has(f"bootstrap-token-cln00{number}") for number in (1, 2, 3)] == [False, True, True]


async def test_what_is_no_token_by_type_and_name_is_never_deleted(cluster: TokenCluster) -> None:
    past = "2020-01-01T00:00:00Z"
    cluster.add("cln005", kind="Opaque", expiration=past)
    cluster.add("cln006", name="other-cln006", expiration=past)
    cluster.add("cln007", name="other-bootstrap-token-cln007", kind="Opaque", expiration=past)
    async with working(cluster.kubeconfig(), enabled=CLEANER) as told:
        cluster.add("cln008", expiration=past)
        await until(lambda: told.names)
        await told.worked_off()
    assert told.names == ["bootstrap-token-cln008"]
    assert len(await applied_writes(cluster, 1)) == 1


async def test_a_clock_that_jumps_back_deletes_nothing_early(cluster: TokenCluster) -> None:
    time = VirtualTime(START)
    cluster.add("cln012", expiration="2020-06-01T00:00:50Z")
    async with working(cluster.kubeconfig(), enabled=CLEANER, deps=time.deps) as told:
        time.jump(-3600)
        time.advance(50)
        await told.worked_off()
        assert not cluster.writes()
        for _ in range(61):
            time.advance(60)
            await told.worked_off()
        await until(lambda: told.names == ["bootstrap-token-cln012"])


async def test_a_clock_that_jumps_forward_is_followed_soon(cluster: TokenCluster) -> None:
    time = VirtualTime(START)
    cluster.add("cln011", expiration="2020-06-02T00:00:00Z")
    async with working(cluster.kubeconfig(), enabled=CLEANER, deps=time.deps) as told:
        time.jump(25 * 3600)
        time.advance(RECHECK)
        await until(lambda: told.names == ["bootstrap-token-cln011"])


async def test_a_token_that_a_finalizer_holds_is_asked_to_go_once(cluster: TokenCluster) -> None:
    time = VirtualTime(START)
    cluster.add("cln015", expiration="2020-01-01T00:00:00Z", finalizer="tests.example/hold")
    async with working(cluster.kubeconfig(), enabled=CLEANER, deps=time.deps) as told:
        await until(lambda: told.names)
        cluster.add("cln016", expiration="2020-01-01T00:00:00Z")
        await until(lambda: len(told.names) == 2)  # the watch told before that the first is being deleted
        for _ in range(5):
            time.advance(RECHECK)
            await told.worked_off()
        deleted = [entry.name for entry in await applied_writes(cluster, 2)]
        assert deleted.count("bootstrap-token-cln015") == 1  # the watch may tell later that the second is gone
    cluster.release("cln015")


async def test_a_clock_that_is_ahead_of_the_api_server_s_deletes_nothing_that_is_good_there(
    cluster: TokenCluster,
) -> None:
    wrong = ControllerDeps(now=lambda: datetime.now(UTC) + timedelta(days=2))
    in_a_day = datetime.now(UTC) + timedelta(days=1)
    cluster.add("cln020", expiration=in_a_day.strftime("%Y-%m-%dT%H:%M:%SZ"))
    cluster.add("cln021", expiration="2020-01-01T00:00:00Z")
    async with working(cluster.kubeconfig(), enabled=CLEANER, deps=wrong) as told:
        await until(lambda: told.failures and told.names)
        await told.worked_off()
    assert told.names == ["bootstrap-token-cln021"]
    assert [error.reason for _, error in told.failures] == ["ClocksDiffer"]
    assert len(await applied_writes(cluster, 1)) == 1


async def test_a_prolonged_token_stays_and_a_shortened_one_goes(cluster: TokenCluster) -> None:
    time = VirtualTime(START)
    cluster.add("cln013", expiration="2020-06-01T00:00:30Z")
    cluster.add("cln014", expiration="2021-01-01T00:00:00Z")
    async with working(cluster.kubeconfig(), enabled=CLEANER, deps=time.deps) as told:
        cluster.prolong("cln013", "2020-06-01T00:02:00Z")
        cluster.prolong("cln014", "2020-05-01T00:00:00Z")
        await until(lambda: told.names == ["bootstrap-token-cln014"])
        time.advance(45)
        await told.worked_off()
        assert cluster.has("bootstrap-token-cln013")
