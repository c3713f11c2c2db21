"""What changes between judgement and write: the write must not land on something that was never judged."""

from __future__ import annotations

import threading
from contextlib import ExitStack

from filing_requests import Filed, Wanted, file_request
from polling import eventually
from world import CSRS, NAMESPACE, World
from write_gate import Call, Gate

from nodeattest_sandbox.apiserver.jsonvalue import text_at


def test_a_request_created_again_between_evaluation_and_approval_is_evaluated_itself(world: World) -> None:
    world.set_policy(authorizedAttestors=["insecure"])
    swapped, once = threading.Event(), threading.Lock()
    with ExitStack() as stack:
        gate = stack.enter_context(Gate(world.workload))
        through = gate.kubeconfig(world.workload.admin_kubeconfig, world.directory / "races.kubeconfig")
        world.route_workload(through.read_bytes())
        stack.callback(world.route_workload, world.workload.admin_kubeconfig.read_bytes())
        controller = stack.enter_context(world.controller("--leader-elect", "false", log="races.log"))
        world.await_service(controller)
        world.machine("swap")
        token = world.token()

        def swap(call: Call) -> bool:
            if not call.path.endswith("/to-be-swapped/approval"):  # others may be left by other tests
                return True
            with once:
                if not swapped.is_set():
                    world.workload_admin.delete(f"{CSRS}/to-be-swapped")
                    victim = Wanted(node="victim", provider_id="sandbox://swap")
                    file_request(world, victim, token=token, name="to-be-swapped")
                    swapped.set()
            return True

        gate.before = swap
        filed = file_request(world, Wanted(node="swap"), token=token, name="to-be-swapped")
        assert swapped.wait(60)
        eventually(filed.state, what="the judgement of the other request")
        assert filed.state() == "Denied:MachineAlreadyBound"  # by the one that was judged first


def test_a_machine_that_is_deleted_between_evaluation_and_issue_gets_no_certificate(world: World) -> None:
    world.set_policy(authorizedAttestors=["insecure"])
    with world.controller("--leader-elect", "false", log="gone.log") as controller:
        world.await_service(controller)
        machine = world.machine("gone")
        path = f"/apis/{text_at(machine.machine, 'apiVersion')}/namespaces/{NAMESPACE}/machines/gone"
        world.admin.patch(path, {"metadata": {"finalizers": ["tests.example/hold"]}})
        world.admin.delete(path)
        filed: Filed = file_request(world, Wanted(node="gone"))
        eventually(filed.state, what="the denial")
        assert filed.state() == "Denied:MachineDeleting"
        world.admin.patch(path, {"metadata": {"finalizers": []}})
