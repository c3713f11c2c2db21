"""Break glass, the controller is lost: run elsewhere with its account's rights alone, it lets nodes renew.

On real API servers only: the sandbox issues no tokens for accounts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from nodes_of_runbooks import SPENT, ended, joined, serials
from polling import eventually
from runbook import Runbook
from short_authority import shorten_certificates
from world import World, built_world

from nodeattest_sandbox.control_plane import ControlPlane, start_real

pytestmark = [pytest.mark.conformance, pytest.mark.swtpm]

SECONDS: Final = 20
"""That the second node's first certificate lasts."""
MACHINES: Final = {"metal://rack-1/node-4": "sandbox://blue-md-4", "metal://rack-1/node-5": "sandbox://blue-md-5"}


@pytest.fixture
def world(assets: Path, tmp_path: Path) -> Iterator[World]:
    """A world of its own: the cluster's controller is lost."""

    def start(name: str) -> ControlPlane:
        return start_real(tmp_path / name, assets, name=name)

    with built_world(start, tmp_path) as built:
        yield built


def test_without_its_deployment_the_controller_runs_elsewhere_and_nodes_renew(world: World) -> None:
    book = Runbook(world, "runbooks", "The controller is lost", names=MACHINES)
    world.set_policy(authorizedAttestors=["tpm"])
    with world.controller(log="lost.log") as controller:
        world.await_service(controller)
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
