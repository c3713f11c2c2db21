"""docs/tutorial.md as it stands there: a cluster that kubeadm made becomes one whose nodes are attested."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pytest
from auto_approval_kit import make_bindings, register_node
from polling import eventually
from runbook import Runbook
from world import Agent, World, built_world

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.control_plane import StartControlPlane

pytestmark = pytest.mark.swtpm

KEYS: Final = {
    "node-1": "sha256:c8f6a6a8e7e2c1d0b9a807165fb3b0cbc2ea6d8c4fb1d7f3c0a9d5e0c3f5f1f1",
    "node-2": "sha256:5fb3b0cbc2ea6d8c4fb1d7f3c0a9d5e0c3f5f1f1c8f6a6a8e7e2c1d0b9a80716",
}
"""The endorsement keys in the page."""


class EmptyWorld(World):
    """A management cluster with nothing of ours in it."""

    def definitions(self) -> list[JsonMap]:
        return []

    def make_cluster(self) -> JsonMap:
        return {}


@pytest.fixture
def world(start_control_plane: StartControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmptyWorld]:
    directory = tmp_path_factory.mktemp("tutorial")
    with built_world(start_control_plane, directory, EmptyWorld, "tutorial-") as built:
        yield built


def node(world: World, name: str) -> Agent:
    agent = world.agent(name, "tpm", tcti=world.tpm(name).tcti)
    return replace(agent, provider_id=f"metal://rack-1/{name}")


def test_a_kubeadm_cluster_becomes_attested_by_the_commands_of_the_page(
    world: EmptyWorld, control_plane_kind: str
) -> None:
    make_bindings(world, real=control_plane_kind == "real")
    register_node(world, "node-1")
    old, new = node(world, "node-1"), node(world, "node-2")
    old.directory.mkdir(parents=True)
    by_kubeadm = world.workload.client_kubeconfig("system:node:node-1", ["system:nodes"])
    shutil.copy(by_kubeadm, old.kubeconfig)
    names = {sample: world.tpm(name).endorsement_fingerprint() for name, sample in KEYS.items()}
    book = Runbook(world, "tutorial", names=names)
    shutil.copy(world.workload.admin_kubeconfig, book.folder / "cellar.conf")
    shutil.copy(world.workload.ca_key, book.folder / "ca.key")

    assert book.run().strip() == "true"
    book.run()
    with book.start() as log:
        eventually(lambda: "serving health and metrics" in log.read_text(), seconds=60, what="the controller")
        book.run()
        book.run()
        assert json.loads(book.run(node=new))["endorsementFingerprint"] == names[KEYS["node-2"]]
        book.run()
        book.run(node=new)
        book.run()
        book.run()
        book.run(node=old)
        shown = book.run()
        assert shown.count(" Attested ") == 2, shown
        assert book.run().strip() == "false"
    assert book.finished()
