"""Break glass, attestation records of an old backup: the nodes renew, one of them after another reset."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
from nodes_of_runbooks import SPENT, joined, serials
from operator_commands import rejoin_token, reset
from runbook import Runbook
from world import EK_ANNOTATION, OWN, World

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at

pytestmark = pytest.mark.swtpm

FLAGS: Final = ("--leader-elect", "false")
MACHINES: Final = {"metal://rack-1/node-6": "sandbox://blue-md-6", "metal://rack-1/node-7": "sandbox://blue-md-7"}


def restore(world: World, backup: JsonMap) -> None:
    """Put a record back as it was."""
    path = f"{OWN}/machineattestations/{text_at(backup, 'metadata', 'name')}"
    version = map_at(world.admin.get(path), "metadata")["resourceVersion"]
    world.admin.replace(path, {**backup, "metadata": {**map_at(backup, "metadata"), "resourceVersion": version}})


def test_nodes_renew_whose_records_are_from_an_old_backup(world: World) -> None:
    book = Runbook(world, "runbooks", "Records from an old backup", names=MACHINES)
    world.set_policy(authorizedAttestors=["tpm"])
    controller = world.controller(*FLAGS, log="restored.log")
    with controller:
        world.await_service(controller)
        first, before = joined(world, "blue-md-6"), joined(world, "blue-md-7")
        backups = [world.ledger(name) for name in ("blue-md-6", "blue-md-7")]
        assert first.join(SPENT, "--renew").returncode == 0
        second = replace(before, settings={"tcti": world.tpm("board-7").tcti})
        register(world, "blue-md-7", "board-7")
        reset(world, "blue-md-7")
        back = second.join(rejoin_token(world, "blue-md-7"), "--renew")
        assert back.returncode == 0, back.stderr
        newest = serials(world)
        controller.kill()
        for backup in backups:
            restore(world, backup)
        controller.start()

        assert newest["blue-md-6"][-1] not in serials(world)["blue-md-6"]
        refused = second.join(SPENT, "--renew")
        assert "EndorsementKeyChanged" in refused.stderr
        book.run()
        assert "valid" in book.run(node=first)
        book.run()
        book.run(node=first)
        book.run()
        book.run(node=second)
        assert "blue-md-7" in book.run()
        assert book.finished()
        again = second.join(SPENT, "--renew")
        assert again.returncode == 0, again.stderr
        assert len(serials(world)["blue-md-6"]) == len(serials(world)["blue-md-7"]) == 2
        [entry] = maps_at(world.ledger("blue-md-7"), "spec", "resets")
        assert text_at(entry, "reason").startswith("ticket 4712")


def register(world: World, name: str, board: str) -> None:
    """Let the platform name the key of another board."""
    path = f"/apis/infrastructure.cluster.x-k8s.io/v1beta1/namespaces/fleet/devmachines/{name}"
    world.admin.patch(path, {"metadata": {"annotations": {EK_ANNOTATION: world.tpm(board).endorsement_fingerprint()}}})
