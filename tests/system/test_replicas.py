"""Two replicas: one leads, the other takes over when it is killed, and requests are answered once."""

from __future__ import annotations

import base64
from contextlib import ExitStack

from cryptography.hazmat.primitives.asymmetric import ec
from filing_requests import Wanted, ends, file_request
from polling import eventually
from world import NAMESPACE, World

from nodeattest_sandbox.apiserver.jsonvalue import maps_at, text_at


def test_a_second_replica_takes_over_when_the_leader_is_killed(world: World) -> None:
    world.set_policy(authorizedAttestors=["insecure"])
    with ExitStack() as stack:
        first, second = (world.controller(log=f"replica-{n}.log") for n in range(2))
        stack.enter_context(first)
        world.await_service(first)
        stack.enter_context(second)
        world.machine("before")
        filed = file_request(world, Wanted(node="before"))
        eventually(lambda: filed.state() == "issued", what="the leader's certificate")
        assert second.said("connected") is None

        first.kill()
        world.machine("after")
        filed = file_request(world, Wanted(node="after"))
        eventually(lambda: filed.state() == "issued", what="the successor's certificate")
        assert len(list(maps_at(world.ledger("before"), "spec", "issued"))) == 1


def test_a_denial_is_told_to_operators_with_what_was_expected_and_found(world: World) -> None:
    world.set_policy(authorizedAttestors=["insecure"])
    world.machine("told")
    with world.controller("--leader-elect", "false", log="told.log") as running:
        world.await_service(running)
        filed = file_request(world, Wanted(node="somebody", provider_id="sandbox://told"))
        assert ends(filed) == "Denied:NodeNameMismatch"
        events = f"/api/v1/namespaces/{NAMESPACE}/events"
        event = eventually(
            lambda: next((e for e in world.admin.list(events) if filed.name in text_at(e, "message")), None),
            what="the Event",
        )
    subject = text_at(event, "involvedObject", "kind"), text_at(event, "involvedObject", "name")
    assert (text_at(event, "reason"), subject) == ("NodeNameMismatch", ("Machine", "told"))
    assert "expected told" in text_at(event, "message")
    assert "told" not in text_at(next(maps_at(filed.read(), "status", "conditions")), "message")


# A ledger that changes while it is judged by, and two replicas at work on it: the compare-and-swap decides


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
