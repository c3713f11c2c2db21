"""Two replicas, of which one loses the lead between its evaluation and its writes unawares: who is certified.

The first replica's machine is suspended: its clock stands still, and what it sends about Leases hangs, while the write
of its record is on its way. Meanwhile the other replica takes the lead, by real electors on one API server in memory
and on virtual time, and certifies another machine with the same node name, key or TPM. Each case is run with the
confirmation and without it, which shows what it is for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final, cast

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from csr_world import CAPI, KEY, NODE, PROVIDER_ID, OneRound, World, attested, machine
from virtual import now, run_virtually

from nodeattest_controller.controllers.csr.reconciler import DONE, REQUEUE, Result
from nodeattest_controller.runtime.indexes import AttestationOrder
from nodeattest_kube.client import ApiClient
from nodeattest_kube.elector import LeaseElector
from nodeattest_kube.errors import Unreachable
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import NodeName, ProviderID
from nodeattest_sandbox.pki import ClusterPki

OTHER, OTHER_NODE = ProviderID("metal://rack-1/2"), NodeName("worker-2")
REASONS: Final = {
    "name": Reason.NODE_NAME_TAKEN,
    "key": Reason.KEY_REUSED,
    "hardware": Reason.MACHINE_AMBIGUOUS,
}


class Process:
    """What is suspended with a process: its clock, and its requests about Leases."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._awake = asyncio.Event()
        self._awake.set()
        self._stopped: float | None = None

    def suspend(self) -> None:
        self._stopped = now()
        self._awake.clear()

    def resume(self) -> None:
        """Go on; the clock is as it was for a while yet."""
        self._awake.set()

    def clock(self) -> float:
        return now() if self._stopped is None else self._stopped

    # What an elector asks of its client

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> JsonObject:
        await self._awake.wait()
        return await self._api.get(path, query)

    async def create(self, path: str, body: JsonObject) -> JsonObject:
        await self._awake.wait()
        return await self._api.create(path, body)

    async def replace(self, path: str, body: JsonObject) -> JsonObject:
        await self._awake.wait()
        return await self._api.replace(path, body)


class Leader:
    """Serves every cluster while it leads."""

    def __init__(self, process: Process, world: World, name: str) -> None:
        self._elector = LeaseElector(
            cast("ApiClient", process),
            namespace="nodeattest-system",
            name="controller",
            identity=name,
            clock=process.clock,
        )
        self._world = world
        self.serving = asyncio.Event()

    async def run(self) -> None:
        await self._elector.run(self._lead)

    async def _lead(self) -> None:
        async with self._world.running():
            self.serving.set()
            await asyncio.Event().wait()

    def may_act(self) -> bool:
        return self._elector.is_leader

    async def still_leads(self) -> bool:
        return await self._elector.still_leads()


