"""What a join costs API servers, counted: requests by kind, connections, and what is stored.

Counts are the same on every machine. docs/scale.md#requests-to-api-servers says why each request is made.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest
from counting_relay import CountingRelay
from polling import eventually
from world import CSRS, NAMESPACE, OWN, World, built_world

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import ControlPlane, StartControlPlane

pytestmark = pytest.mark.swtpm

PAGE = Path(__file__).parents[2] / "docs/scale.md"
USER = "counted-controller"
MACHINES = f"/apis/cluster.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/machines"
JOINS = 4
STORED = 37 * 1024
"""Bytes of JSON of all versions that a join stores: a quarter above what they were when this was written."""


@dataclass(frozen=True)
class Recorded:
    """What ``JOINS`` joins caused."""

    node: Counter[str]
    controller: Counter[str]
    connections: tuple[int, int]
    """Of the nodes, and new ones of the controller to the workload cluster."""
    stored: dict[str, list[JsonMap]]
    """The versions of objects, by resource."""


@pytest.fixture(scope="module")
def recorded(start_control_plane: StartControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """Let one machine join, so that all is cached and known, and then count."""
    with built_world(start_control_plane, tmp_path_factory.mktemp("counted"), World, "counted-") as world:
        masters = ("system:masters",)
        with CountingRelay(world.workload.server) as nodes, CountingRelay(world.workload.server) as workload:
            reaches = world.workload.client_kubeconfig(USER, masters).read_text()
            world.route_workload(reaches.replace(world.workload.server, workload.url).encode())
            world.set_policy(authorizedAttestors=["tpm"], tokenBinding="Required")
            tokens = {name: world.token() for name in ("first", *(f"counted-{number}" for number in range(JOINS)))}
            for name, token in tokens.items():
                world.machine(name, tpm=world.tpm(name), bootstrap_token=token)
            kubeconfig = world.management.client_kubeconfig(USER, masters)
            # bootstrap-token reads the configuration of each Machine that waits, in its own time, whoever joins.
            flags = "--controllers=*,-bootstrap-token"
            with world.controller(flags, kubeconfig=kubeconfig, log="counted.log") as controller:
                world.await_service(controller)
                eventually(lambda: all(map(conditions, world.admin.list(MACHINES))), what="a condition of each Machine")
                first, *others = tokens
                join(world, first, tokens[first], nodes.url)
                eventually(lambda: has_listed(world.management, "kubeadmconfigs"), what="the watch that joins share")
                yield count(world, {name: tokens[name] for name in others}, nodes, workload)


def has_listed(plane: ControlPlane, resource: str) -> bool:
    """Whether the controller has what its watch of a kind starts from."""
    return any((one.user, one.verb, one.resource) == (USER, "list", resource) for one in plane.requests())


def count(world: World, tokens: dict[str, str], nodes: CountingRelay, workload: CountingRelay) -> Recorded:
    planes = (world.management, world.workload)
    places = (
        (world.workload_admin, CSRS),
        (world.admin, f"{OWN}/machineattestations"),
        (world.admin, MACHINES),
    )
    since = [text_at(client.get(path), "metadata", "resourceVersion") for client, path in places]
    before, connected = [len(plane.requests()) for plane in planes], (nodes.connections, workload.connections)
    for name, token in tokens.items():
        join(world, name, token, nodes.url)
    stored = {
        path.rpartition("/")[2]: versions(client, path, version)
        for (client, path), version in zip(places, since, strict=True)
    }
    made = list(chain(*(plane.requests()[start:] for plane, start in zip(planes, before, strict=True))))
    kinds = [(one.user, f"{one.verb} {'/'.join(filter(None, (one.resource, one.subresource)))}") for one in made]
    return Recorded(
        node=Counter(kind for user, kind in kinds if user.startswith("system:bootstrap:")),
        controller=Counter(kind for user, kind in kinds if user == USER),
        connections=(nodes.connections - connected[0], workload.connections - connected[1]),
        stored=stored,
    )


def join(world: World, name: str, token: str, server: str) -> None:
    """Join, and wait until everything about it is written."""
    done = world.agent(name, "tpm", server=server, tcti=world.tpm(name).tcti).join(token)
    assert done.returncode == 0, done.stderr

    def is_told() -> bool:
        told = conditions(world.admin.get(f"{MACHINES}/{name}"))
        return bool(told) and text_at(told[0], "status") == "True"

    eventually(is_told, what="the condition")
    closed = {"Superseded", ""}
    eventually(lambda: {world.denial(one) for one in world.requests_of(name)} == closed, what="the first one's end")


def conditions(machine: JsonMap) -> list[JsonMap]:
    return [one for one in maps_at(map_at(machine, "status"), "conditions") if text_at(one, "type") == "NodeAttested"]


def versions(client: Client, path: str, since: str) -> list[JsonMap]:
    """Return the objects that were stored after a version of their collection."""
    return [map_at(event, "object") for event in client.watch(path, resourceVersion=since)]


def table(heading: str) -> dict[frozenset[str], int]:
    """Read how often each request of a table is made; those of one row are alternatives."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n### {heading}")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| (`[^|]*`) \| (\d+) \|", section, re.MULTILINE)
    return {frozenset(re.findall(r"`([^`]*)`", requests)): int(number) for requests, number in rows}


def shared() -> frozenset[str]:
    """Read which requests many joins share."""
    section = PAGE.read_text(encoding="utf-8").partition("joins can share")[2].partition("\n### ")[0]
    return frozenset(re.findall(r"`([a-z]+ [a-z/]+)`", section))


def counted(made: Counter[str], rows: dict[frozenset[str], int]) -> dict[frozenset[str], float]:
    return {row: sum(made[kind] for kind in row) / JOINS for row in rows}


def test_a_join_makes_the_nodes_requests_of_the_page_and_no_others(recorded: Recorded) -> None:
    rows = table("The node")
    assert sum(rows.values()) == 4
    assert counted(recorded.node, rows) == rows
    assert set(recorded.node) == set(chain(*rows))


def test_a_join_makes_the_controllers_requests_of_the_page_and_shares_the_others(recorded: Recorded) -> None:
    rows = table("The controller")
    writes = [number for row, number in rows.items() if not all(kind.startswith("get ") for kind in row)]
    assert (sum(rows.values()), sum(writes)) == (8, 6)
    assert counted(recorded.controller, rows) == rows
    often = {kind for kind, number in recorded.controller.items() if number >= JOINS} - set(chain(*rows))
    assert often <= shared()
    assert recorded.controller["get kubeadmconfigs"] < JOINS


def test_a_join_takes_two_handshakes_of_the_node_and_none_of_the_controller(recorded: Recorded) -> None:
    of_nodes, of_controller = recorded.connections
    assert of_nodes == 2 * JOINS
    # Its watches, a burst and a pause may open some, whoever joins; each request one of its own would be more.
    assert 2 * of_controller < recorded.controller.total()


def test_a_join_stores_eight_versions_of_four_objects_of_a_bounded_size(recorded: Recorded) -> None:
    found = {resource: len(stored) / JOINS for resource, stored in recorded.stored.items()}
    assert found == {"certificatesigningrequests": 6, "machineattestations": 1, "machines": 1}
    size = sum(len(json.dumps(one)) for one in chain(*recorded.stored.values())) / JOINS
    assert size < STORED, f"{size:.0f} bytes"
