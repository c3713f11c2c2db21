"""Kill -9 of the controller after it wrote its verdict down: STS would not confirm the signature a second time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from aws_fleet import authorized_fleet
from killed_controller import Killer
from world import World
from write_gate import Gate

from nodeattest_sandbox.apiserver.jsonvalue import maps_at, text_at
from nodeattest_sandbox.clouds.aws.cloud import SandboxAws


@pytest.mark.parametrize("write", ["ledger", "approve"])
def test_a_controller_killed_after_its_verdict_ends_in_one_certificate_without_asking_sts_again(
    world: World, aws: SandboxAws, tmp_path: Path, write: str
) -> None:
    with ExitStack() as stack:
        machines = stack.enter_context(authorized_fleet(world, aws))
        stack.callback(aws.answer, "sts", "up")
        management, workload = (stack.enter_context(Gate(plane)) for plane in (world.management, world.workload))
        routed = workload.kubeconfig(world.workload.admin_kubeconfig, tmp_path / "workload.kubeconfig")
        world.route_workload(routed.read_bytes())
        stack.callback(world.route_workload, world.workload.admin_kubeconfig.read_bytes())
        gated = management.kubeconfig(world.management.admin_kubeconfig, tmp_path / "management.kubeconfig")
        crashing = world.controller(*machines.flags("crash.json"), kubeconfig=gated, log=f"aws-{write}.log")
        killer = Killer.of(world, crashing, write, "after")
        for gate in (management, workload):
            gate.before, gate.after = killer.passes("before"), killer.passes("after")
        instance = machines.launch(f"aws-killed-{write}")
        stack.enter_context(crashing)
        world.await_service(crashing)
        pool = stack.enter_context(ThreadPoolExecutor(1))
        joining = pool.submit(machines.agent(instance).join, world.token())
        assert killer.done.wait(60), joining.result(60).stderr
        aws.answer("sts", "down")
        crashing.start()
        joined = joining.result(60)
        assert joined.returncode == 0, joined.stderr
    assert len(list(maps_at(world.ledger(f"aws-killed-{write}"), "spec", "issued"))) == 1
    published = {text_at(one, "status", "certificate") for one in world.requests_of(instance.private_dns)} - {""}
    assert len(published) == 1
