"""What a join costs in API requests: counted, because counts do not depend on the machine."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from polling import eventually
from world import World
from write_gate import Call, Gate

NODE_LIMIT = 4
"""File, watch, answer, watch."""
CONTROLLER_LIMIT = 10
"""Read configuration; publish; read first request, Machine, Node; ledger, approve, certificate, close; Event."""


def counted(calls: list[Call]) -> list[str]:
    """Return the calls that a join causes; watches, leases and what runs by the clock are not its own."""
    by_the_clock = ("/leases/", "/secrets/node-attestation-challenge-keys", "/namespaces/kube-system/secrets")
    return [f"{call.method} {call.path}" for call in calls if not any(part in call.path for part in by_the_clock)]


def closed(world: World, name: str) -> bool:
    """Tell whether the first request of a join was denied, after the second was answered."""
    return any(world.denial(one) == "Superseded" for one in world.requests_of(name))


@pytest.mark.swtpm
def test_a_join_with_a_tpm_costs_four_requests_on_the_node_and_ten_in_the_controller(world: World) -> None:
    world.set_policy(authorizedAttestors=["tpm"], tokenBinding="Required")
    with ExitStack() as stack:
        management, workload, node = (
            stack.enter_context(Gate(plane)) for plane in (world.management, world.workload, world.workload)
        )
        through = workload.kubeconfig(world.workload.admin_kubeconfig, world.directory / "costs-workload.kubeconfig")
        world.route_workload(through.read_bytes())
        stack.callback(world.route_workload, world.workload.admin_kubeconfig.read_bytes())
        kubeconfig = management.kubeconfig(world.management.admin_kubeconfig, world.directory / "costs.kubeconfig")
        controller = world.controller(
            "--leader-elect", "false", "--controllers", "attestation", kubeconfig=kubeconfig, log="costs.log"
        )
        with controller:
            world.await_service(controller)
            for name in ("costs-0", "costs-1"):  # the first join fills caches that the second finds full
                tpm = world.tpm(name)
                token = world.token()
                world.machine(name, tpm=tpm, bootstrap_token=token)
                for gate in (management, workload, node):
                    gate.calls.clear()
                agent = world.agent(name, "tpm", server=node.server, tcti=tpm.tcti)
                joined = agent.join(token)
                assert joined.returncode == 0, joined.stderr
                eventually(lambda name=name: closed(world, name), what="the controller's last write")
            asked = counted(node.calls)
            did = counted(management.calls) + counted(workload.calls)
    assert len(asked) <= NODE_LIMIT, asked
    assert len(did) <= CONTROLLER_LIMIT, did
