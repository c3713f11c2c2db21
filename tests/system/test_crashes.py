"""Kill -9 of the controller around writes of a join: every request ends right, and no key is certified twice.

Around each write, in process: ``test_a_death_around_any_write_ends_in_the_one_certificate_of_the_key``.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from killed_controller import Killer, Moment
from polling import eventually
from world import World
from write_gate import Gate

from nodeattest_sandbox.apiserver.jsonvalue import map_at, maps_at, text_at

FLAGS = ("--leader-elect", "false")
DEATHS: tuple[tuple[str, Moment], ...] = (
    ("publish", "after"), ("ledger", "after"), ("approve", "after"), ("certificate", "before"),
)  # fmt: skip
"""A death after each write but the last of a join with a TPM, and before the one that ends it."""


@pytest.fixture(scope="module")
def gates(world: World) -> Iterator[tuple[Gate, Gate]]:
    world.set_policy(authorizedAttestors=["tpm"])
    with ExitStack() as stack:
        management, workload = (stack.enter_context(Gate(plane)) for plane in (world.management, world.workload))
        kubeconfig = workload.kubeconfig(world.workload.admin_kubeconfig, world.directory / "gated-workload.kubeconfig")
        world.route_workload(kubeconfig.read_bytes())
        yield management, workload
        world.route_workload(world.workload.admin_kubeconfig.read_bytes())


@pytest.mark.swtpm
@pytest.mark.parametrize(("write", "moment"), DEATHS)
def test_a_join_survives_the_controllers_death_around_a_write(
    world: World, gates: tuple[Gate, Gate], write: str, moment: Moment
) -> None:
    management, workload = gates
    name = f"crash-{write}-{moment}"
    tpm = world.tpm(name)
    world.machine(name, tpm=tpm)
    kubeconfig = management.kubeconfig(world.management.admin_kubeconfig, world.directory / "gated.kubeconfig")
    controller = world.controller(*FLAGS, kubeconfig=kubeconfig, log=f"{name}.log")
    killer = Killer.of(world, controller, write, moment)
    for gate in gates:
        gate.before, gate.after = killer.passes("before"), killer.passes("after")
    with controller, ThreadPoolExecutor(1) as pool:
        world.await_service(controller)
        agent = world.agent(name, "tpm", tcti=tpm.tcti)
        joining = pool.submit(agent.join, world.token())
        assert killer.done.wait(60), f"no write {write!r}: {joining.result(60).stderr}"
        controller.start()
        joined = joining.result(60)
        assert joined.returncode == 0, joined.stderr
        assert_one_certificate(world, name)
        eventually(lambda: not open_requests(world, name), what="the end of every request")
    assert workload.calls


def assert_one_certificate(world: World, name: str) -> None:
    """One ledger entry, and every certificate published for the node is that entry's."""
    entries = list(maps_at(world.ledger(name), "spec", "issued"))
    assert len(entries) == 1
    published = {
        text_at(one, "status", "certificate")
        for one in world.requests_of(name)
        if map_at(one, "status").get("certificate")
    }
    assert len(published) == 1


def open_requests(world: World, name: str) -> list[str]:
    """Requests of a node that nobody decided yet."""
    return [
        text_at(one, "metadata", "name")
        for one in world.requests_of(name)
        if not map_at(one, "status").get("conditions")
    ]
