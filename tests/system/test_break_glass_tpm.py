"""Break glass, a TPM was replaced: the machine is bound to its new one, and renews."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

import pytest
from nodes_of_runbooks import SPENT, joined, serials, status
from runbook import Runbook
from world import World

from nodeattest_sandbox.apiserver.jsonvalue import maps_at, text_at

pytestmark = pytest.mark.swtpm

NODE: Final = "blue-md-3"
REGISTERED: Final = "sha256:5fb3b0cbc2ea6d8c4fb1d7f3c0a9d5e0c3f5f1f1c8f6a6a8e7e2c1d0b9a80716"
"""The new key in the page."""


def test_a_machine_with_another_tpm_renews(world: World) -> None:
    old, new = world.tpm("old-board"), world.tpm("new-board")
    names = {"metal://rack-1/node-3": f"sandbox://{NODE}", REGISTERED: new.endorsement_fingerprint()}
    book = Runbook(world, "runbooks", "A TPM or mainboard was replaced", names=names)
    world.set_policy(authorizedAttestors=["tpm"])
    with world.controller("--leader-elect", "false", log="another-tpm.log") as controller:
        world.await_service(controller)
        before = joined(world, NODE, tpm=old)
        agent = replace(before, settings={"tcti": new.tcti})
        refused = agent.join(SPENT, "--renew")
        assert "EndorsementKeyChanged" in refused.stderr

        assert "EndorsementKeyChanged" in book.run()
        printed = json.loads(book.run(node=agent))
        assert new.endorsement_fingerprint() in printed.values()
        book.run()
        book.bring(book.run())
        book.run(node=agent)
        shown = book.run()
        assert "Attested" in shown
        assert new.endorsement_fingerprint() in shown
        assert book.finished()

        again = agent.join(SPENT, "--renew")
        assert again.returncode == 0, again.stderr
        assert status(agent)["state"] == "valid"
        assert len(serials(world)[NODE]) == 2
        [entry] = maps_at(world.ledger(NODE), "spec", "resets")
        assert text_at(entry, "reason") == "ticket 4711: new mainboard"
        stolen = before.join(SPENT, "--renew")
        assert stolen.returncode != 0
