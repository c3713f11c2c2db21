"""A stolen bootstrap token is worth one machine, even where the provider proves nothing."""

from __future__ import annotations

from filing_requests import Wanted, ends, file_request
from polling import eventually
from world import World


def test_an_insecure_machine_joins_by_its_own_token_and_by_no_other_machines(world: World) -> None:
    world.set_policy(authorizedAttestors=["insecure"], tokenBinding="Required")
    mine, stolen = world.token(), world.token()
    world.machine("bound", bootstrap_token=mine)
    world.machine("robbed", bootstrap_token=stolen)
    with world.controller("--leader-elect", "false", log="binding.log") as controller:
        world.await_service(controller)
        thief = file_request(world, Wanted(node="bound"), token=stolen)
        assert ends(thief) == "Denied:TokenNotThisMachines"
        assert mine[:6] not in str(thief.read()["status"])
        for name, token in (("bound", mine), ("robbed", stolen)):
            done = world.agent(name, "insecure").join(token)
            assert done.returncode == 0, done.stderr
        log = controller.log()
        assert mine.partition(".")[2] not in log


def test_preferred_binds_where_a_token_is_named_and_trusts_the_provider_elsewhere(world: World) -> None:
    world.set_policy(authorizedAttestors=["insecure"], tokenBinding="Preferred")
    world.machine("named", bootstrap_token=world.token())
    world.machine("unnamed")
    with world.controller("--leader-elect", "false", log="preferred.log") as controller:
        world.await_service(controller)
        assert ends(file_request(world, Wanted(node="named"))) == "Denied:TokenNotThisMachines"
        assert ends(file_request(world, Wanted(node="unnamed"))) == "issued"
        world.set_policy(authorizedAttestors=["insecure"], tokenBinding="Required")
        world.machine("strict")
        strict = eventually(lambda: ends(file_request(world, Wanted(node="strict"))), what="the end")
        assert strict == "Denied:TokenNotNamed"
