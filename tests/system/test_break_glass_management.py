"""Break glass, the management cluster is lost: another is built from objects, and the nodes renew."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from nodes_of_runbooks import SPENT, ended, joined, serials, serving
from runbook import Runbook
from short_authority import shorten_certificates
from world import CLUSTER, NAMESPACE, OWN, World, built_world

from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at
from nodeattest_sandbox.control_plane import StartControlPlane
from nodeattest_sandbox.definitions import install_cluster_api, install_definitions

pytestmark = pytest.mark.swtpm

SECONDS: Final = 20
"""That the second node's first certificate lasts."""
SECRETS: Final = f"/api/v1/namespaces/{NAMESPACE}/secrets"
MACHINES: Final = {"metal://rack-1/node-8": "sandbox://blue-md-8", "metal://rack-1/node-9": "sandbox://blue-md-9"}


@pytest.fixture
def world(start_control_plane: StartControlPlane, tmp_path: Path) -> Iterator[World]:
    """A world of its own: its management cluster is lost."""
    with built_world(start_control_plane, tmp_path) as built:
        yield built


@contextmanager
def rebuilt(world: World, start_control_plane: StartControlPlane) -> Generator[None]:
    """End the management cluster with everything that it kept, and use another one with definitions alone."""
    world.management.stop()
    with start_control_plane("rebuilt") as plane:
        world.management, world.admin = plane, plane.client()
        install_cluster_api(world.admin)
        install_definitions(world.admin, world.definitions())
        fleet.create_namespace(world.admin, "nodeattest-system")
        yield


def restore_cluster_api(world: World) -> None:
    """Do what a tool for Cluster API's objects does: the same names and specs, new UIDs; the Secrets are the page's."""
    pki = world.workload.pki
    world.cluster = fleet.create_cluster(
        world.admin,
        CLUSTER,
        namespace=NAMESPACE,
        kubeconfig=world.workload.admin_kubeconfig.read_bytes(),
        ca_certificate=pki.ca_certificate.read_bytes(),
        ca_key=pki.ca_key.read_bytes(),
    )
    for name in ("blue-md-8", "blue-md-9"):
        world.machine(name)
    for name in secrets(world):
        world.admin.delete(f"{SECRETS}/{name}")


def secrets(world: World) -> dict[str, JsonMap]:
    """Return the Secrets of clusters by their names."""
    found = world.admin.list(SECRETS)
    clusters = [one for one in found if "cluster.x-k8s.io/cluster-name" in map_at(one, "metadata", "labels")]
    return {text_at(one, "metadata", "name"): one for one in clusters}


def own_twice(world: World) -> None:
    """Give a Secret two owners, as Cluster API does where one of its controllers takes it over from another."""
    path = f"{SECRETS}/{CLUSTER}-ca"
    [owner] = maps_at(world.admin.get(path), "metadata", "ownerReferences")
    other = {"name": "another", "uid": "00000000-0000-0000-0000-000000000000", "controller": False}
    second: JsonMap = {**owner, **other}
    world.admin.patch(path, {"metadata": {"ownerReferences": [owner, second]}})


def owners(world: World) -> dict[str, str]:
    """Return the UID of the owner of each record, by the machine's name."""
    found = world.admin.list(f"{OWN}/machineattestations")
    return {
        text_at(one, "spec", "machineName"): text_at(next(maps_at(one, "metadata", "ownerReferences")), "uid")
        for one in found
    }


def uids(world: World) -> dict[str, str]:
    path = f"/apis/cluster.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/machines"
    return {text_at(one, "metadata", "name"): text_at(one, "metadata", "uid") for one in world.admin.list(path)}


def test_the_nodes_of_a_management_cluster_that_is_built_anew_renew(
    world: World, start_control_plane: StartControlPlane
) -> None:
    book = Runbook(world, "runbooks", "The management cluster is lost", names=MACHINES)
    first_use = {"trustOnFirstUse": True, "endorsementCAs": world.tpm("blue-md-8").authority_pem}
    policy: JsonMap = {"authorizedAttestors": ["tpm"], "tpm": {**first_use}}  # only the record names a machine's TPM
    old_token = world.token()
    with serving(world, "lost.log", policy):
        first = joined(world, "blue-md-8", registered=False)
        shorten_certificates(world, SECONDS)
        second = joined(world, "blue-md-9", registered=False)
        world.reset_authority()
    own_twice(world)
    saved = secrets(world)
    book.run()
    before, old_owners = serials(world), owners(world)
    with rebuilt(world, start_control_plane):
        ended(second)
        assert "valid" in book.run(node=first)
        book.run()
        restore_cluster_api(world)
        book.run()
        book.run()
        restored = secrets(world)
        assert {name: one["data"] for name, one in restored.items()} == {n: one["data"] for n, one in saved.items()}
        assert not any("ownerReferences" in map_at(one, "metadata") for one in restored.values())
        assert serials(world) == before
        assert owners(world) == uids(world) != old_owners
        with world.controller("--leader-elect", "false", log="rebuilt.log") as controller:
            world.await_service(controller)
            thief = world.agent("blue-md-8", "tpm", directory="thief", tcti=world.tpm("thief").tcti)
            refused = thief.join(old_token)
            assert "EndorsementKeyChanged" in refused.stderr
            book.run(node=first)
            book.bring(book.run())
            book.run(node=second)
            shown = book.run()
            assert "ended" not in shown
            assert book.finished()
            again = second.join(SPENT, "--renew")
            assert again.returncode == 0, again.stderr
        after = serials(world)
    assert {name: found[: len(before[name])] for name, found in after.items()} == before
    assert {name: len(found) for name, found in after.items()} == {"blue-md-8": 2, "blue-md-9": 3}
