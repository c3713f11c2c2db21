"""Answers about one record that come in another order than what they tell of: the newest stays in the index."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from csr_world import CAPI, KEY, NODE, OWN, PROVIDER_ID, OneRound, World, attested, machine
from fake_api import FakeApi
from virtual import run_virtually

from nodeattest_controller.controllers.csr.reconciler import DONE, REQUEUE
from nodeattest_controller.runtime.attestation_order import AttestationOrder
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_kube.client import ApiError, Conflict
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.errors import Reason
from nodeattest_providers.names import NodeName, ProviderID
from nodeattest_sandbox.pki import ClusterPki

OTHER, OTHER_NODE = ProviderID("metal://rack-1/2"), NodeName("worker-2")


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> ClusterPki:
    return ClusterPki.make(tmp_path_factory.mktemp("pki"), "blue")


def file_requests(world: World) -> None:
    """Two requests of one machine, and one of another machine whose proof is by the same TPM."""
    world.management_api.put(
        f"{CAPI}/machines/m-2", machine("m-2", OTHER, addresses=[{"type": "Hostname", "address": OTHER_NODE}])
    )
    for name in ("r-1", "r-2"):
        world.file(name, key=ec.generate_private_key(ec.SECP256R1()))
    world.file("r-3", node=OTHER_NODE, provider_id=OTHER, key=ec.generate_private_key(ec.SECP256R1()))


def test_an_answer_from_before_a_record_was_made_does_not_hide_it(pki: ClusterPki) -> None:
    async def main() -> None:
        world = World(pki, OneRound())
        read, late = asyncio.Event(), asyncio.Event()

        async def hold_write(method: str, path: str) -> None:
            if method == "POST" and "/machineattestations" in path:
                await read.wait()

        async def hold_answer(path: str) -> None:
            if "/machineattestations/" in path and not read.is_set():
                read.set()
                await late.wait()

        file_requests(world)
        async with world.running():
            world.management_api.on_call, world.management_api.on_answer = hold_write, hold_answer
            first = asyncio.create_task(world.reconcile("r-1"))
            await world.settle()
            second = asyncio.create_task(world.reconcile("r-2"))  # finds the name reserved, and reads the record anew
            assert (await first).requeue_keys == ("r-2",)
            await world.settle()  # the watch, too, has shown the record
            late.set()
            assert await second == REQUEUE
            known = world.management.inventory.attestation(KEY, PROVIDER_ID)
            assert known is not None
            assert known.node_name == NODE
            world.verifier.answer = replace(attested(), provider_id=OTHER)
            assert await world.reconcile("r-3") == DONE
            assert world.condition("Denied", "r-3") == Reason.MACHINE_AMBIGUOUS

    run_virtually(main())


class Index:
    """What an index of one record has."""

    def __init__(self) -> None:
        self.order = AttestationOrder(self._put)
        self.version = ""

    def _put(self, key: str, attestation: JsonObject | None) -> None:
        assert key == "fleet/a"
        meta = (attestation or {}).get("metadata")
        self.version = str(meta["resourceVersion"]) if isinstance(meta, dict) else ""

    def show(self, version: int | None, uid: str = "u") -> str:
        """Let the watch show a version, or the end; returns the version that is kept then."""
        self.order.shown("fleet/a", _record(version, uid))
        return self.version

    def write(self, version: int, uid: str = "u") -> str:
        """Let a write be answered before anything else comes."""
        self.order.answered("fleet/a", self.order.known("fleet/a"), _record(version, uid))
        return self.version


def _record(version: int | None, uid: str) -> JsonObject | None:
    return None if version is None else {"metadata": {"uid": uid, "resourceVersion": str(version)}}


def test_a_watch_that_lags_behind_our_own_writes_takes_nothing_back() -> None:
    index = Index()
    assert index.show(7) == "7"
    assert index.write(9) == "9"
    assert index.write(11) == "11"
    assert index.show(9) == "11"
    assert index.show(10) == "11"
    assert index.show(11) == "11"
    assert index.show(12) == "12"
    assert not index.show(None)


def test_the_end_of_a_predecessor_is_not_that_of_a_record_made_anew() -> None:
    index = Index()
    index.show(7)
    index.order.answered("fleet/a", ("u", "7"), None)  # a write found it gone
    assert index.write(9, "v") == "9"
    assert index.write(10, "v") == "10"
    assert index.show(None) == "10"
    assert index.show(9, "v") == "10"
    assert index.show(10, "v") == "10"
    assert not index.show(None)


def test_a_record_that_ends_before_the_watch_showed_our_write_has_ended() -> None:
    index = Index()
    index.show(7)
    index.write(9)
    assert not index.show(None)


@pytest.mark.parametrize("answer", [8, None])
def test_an_answer_that_the_watch_overtook_is_not_taken_in(answer: int | None) -> None:
    index = Index()
    index.show(7)
    before = index.order.known("fleet/a")
    index.show(9)
    index.order.answered("fleet/a", before, _record(answer, "u"))
    assert index.version == "9"
    assert index.show(10) == "10"


def test_a_server_that_was_set_back_is_followed_from_its_next_answer_on() -> None:
    index = Index()
    index.show(7)
    index.write(9)
    assert index.show(5) == "9"
    assert index.write(5) == "5"  # a read, after a conflict
    assert index.show(6) == "6"


def test_who_takes_a_cluster_over_does_so_by_a_complete_index_and_not_by_the_cache_before_it() -> None:
    async def main() -> None:
        api, count = FakeApi(), 1000
        api.documents["/apis/cluster.x-k8s.io"] = {"preferredVersion": {"version": "v1beta1"}}
        for number in range(count):
            meta: JsonObject = {"name": f"a-{number}", "namespace": "fleet"}
            meta["labels"] = {"cluster.x-k8s.io/cluster-name": "blue"}
            spec: JsonObject = {"clusterName": "blue", "providerID": f"metal://{number}", "nodeName": f"n-{number}"}
            api.put(f"{OWN}/machineattestations/a-{number}", {"metadata": meta, "spec": spec})
        management = ManagementCache(api, namespace=None, on_change=lambda _key, _ids: None)
        running = asyncio.create_task(management.run(asyncio.Event()))
        while not api.count("LIST", "machineattestations"):
            await asyncio.sleep(0)
        with pytest.raises(Conflict):
            await management.check_ledgers(KEY)
        while len(management.inventory.attestations_of(KEY)) < count:
            await asyncio.sleep(0)
        await management.check_ledgers(KEY)
        assert len(management.inventory.attestations_of(KEY)) == count
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run_virtually(main())


def test_a_cluster_whose_ledgers_find_no_room_is_refused_at_once() -> None:
    async def main() -> None:
        api = FakeApi()
        api.documents["/apis/cluster.x-k8s.io"] = {"preferredVersion": {"version": "v1beta1"}}
        meta: JsonObject = {"name": "a", "namespace": "fleet", "annotations": {"large": "x" * 200_000}}
        meta["labels"] = {"cluster.x-k8s.io/cluster-name": "blue"}
        api.put(f"{OWN}/machineattestations/a", {"metadata": meta, "spec": {"clusterName": "blue"}})
        management = ManagementCache(api, namespace=None, on_change=lambda _key, _ids: None, memory=4 << 20)
        ready = asyncio.Event()
        running = asyncio.create_task(management.run(ready))
        await ready.wait()
        with pytest.raises(ApiError, match="no room for all MachineAttestations of namespace fleet"):
            await management.check_ledgers(KEY)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run_virtually(main())
