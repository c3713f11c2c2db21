"""Kill -9 of the controller around each of its writes: every request ends right, and no key is certified twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Literal

import pytest
from gate import Call, Gate
from world import Controller, World, eventually

from nodeattest_sandbox.apiserver.jsonvalue import map_at, maps_at, text_at

Moment = Literal["before", "after"]
FLAGS = ("--leader-elect", "false")
WRITES = ("publish", "ledger", "approve", "certificate", "close", "event")
"""The controller's writes in a join with a TPM, in the order in which they are made."""


def which(call: Call) -> str:
    """Name one of the controller's writes."""
    if not call.is_write:
        return ""
    if call.path.endswith("/approval"):
        return "approval"
    if call.path.endswith("/status"):
        return "certificate"
    if "/machineattestations" in call.path:
        return "ledger"
    if call.path.endswith("/events"):
        return "event"
    return "publish" if "/certificatesigningrequests/" in call.path else ""


@dataclass
class Killer:
    """Kills the controller once, before or after a named write."""

    controller: Controller
    write: str
    moment: Moment
    done: threading.Event = field(default_factory=threading.Event)
    _approvals: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def passes(self, moment: Moment) -> Callable[[Call], bool]:
        """Make the gate's callback for a moment."""

        def decide(call: Call) -> bool:
            with self._lock:
                if moment != self.moment or self.done.is_set() or self._name(call) != self.write:
                    return True
                self.controller.kill()
                self.done.set()
                return False

        return decide

    def _name(self, call: Call) -> str:
        name = which(call)
        if name != "approval":
            return name
        self._approvals += 1
        return "approve" if self._approvals == 1 else "close"


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
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("write", WRITES)
def test_a_join_survives_the_controllers_death_around_a_write(
    world: World, gates: tuple[Gate, Gate], write: str, moment: Moment
) -> None:
    management, workload = gates
    name = f"crash-{write}-{moment}"
    tpm = world.tpm(name)
    world.machine(name, tpm=tpm)
    kubeconfig = management.kubeconfig(world.management.admin_kubeconfig, world.directory / "gated.kubeconfig")
    controller = world.controller(*FLAGS, kubeconfig=kubeconfig, log=f"{name}.log")
    killer = Killer(controller, write, moment)
    for gate in gates:
        gate.before, gate.after = killer.passes("before"), killer.passes("after")
    with controller, ThreadPoolExecutor(1) as pool:
        world.await_service(controller)
        agent = world.agent(name, "tpm", tcti=tpm.tcti)
        joining = pool.submit(agent.join, world.token())
        assert killer.done.wait(20), f"no write {write!r}: {joining.result(60).stderr}"
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
