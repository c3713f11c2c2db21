"""Kill -9 of the controller after it wrote its verdict down: the next one asks the Compute API again and goes on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from gcp_fleet import PROJECT, GcpFleet
from killed_controller import Killer
from world import World
from write_gate import Gate

from nodeattest_sandbox.apiserver.jsonvalue import maps_at, text_at
from nodeattest_sandbox.clouds.gcp.cloud import GoogleCloud

pytestmark = pytest.mark.swtpm


@pytest.mark.parametrize("write", ["ledger", "approve"])
def test_a_controller_killed_after_its_verdict_ends_in_one_certificate(
    world: World, tmp_path: Path, write: str
) -> None:
    with ExitStack() as stack:
        machines = GcpFleet(world, stack.enter_context(GoogleCloud(tmp_path / "gcp")), (PROJECT,))
        machines.authorize()
        management, workload = (stack.enter_context(Gate(plane)) for plane in (world.management, world.workload))
        routed = workload.kubeconfig(world.workload.admin_kubeconfig, tmp_path / "workload.kubeconfig")
        world.route_workload(routed.read_bytes())
        stack.callback(world.route_workload, world.workload.admin_kubeconfig.read_bytes())
        gated = management.kubeconfig(world.management.admin_kubeconfig, tmp_path / "management.kubeconfig")
        crashing = world.controller(*machines.flags("crash.json"), kubeconfig=gated, log=f"gcp-{write}.log")
        killer = Killer.of(world, crashing, write, "after")
        for gate in (management, workload):
            gate.before, gate.after = killer.passes("before"), killer.passes("after")
        instance = machines.launch(f"gcp-killed-{write}")
        stack.enter_context(crashing)
        world.await_service(crashing)
        pool = stack.enter_context(ThreadPoolExecutor(1))
        joining = pool.submit(machines.agent(instance).join, world.token())
        assert killer.done.wait(60), joining.result(60).stderr
        crashing.start()
        joined = joining.result(60)
        assert joined.returncode == 0, joined.stderr
    assert len(list(maps_at(world.ledger(f"gcp-killed-{write}"), "spec", "issued"))) == 1
    published = {text_at(one, "status", "certificate") for one in world.requests_of(instance.name)} - {""}
    assert len(published) == 1
