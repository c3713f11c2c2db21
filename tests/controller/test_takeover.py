"""Two replicas, of which one loses the lead between its evaluation and its writes unawares: who is certified.

While the first replica's write of its record is on its way, the other one takes the lead and certifies another machine
with the same node name, key or TPM. How a Lease tells who has led: tests/kube/test_kube_elector.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from csr_world import CAPI, KEY, NODE, PROVIDER_ID, OneRound, World, attested, machine
from virtual import run_virtually, virtually

from nodeattest_controller.controllers.csr.reconciler import DONE, REQUEUE, Result
from nodeattest_controller.runtime.indexes import AttestationOrder
from nodeattest_kube.errors import Unreachable
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import NodeName, ProviderID
from nodeattest_sandbox.pki import ClusterPki

OTHER, OTHER_NODE = ProviderID("metal://rack-1/2"), NodeName("worker-2")
REASONS: Final = {"name": Reason.NODE_NAME_TAKEN, "key": Reason.KEY_REUSED, "hardware": Reason.MACHINE_AMBIGUOUS}
"""By what both machines have alike."""


class Stage:
    """Two replicas, two machines that should not both be certified, and what both ask for."""

    def __init__(self, pki: ClusterPki, same: str) -> None:
        self.one = World(pki, OneRound())
        self.two = World(pki, OneRound(), beside=self.one)
        self.same = same
        self.is_lost = False
        self.arrived, self.go_on = asyncio.Event(), asyncio.Event()
        keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
        self.host_names(NODE, None if same == "name" else OTHER_NODE)
        self.one.file("r-1", key=keys[0])
        node = NODE if same == "name" else OTHER_NODE
        self.one.file("r-2", node=node, provider_id=OTHER, key=keys[same != "key"])
        self.one.verifier.answer = attested(ek="sha256:one")
        second = attested(ek="sha256:one" if same == "hardware" else "sha256:two")
        self.two.verifier.answer = replace(second, provider_id=OTHER)

    def host_names(self, first: NodeName | None, second: NodeName | None) -> None:
        """Let both guests report host names; without one a machine is named after its object."""
        for number, (provider_id, name) in enumerate(((PROVIDER_ID, first), (OTHER, second)), 1):
            addresses: list[JsonValue] = [{"type": "Hostname", "address": name}] if name else []
            self.one.management_api.put(
                f"{CAPI}/machines/m-{number}", machine(f"m-{number}", provider_id, addresses=addresses)
            )

    def certified(self) -> set[str]:
        found = self.one.workload_api.objects.items()
        return {path.rpartition("/")[2] for path, csr in found if text(csr, "status", "certificate")}

    async def follow(self, name: str) -> Result:
        """Let the second replica reconcile a request, once it has seen what is written."""
        await self.two.settle()
        if name == "r-1":
            self.two.verifier.answer = self.one.verifier.answer
        return await self.two.reconcile(name)

    async def hold(self, method: str, path: str) -> None:
        """Hold the first write of a record."""
        if method == "POST" and "machineattestations" in path and not self.arrived.is_set():
            self.arrived.set()
            await self.go_on.wait()

    async def confirm(self) -> bool:
        """Hold the first confirmation, and tell that the lead was lost."""
        self.arrived.set()
        await self.go_on.wait()
        return not self.is_lost

    @asynccontextmanager
    async def taken_over(self) -> AsyncGenerator[asyncio.Task[Result]]:
        """Let the first replica reconcile ``r-1`` until it is held, and the second one lead; go on in the end."""
        async with self.one.running():
            await self.one.seen("r-1")
            working = asyncio.create_task(self.one.reconciler.reconcile(self.one.workload, "r-1"))
            await self.arrived.wait()
            self.is_lost = True
            async with self.two.running():
                if self.same == "name":
                    self.host_names(None, NODE)  # guests report what they like
                yield working
                self.go_on.set()
                await asyncio.gather(working, return_exceptions=True)


@pytest.mark.parametrize("confirms", [True, False])
@pytest.mark.parametrize("same", REASONS)
def test_a_record_that_lands_after_the_takeover_is_not_published(pki: ClusterPki, same: str, *, confirms: bool) -> None:
    async def main() -> None:
        stage = Stage(pki, same)
        stage.one.management_api.on_call = stage.hold
        if confirms:
            stage.one.confirm = stage.confirm
        async with stage.taken_over() as working:
            assert await stage.follow("r-2") == DONE
            assert stage.certified() == {"r-2"}
            stage.go_on.set()
            await asyncio.gather(working, return_exceptions=True)
            if not confirms:
                assert stage.certified() == {"r-1", "r-2"}  # what the confirmation is for
                return
            assert isinstance(working.exception(), Unreachable)
            assert stage.certified() == {"r-2"}
            assert len(stage.one.attestations()) == 2
            assert not stage.one.condition("Denied")  # by nobody who may not tell
            stage.host_names(NODE, None if same == "name" else OTHER_NODE)
            assert await stage.follow("r-1") == DONE
            assert stage.two.condition("Denied") == REASONS[same]
            assert stage.certified() == {"r-2"}

    run_virtually(main())


@pytest.mark.parametrize("same", REASONS)
def test_what_was_recorded_before_the_takeover_is_found_by_who_takes_over(pki: ClusterPki, same: str) -> None:
    async def main() -> None:
        stage = Stage(pki, same)
        stage.one.confirm = stage.confirm
        async with stage.taken_over() as working:
            assert await stage.follow("r-2") == DONE
            assert stage.two.condition("Denied", "r-2")
            stage.host_names(NODE, None)
            assert await stage.follow("r-1") == DONE  # from the record, which is nobody else's
            assert stage.certified() == {"r-1"}
        assert isinstance(working.exception(), Unreachable)
        assert len(stage.one.attestations()) == 1

    run_virtually(main())


@virtually
async def test_a_record_of_a_former_owner_is_not_published_while_another_machine_is_recorded(pki: ClusterPki) -> None:
    stage = Stage(pki, "name")
    one, two = stage.one, stage.two
    looked, look_on = asyncio.Event(), asyncio.Event()

    async def lost() -> bool:
        return False

    async def look(_method: str, path: str) -> None:
        if path.endswith(f"/nodes/{NODE}"):
            looked.set()
            await look_on.wait()

    one.confirm, one.management_api.on_call = lost, stage.hold
    async with one.running(), two.running():
        stage.host_names(None, NODE)
        await two.settle()
        await two.seen("r-2")
        second = asyncio.create_task(two.reconciler.reconcile(two.workload, "r-2"))
        await stage.arrived.wait()  # checked, and about to be recorded
        stage.host_names(NODE, None)
        await one.settle()
        with pytest.raises(Unreachable):
            await one.reconcile("r-1")  # the record of a former owner lands only now
        assert await stage.follow("r-1") == REQUEUE
        assert stage.certified() == set()
        two.workload_api.on_call = look
        evaluated = asyncio.create_task(stage.follow("r-1"))
        await looked.wait()  # when nobody else was recorded with the name
        stage.go_on.set()
        assert await second == DONE
        look_on.set()
        assert await evaluated == REQUEUE
        assert stage.certified() == {"r-2"}


# Answers about one record that come in another order than what they tell of: the newest stays in the index


@virtually
async def test_an_answer_from_before_a_record_was_made_does_not_hide_it(pki: ClusterPki) -> None:
    world = World(pki, OneRound())
    read, late = asyncio.Event(), asyncio.Event()

    async def hold_write(method: str, path: str) -> None:
        if method == "POST" and "/machineattestations" in path:
            await read.wait()

    async def hold_answer(path: str) -> None:
        if "/machineattestations/" in path and not read.is_set():
            read.set()
            await late.wait()

    addresses: list[JsonValue] = [{"type": "Hostname", "address": OTHER_NODE}]
    world.management_api.put(f"{CAPI}/machines/m-2", machine("m-2", OTHER, addresses=addresses))
    world.file("r-1")
    world.file("r-2")  # of the same machine
    world.file("r-3", node=OTHER_NODE, provider_id=OTHER)  # of another one, by the same TPM
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


def test_a_watch_that_lags_behind_our_own_writes_takes_nothing_back() -> None:
    indexed: dict[str, str] = {}
    order = AttestationOrder(lambda key, found: indexed.update({key: text(found, "metadata", "resourceVersion")}))

    def record(version: int) -> JsonObject:
        return {"metadata": {"uid": "u", "resourceVersion": str(version)}}

    for version, is_own, kept in (
        *((7, False, "7"), (9, True, "9"), (11, True, "11")),
        *((9, False, "11"), (10, False, "11"), (11, False, "11"), (12, False, "12")),
    ):
        if is_own:  # a write that is answered before anything else comes
            order.answered("fleet/a", order.known("fleet/a"), record(version))
        else:
            order.shown("fleet/a", record(version))
        assert indexed["fleet/a"] == kept
    order.shown("fleet/a", None)
    assert not indexed["fleet/a"]
