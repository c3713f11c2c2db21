"""Break glass, a policy locks everybody out: the nodes renew, one of them after its certificate ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from nodes_of_runbooks import SPENT, ended, joined, serials
from runbook import Runbook
from short_authority import shorten_certificates
from world import NAMESPACE, World, built_world

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.control_plane import StartControlPlane

pytestmark = pytest.mark.swtpm

SECONDS: Final = 20
"""That the second node's first certificate lasts."""
MACHINES: Final = {"metal://rack-1/node-1": "sandbox://blue-md-1", "metal://rack-1/node-2": "sandbox://blue-md-2"}
GOOD: Final[JsonMap] = {"authorizedAttestors": ["tpm"], "onFailure": "Taint"}


LAST_GOOD: Final[JsonMap] = {
    "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
    "kind": "NodeAttestationPolicy",
    "metadata": {"name": "policy", "namespace": NAMESPACE},
    "spec": {**GOOD, "tokenBinding": "Off"},
}
"""As a repository has it."""


@pytest.fixture
def world(start_control_plane: StartControlPlane, tmp_path: Path) -> Iterator[World]:
    """A world without other tests' machines: all of a fleet is listed here."""
    with built_world(start_control_plane, tmp_path) as built:
        yield built


def test_a_fleet_that_a_policy_locked_out_renews(world: World) -> None:
    book = Runbook(world, "runbooks", "A policy locks everybody out", names=MACHINES)
    world.set_policy(**GOOD)
    with world.controller("--leader-elect", "false", log="locked-out.log") as controller:
        world.await_service(controller)
        first = joined(world, "blue-md-1")
        shorten_certificates(world, SECONDS)
        second = joined(world, "blue-md-2")
        before = serials(world)

        world.set_policy(**GOOD, tpm={"pcrs": {"selection": [0, 7], "values": {"7": ["0f" * 32]}}})
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
