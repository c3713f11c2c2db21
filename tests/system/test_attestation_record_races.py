"""A ledger that changes while it is judged by, and two replicas at work on it: the compare-and-swap decides."""

from __future__ import annotations

import base64
from contextlib import ExitStack

from cryptography.hazmat.primitives.asymmetric import ec
from filing_requests import Wanted, ends, file_request
from world import World

from nodeattest_sandbox.apiserver.jsonvalue import maps_at, text_at


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
