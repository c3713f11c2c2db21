"""The token controllers when the API server, the way to it or somebody else gets between them and their write."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from polling import until
from token_world import CLEANER, SIGNER, TokenCluster, applied_writes, working
from write_gate import Call, Gate

from nodeattest_discovery import clusterinfo
from nodeattest_kube.errors import Conflict, Unreachable
from nodeattest_sandbox.control_plane import ControlPlane


@pytest.fixture
def cluster(control_plane: ControlPlane) -> Iterator[TokenCluster]:
    made = TokenCluster(control_plane)
    made.clean()
    yield made
    made.clean()


@pytest.fixture
def gate(control_plane: ControlPlane) -> Iterator[Gate]:
    with Gate(control_plane) as made:
        yield made


class Times:
    """Says yes so many times, to calls of one method."""

    def __init__(self, method: str, count: int) -> None:
        self._method = method
        self.left = count

    def __call__(self, call: Call) -> bool:
        if call.method != self._method or self.left <= 0:
            return False
        self.left -= 1
        return True


async def test_a_lost_race_for_cluster_info_is_run_again_on_what_stands_there_now(
    cluster: TokenCluster, gate: Gate
) -> None:
    hit = Times("PUT", 1)

    def overtake(call: Call) -> bool:
        if hit(call):
            cluster.edit(note="written in between")
        return True

    gate.before = overtake
    cluster.publish()
    cluster.add("flt002")
    path = gate.kubeconfig(cluster.kubeconfig(), cluster.kubeconfig().with_suffix(".gated"))
    async with working(path, enabled=SIGNER) as told:
        await until(lambda: cluster.signed_ids() == {"flt002"})
    assert cluster.info()["note"] == "written in between"
    assert [type(error) for _, error in told.failures] == [Conflict]
    await until(lambda: [entry.code for entry in cluster.writes()] == [409, 200])


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_write_whose_answer_is_lost_is_looked_up_before_it_is_made_again(
    cluster: TokenCluster, gate: Gate, moment: str
) -> None:
    hit = Times("PUT", 2)  # the HTTP client itself asks twice

    def passes(call: Call) -> bool:
        return not hit(call)

    if moment == "before":
        gate.before = passes
    else:
        gate.after = passes
    cluster.publish()
    cluster.add("flt003")
    path = gate.kubeconfig(cluster.kubeconfig(), cluster.kubeconfig().with_suffix(".gated"))
    async with working(path, enabled=SIGNER) as told:
        await until(lambda: told.failures)
        await until(lambda: cluster.signed_ids() == {"flt003"})
        await until(lambda: [call for call in gate.calls if call.path == clusterinfo.PATH and not call.is_write])
        await told.worked_off()
    assert isinstance(told.failures[0][1], Unreachable)
    assert [entry.code for entry in await applied_writes(cluster, 1)].count(200) == 1


@pytest.mark.parametrize("what", ["made anew", "prolonged"])
async def test_a_token_that_changed_between_decision_and_delete_is_decided_again(
    cluster: TokenCluster, gate: Gate, what: str
) -> None:
    hit = Times("DELETE", 1)

    def change(call: Call) -> bool:
        if hit(call) and what == "made anew":
            cluster.remove("flt006")
            cluster.add("flt006", expiration="2999-01-01T00:00:00Z")
        elif hit.left == 0 and call.method == "DELETE":
            cluster.prolong("flt006", "2999-01-01T00:00:00Z")
        return True

    gate.before = change
    cluster.add("flt006", expiration="2020-01-01T00:00:00Z")
    path = gate.kubeconfig(cluster.kubeconfig(), cluster.kubeconfig().with_suffix(".gated"))
    async with working(path, enabled=CLEANER) as told:
        await until(lambda: [entry.code for entry in cluster.writes()] == [409])
        cluster.add("flt016", expiration="2020-01-01T00:00:00Z")
        await until(lambda: told.names)  # the watch told before what became of the first
        await told.worked_off()
        assert [entry.name for entry in await applied_writes(cluster, 1)] == ["bootstrap-token-flt016"]
        assert len(cluster.writes()) == 2
    assert cluster.has("bootstrap-token-flt006")
    assert told.names == ["bootstrap-token-flt016"]
    assert not told.failures


async def test_two_signers_at_once_settle(cluster: TokenCluster) -> None:
    cluster.publish()
    async with working(cluster.kubeconfig()) as one, working(cluster.kubeconfig()) as other:
        for number in range(10):
            cluster.add(f"flt1{number:02d}")
        await until(lambda: len(cluster.signed_ids()) == 10)
        await one.worked_off()
        await other.worked_off()
        settled = len(cluster.writes())
        cluster.add("flt110")
        await until(lambda: len(cluster.signed_ids()) == 11)
        await one.worked_off()
        await other.worked_off()
        assert len(cluster.writes()) <= settled + 2  # one wrote, the other lost the race at most
    assert settled <= 2 * 10 + 4