@dataclass
class Replica:
    """One replica: its caches and reconciler, and how it comes to serve the cluster."""

    world: World
    process: Process
    leader: Leader
    task: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Wait for the cluster."""
        self.task = asyncio.create_task(self.leader.run())
        await self.leader.serving.wait()
        assert self.leader.may_act()
        assert await self.leader.still_leads()


class Stage:
    """Two replicas, two machines that should not both be certified, and what both ask for."""

    def __init__(self, pki: ClusterPki, *, confirms: bool) -> None:
        first = World(pki, OneRound())
        self.one, self.two = (
            self._replica(world, name, confirms=confirms)
            for world, name in ((first, "one"), (World(pki, OneRound(), beside=first), "two"))
        )
        self.api, self.workload = first.management_api, first.workload_api

    def _replica(self, world: World, name: str, *, confirms: bool) -> Replica:
        process = Process(world.management_api)
        leader = Leader(process, world, name)
        if confirms:
            world.confirm = leader.still_leads
        return Replica(world, process, leader)

    def both_ask_for(self, same: str) -> None:
        """File a request of each machine, for one node name, with one key, or by one TPM."""
        keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
        self.host_names(NODE, None if same == "name" else OTHER_NODE)
        file, node = self.one.world.file, NODE if same == "name" else OTHER_NODE
        file("r-1", key=keys[0])
        file("r-2", node=node, provider_id=OTHER, key=keys[0] if same == "key" else keys[1])
        self.one.world.verifier.answer = attested(ek="sha256:one")
        second = attested(ek="sha256:one" if same == "hardware" else "sha256:two")
        self.two.world.verifier.answer = replace(second, provider_id=OTHER)

    def host_names(self, first: NodeName | None, second: NodeName | None) -> None:
        """Let both guests report host names; without one a machine is named after its object."""
        for number, (provider_id, name) in enumerate(((PROVIDER_ID, first), (OTHER, second)), 1):
            addresses: list[JsonValue] = [{"type": "Hostname", "address": name}] if name else []
            self.api.put(f"{CAPI}/machines/m-{number}", machine(f"m-{number}", provider_id, addresses=addresses))

    def certified(self) -> set[str]:
        """Name the requests with a certificate."""
        found = self.workload.objects.items()
        return {path.rpartition("/")[2] for path, csr in found if text(csr, "status", "certificate")}

    async def follow(self, name: str) -> Result:
        """Let the second replica reconcile a request, once it has seen what is written."""
        world = self.two.world
        await world.settle()
        if name == "r-1":
            world.verifier.answer = self.one.world.verifier.answer
        return await world.reconcile(name)

    @asynccontextmanager
    async def lost_while(self, method: str, part: str, *, after: bool = False) -> AsyncGenerator[asyncio.Task[object]]:
        """Let the first replica reconcile ``r-1``, and lose the lead at a request; hold that until the end.

        ``after``: the request is carried out, and the replica is suspended before it does anything more.
        """
        arrived, go_on = asyncio.Event(), asyncio.Event()

        async def hold(called: str, path: str) -> None:
            if called == method and part in path and not arrived.is_set():
                arrived.set()
                await go_on.wait()

        await self.one.serve()
        reconcile = self.one.world.reconciler.reconcile
        await self.one.world.seen("r-1")
        if after:
            confirm = self.one.world.confirm

            async def held() -> bool:
                arrived.set()
                await go_on.wait()
                return await confirm()

            self.one.world.confirm = held
        else:
            self.api.on_call = self.workload.on_call = hold
        working = asyncio.create_task(reconcile(self.one.world.workload, "r-1"))
        await arrived.wait()
        self.one.process.suspend()
        await self.two.serve()
        assert self.one.leader.may_act()  # by its clock, so that its guards let it send
        yield working
        self.one.process.resume()
        go_on.set()
        await asyncio.gather(working, return_exceptions=True)

    async def end(self) -> None:
        """End both replicas."""
        tasks = [replica.task for replica in (self.one, self.two) if replica.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


SAME: Final = pytest.mark.parametrize("same", ["name", "key", "hardware"])


@pytest.mark.parametrize("confirms", [True, False])
@SAME
def test_a_record_that_lands_after_the_takeover_is_not_published(pki: ClusterPki, same: str, *, confirms: bool) -> None:
    async def main() -> None:
        stage = Stage(pki, confirms=confirms)
        stage.both_ask_for(same)
        async with stage.lost_while("POST", "machineattestations") as working:
            if same == "name":
                stage.host_names(None, NODE)  # guests report what they like
            assert await stage.follow("r-2") == DONE
            assert stage.certified() == {"r-2"}
        if not confirms:
            assert stage.certified() == {"r-1", "r-2"}  # what the confirmation is for
        else:
            assert isinstance(working.exception(), Unreachable)
            assert stage.certified() == {"r-2"}
            assert len(stage.one.world.attestations()) == 2
            assert not stage.one.world.condition("Denied")  # by nobody who may not tell
            stage.host_names(NODE, None if same == "name" else OTHER_NODE)
            assert await stage.follow("r-1") == DONE
            assert stage.two.world.condition("Denied") == REASONS[same]
            assert stage.certified() == {"r-2"}
        await stage.end()

    run_virtually(main())


@SAME
def test_what_was_recorded_before_the_takeover_is_found_by_who_takes_over(pki: ClusterPki, same: str) -> None:
    async def main() -> None:
        stage = Stage(pki, confirms=True)
        stage.both_ask_for(same)
        async with stage.lost_while("", "", after=True) as working:
            if same == "name":
                stage.host_names(None, NODE)
            assert await stage.follow("r-2") == DONE
            assert stage.two.world.condition("Denied", "r-2")
            stage.host_names(NODE, None)
            assert await stage.follow("r-1") == DONE  # from the record, which is nobody else's
            assert stage.certified() == {"r-1"}
        assert isinstance(working.exception(), Unreachable)
        assert len(stage.one.world.attestations()) == 1
        await stage.end()

    run_virtually(main())


# Answers about one record that come in another order than what they tell of: the newest stays in the index


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
            assert await first == DONE
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
