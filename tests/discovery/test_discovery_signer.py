"""The bootstrap signer on live API servers: what it writes, when, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from polling import until
from token_world import (
    KUBECONFIG,
    SIGNER,
    TokenCluster,
    VirtualTime,
    applied_writes,
    signature,
    working,
)

from nodeattest_discovery import clusterinfo
from nodeattest_sandbox.control_plane import ControlPlane


@pytest.fixture
def cluster(control_plane: ControlPlane) -> Iterator[TokenCluster]:
    made = TokenCluster(control_plane)
    made.clean()
    yield made
    made.clean()


async def test_a_token_s_signature_comes_and_goes_with_it_one_write_each(cluster: TokenCluster) -> None:
    cluster.publish()
    async with working(cluster.kubeconfig(), enabled=SIGNER) as told:
        token = cluster.add("sgn001")
        await until(lambda: cluster.signed_ids() == {"sgn001"}, "the signature")
        assert cluster.info()["jws-kubeconfig-sgn001"] == signature(token)
        assert cluster.info()["kubeconfig"] == KUBECONFIG
        cluster.remove("sgn001")
        await until(lambda: not cluster.signed_ids(), "the signature's end")
        await until(lambda: len(told.signings) == 2)
    assert told.signings == [1, 0]
    writes = await applied_writes(cluster, 2)
    assert [(entry.verb, entry.name, entry.code) for entry in writes] == [("update", "cluster-info", 200)] * 2
    assert {entry.verb for entry in cluster.requests()} <= {"list", "watch", "update"}


async def test_what_is_as_it_must_be_is_never_written(cluster: TokenCluster) -> None:
    token = cluster.add("sgn002")
    cluster.publish({"kubeconfig": KUBECONFIG, "jws-kubeconfig-sgn002": signature(token)})
    async with working(cluster.kubeconfig(), enabled=SIGNER):
        cluster.add("sgn003", usage_bootstrap_signing="false")
        cluster.edit(other="value")
        last = cluster.add("sgn004")
        await until(lambda: "sgn004" in cluster.signed_ids())
        assert cluster.info()["jws-kubeconfig-sgn004"] == signature(last)
    assert len(await applied_writes(cluster, 1)) == 1


async def test_a_changed_kubeconfig_is_signed_anew_as_the_exact_string(cluster: TokenCluster) -> None:
    cluster.publish()
    token = cluster.add("sgn006")
    other = "no: kubeconfig\r\n\t at all\n\n"
    async with working(cluster.kubeconfig(), enabled=SIGNER):
        await until(lambda: "sgn006" in cluster.signed_ids())
        cluster.edit(kubeconfig=other)
        await until(lambda: cluster.info()["jws-kubeconfig-sgn006"] == signature(token, other))
    assert cluster.info()["kubeconfig"] == other


async def test_cluster_info_that_is_made_anew_is_signed_anew(cluster: TokenCluster) -> None:
    cluster.publish()
    cluster.add("sgn009")
    async with working(cluster.kubeconfig(), enabled=SIGNER) as told:
        await until(lambda: "sgn009" in cluster.signed_ids())
        cluster.admin.send("DELETE", clusterinfo.PATH)
        cluster.publish()
        await until(lambda: "sgn009" in cluster.signed_ids())
    assert not told.failures


async def test_a_signature_that_somebody_spoils_comes_back_and_ever_more_slowly(cluster: TokenCluster) -> None:
    time = VirtualTime()
    cluster.publish()
    token = cluster.add("sgn010")
    async with working(cluster.kubeconfig(), enabled=SIGNER, deps=time.deps) as told:
        for spoilt in (None, "somebody's", None, "somebody's"):
            await until(lambda: cluster.info().get("jws-kubeconfig-sgn010") == signature(token))
            cluster.edit(**{"jws-kubeconfig-sgn010": spoilt})
        await until(lambda: any(queue.delayed for queue in told.queues))
        await told.worked_off()
        assert len(told.signings) == 4
        time.advance(30)
        await until(lambda: cluster.info().get("jws-kubeconfig-sgn010") == signature(token))


async def test_signatures_of_nobody_go_and_everything_else_stays(cluster: TokenCluster) -> None:
    strange = {"jws-kubeconfig-": "x", "jws-kubeconfig-not-a-token": "x", "jws-kubeconfig-zzzzzz": "x"}
    kept = {"jws-other": "y", "jws-kubeconfig": "y", "note": "y"}
    cluster.publish(
        {"kubeconfig": KUBECONFIG, **strange, **kept}, labels={"a": "b"}, annotations={"tests.example/note": "kept"}
    )
    cluster.add("sgn007")
    async with working(cluster.kubeconfig(), enabled=SIGNER):
        await until(lambda: cluster.signed_ids() == {"sgn007"})
    found = cluster.admin.get("/api/v1/namespaces/kube-public/configmaps/cluster-info")
    assert {key: cluster.info()[key] for key in kept} == kept
    assert found["metadata"]["labels"] == {"a": "b"}  # pyright: ignore[reportArgumentType, reportCallIssue, reportIndexIssue, reportOptionalSubscript]
    assert "tests.example/note" in str(found["metadata"])


async def test_signatures_that_stand_are_not_taken_away_before_the_tokens_are_known(cluster: TokenCluster) -> None:
    tokens = [cluster.add(f"sgn1{number:02d}") for number in range(5)]
    cluster.publish({"kubeconfig": KUBECONFIG, **{f"jws-kubeconfig-{token.id}": signature(token) for token in tokens}})
    async with working(cluster.kubeconfig(), enabled=SIGNER):
        cluster.remove("sgn100")
        await until(lambda: len(cluster.signed_ids()) == 4)
    assert len(await applied_writes(cluster, 1)) == 1


async def test_a_token_s_end_takes_its_signature_at_that_moment_without_the_cleaner(cluster: TokenCluster) -> None:
    time = VirtualTime(datetime(2026, 6, 1, tzinfo=UTC))
    cluster.publish()
    cluster.add("sgn011", expiration="2026-06-01T12:00:00Z")
    cluster.add("sgn012", expiration="2026-06-01T13:00:00Z")
    async with working(cluster.kubeconfig(), enabled=SIGNER, deps=time.deps) as told:
        await until(lambda: cluster.signed_ids() == {"sgn011", "sgn012"})
        await pass_hours(time, 11.9)
        assert len(told.signings) == 1
        await pass_hours(time, 0.1)
        await until(lambda: cluster.signed_ids() == {"sgn012"})
        await pass_hours(time, 1)
        await until(lambda: not cluster.signed_ids())
    assert cluster.has("bootstrap-token-sgn011")
    assert len(await applied_writes(cluster, 3)) == 3


async def pass_hours(time: VirtualTime, hours: float) -> None:
    """Let time pass in steps in which the controllers can set their next timer."""
    for _ in range(round(hours * 60)):
        time.advance(60)
        for _turn in range(4):
            await asyncio.sleep(0)
