"""Break glass: each runbook of docs/runbooks.md, block by block, until the nodes renew."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from polling import eventually
from runbook import (
    SPENT,
    Runbook,
    ended,
    joined,
    nodeattest,
    rejoin_token,
    reset,
    serials,
    serving,
    shorten_certificates,
    status,
)
from world import EK_ANNOTATION, NAMESPACE, OWN, World, built_world

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at
from nodeattest_sandbox.control_plane import ControlPlane, StartControlPlane, start_real

pytestmark = pytest.mark.swtpm

SECONDS: Final = 20
"""That the certificate of a second node lasts."""


def machines(*numbers: int) -> dict[str, str]:
    """Name the pages' machines as they are called here."""
    return {f"metal://rack-1/node-{number}": f"sandbox://blue-md-{number}" for number in numbers}


# The controller is lost: run elsewhere with its account's rights alone, it lets nodes renew


@pytest.fixture
def real_world(assets: Path, tmp_path: Path) -> Iterator[World]:
    """A world of its own on real API servers: the sandbox issues no tokens for accounts."""

    def start(name: str) -> ControlPlane:
        return start_real(tmp_path / name, assets, name=name)

    with built_world(start, tmp_path) as built:
        yield built


@pytest.mark.conformance
def test_without_its_deployment_the_controller_runs_elsewhere_and_nodes_renew(real_world: World) -> None:
    world = real_world
    book = Runbook(world, "runbooks", "The controller is lost", names=machines(4, 5))
    with serving(world, "lost.log", elected=True) as controller:
        first = joined(world, "blue-md-4")
        shorten_certificates(world, SECONDS)
        second = joined(world, "blue-md-5")
        controller.kill()
    ended(second)
    world.reset_authority()

    assert "the certificate of blue-md-5 expired" in book.run()
    book.run()
    assert (book.folder / "rescue.conf").stat().st_mode & 0o777 == 0o600
    with book.start() as log:
        eventually(lambda: '"connected"' in log.read_text(), seconds=60, what="the connection", state=log.read_text)
        book.run(node=first)
        book.bring(book.run())
        book.run(node=second)
        assert "Attested" in book.run()
        assert book.finished()
        again = second.join(SPENT, "--renew")
        assert again.returncode == 0, again.stderr
    assert {name: len(found) for name, found in serials(world).items()} == {"blue-md-4": 2, "blue-md-5": 3}


# The attestation records are of an old backup


def restore(world: World, backup: JsonMap) -> None:
    """Put a record back as it was."""
    path = f"{OWN}/machineattestations/{text_at(backup, 'metadata', 'name')}"
    version = map_at(world.admin.get(path), "metadata")["resourceVersion"]
    world.admin.replace(path, {**backup, "metadata": {**map_at(backup, "metadata"), "resourceVersion": version}})


def register(world: World, name: str, board: str) -> None:
    """Let the platform name the key of another board."""
    path = f"/apis/infrastructure.cluster.x-k8s.io/v1beta1/namespaces/fleet/devmachines/{name}"
    world.admin.patch(path, {"metadata": {"annotations": {EK_ANNOTATION: world.tpm(board).endorsement_fingerprint()}}})


def test_nodes_renew_whose_records_are_from_an_old_backup(world: World) -> None:
    book = Runbook(world, "runbooks", "Records from an old backup", names=machines(6, 7))
    with serving(world, "restored.log") as controller:
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


# A policy locks everybody out


GOOD: Final[JsonMap] = {"authorizedAttestors": ["tpm"], "onFailure": "Taint"}


LAST_GOOD: Final[JsonMap] = {
    "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
    "kind": "NodeAttestationPolicy",
    "metadata": {"name": "policy", "namespace": NAMESPACE},
    "spec": {**GOOD, "tokenBinding": "Off"},
}
"""As a repository has it."""


@pytest.fixture
def own_world(start_control_plane: StartControlPlane, tmp_path: Path) -> Iterator[World]:
    """A world without other tests' machines: all of a fleet is listed here."""
    with built_world(start_control_plane, tmp_path) as built:
        yield built


def simulated(world: World, policy: JsonMap) -> set[tuple[str, str]]:
    """Return outcome and reason of each machine's next renewal, as ``policy simulate`` tells them."""
    path = world.directory / "simulated.json"
    path.write_text(json.dumps(policy))
    told = json.loads(nodeattest(world, "policy", "simulate", "-f", str(path), "-o", "json").stdout)
    return {(one["outcome"], one["reason"]) for one in told["machines"]}


def test_a_fleet_that_a_policy_locked_out_renews(own_world: World) -> None:
    world = own_world
    book = Runbook(world, "runbooks", "A policy locks everybody out", names=machines(1, 2))
    with serving(world, "locked-out.log", GOOD):
        first = joined(world, "blue-md-1")
        shorten_certificates(world, SECONDS)
        second = joined(world, "blue-md-2")
        before = serials(world)

        locks_out: JsonMap = {**GOOD, "tpm": {"pcrs": {"selection": [0, 7], "values": {"7": ["0f" * 32]}}}}
        assert simulated(world, {**LAST_GOOD, "spec": locks_out}) == {("refused", "PCRValueNotAllowed")}
        assert simulated(world, LAST_GOOD) == {("passes", "")}
        world.set_policy(**locks_out)
        world.await_policy()
        refused = first.join(SPENT, "--renew")
        assert "PCRValueNotAllowed" in refused.stderr
        ended(second)
        world.reset_authority()
        assert serials(world) == before

        shown = book.run()
        assert "PCRValueNotAllowed" in shown
        book.run()
        assert "PCRValueNotAllowed" in book.run(expected=1)
        (book.folder / "policy.yaml").write_text(json.dumps(LAST_GOOD))
        book.run()
        book.run(node=first)
        book.bring(book.run())
        book.run(node=second)
        assert book.run().startswith("no machine in namespace fleet")  # nobody is not attested
        assert book.finished()
        assert {name: len(found) for name, found in serials(world).items()} == {"blue-md-1": 2, "blue-md-2": 2}


# A TPM was replaced: the machine is bound to its new one


NODE: Final = "blue-md-3"
REGISTERED: Final = "sha256:5fb3b0cbc2ea6d8c4fb1d7f3c0a9d5e0c3f5f1f1c8f6a6a8e7e2c1d0b9a80716"
"""The new key in the page."""


def test_a_machine_with_another_tpm_renews(world: World) -> None:
    old, new = world.tpm("old-board"), world.tpm("new-board")
    names = {"metal://rack-1/node-3": f"sandbox://{NODE}", REGISTERED: new.endorsement_fingerprint()}
    book = Runbook(world, "runbooks", "A TPM or mainboard was replaced", names=names)
    with serving(world, "another-tpm.log"):
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
