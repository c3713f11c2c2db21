"""A ledger that changes while it is judged by, and two replicas at work on it: the compare-and-swap decides."""

from __future__ import annotations

import base64
import threading
from contextlib import ExitStack

from cryptography.hazmat.primitives.asymmetric import ec
from filing_requests import Wanted, ends, ends_at_last, file_request
from operator_commands import reset
from world import World
from write_gate import Call, Gate

from nodeattest_sandbox.apiserver.jsonvalue import maps_at, text_at


def test_a_reset_between_evaluation_and_write_makes_the_controller_evaluate_again(world: World) -> None:
    world.set_policy(authorizedAttestors=["insecure"])
    name, meddled = "meddled", threading.Event()

    def meddle(call: Call) -> bool:
        if call.method == "PATCH" and "/machineattestations/" in call.path and not meddled.is_set():
            meddled.set()
            reset(world, name, "at the worst moment")
        return True

    with ExitStack() as stack:
        gate = stack.enter_context(Gate(world.management))
        kubeconfig = gate.kubeconfig(world.management.admin_kubeconfig, world.directory / "meddled.kubeconfig")
        running = world.controller("--leader-elect", "false", kubeconfig=kubeconfig, log="meddled.log")
        stack.enter_context(running)
        world.await_service(running)
        world.machine(name)
        assert ends(file_request(world, Wanted(node=name))) == "issued"
        reset(world, name, "before")
        gate.before = meddle
        ends_at_last(world, lambda: Wanted(node=name), "issued")
        writes = [call for call in gate.calls if call.method == "PATCH" and "/machineattestations/" in call.path]
    spec = world.ledger(name)["spec"]
    assert meddled.is_set()
    assert len(writes) == 2
    assert [text_at(one, "reason") for one in maps_at(spec, "resets")] == ["before", "at the worst moment"]
    assert len(list(maps_at(spec, "issued"))) == 1


def test_two_replicas_at_work_at_once_certify_a_key_once_and_a_machine_once(world: World) -> None:
    world.set_policy(authorizedAttestors=["insecure"])
    with ExitStack() as stack:
        for number in range(2):  # no leader: both work on everything
            running = world.controller("--leader-elect", "false", log=f"both-{number}.log")
            stack.enter_context(running)
            world.await_service(running)
        token = world.token()
        for number in range(6):
            name = f"both-{number}"
            same = Wanted(node=name, key=ec.generate_private_key(ec.SECP256R1()))
            filed = [file_request(world, one, token=token) for one in (same, same, Wanted(node=name))]
            world.machine(name)  # wakes both replicas at once
            states = [ends(one) for one in filed]
            entries = list(maps_at(world.ledger(name), "spec", "issued"))
            published = {text_at(one.read(), "status", "certificate") for one in filed} - {""}
            for state in states:  # the loser is refused by the ledger, or closed as the winner's duplicate
                assert state in {"issued", "Denied:MachineAlreadyBound", "Denied:Superseded"}
            assert [state == "issued" for state in states] in ([True, True, False], [False, False, True])
            assert len(entries) == len(published) == 1
            assert {base64.b64decode(one).decode() for one in published} == {text_at(entries[0], "certificate")}
