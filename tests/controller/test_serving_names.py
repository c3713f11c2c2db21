"""Which names a serving certificate may have: one law a test, one hostile name a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from builders import make_member

from nodeattest_controller.model.certificate_authority import SubjectAltNames
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.serving_names import (
    ClusterNetwork,
    ConflictingMachines,
    check_sans_listed,
    check_sans_unclaimed,
    for_machine,
    network_of,
    normalize_host,
)
from nodeattest_controller.runtime.indexes import Inventory, cluster_key
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import NodeName
from nodeattest_providers.verifier_interface import Addresses


def check_sans(
    wanted: SubjectAltNames,
    *,
    node_name: NodeName,
    listed: Addresses,
    network: ClusterNetwork,
    rivals: ConflictingMachines,
    settled: bool,
) -> None:
    """Check names as the declared checks do."""
    check_sans_unclaimed(wanted, network=network, rivals=rivals)
    check_sans_listed(wanted, node_name=node_name, listed=listed, settled=settled)


NODE = NodeName("node-1")
LISTED = (
    ("Hostname", "node-1"),
    ("InternalDNS", "node-1.lan"),
    ("ExternalDNS", "node-1.example.com"),
    ("InternalIP", "10.0.0.1"),
    ("InternalIP", "fd00::1"),
    ("ExternalIP", "203.0.113.7"),
)
CLUSTER: JsonObject = {
    "spec": {
        "controlPlaneEndpoint": {"host": "10.0.0.100", "port": 6443},
        "clusterNetwork": {"services": {"cidrBlocks": ["10.96.0.0/12", "fd96::/112"]}, "serviceDomain": "corp.local"},
    }
}


def check(
    *places: str,
    listed: Addresses = LISTED,
    rivals: Callable[[str], Sequence[MachineView]] = lambda _: (),
    settled: bool = True,
    cluster: JsonObject = CLUSTER,
) -> None:
    addresses = tuple(place for place in places if ":" in place or not any(letter.isalpha() for letter in place))
    names = tuple(place for place in places if place not in addresses)
    check_sans(
        SubjectAltNames(names, addresses),
        node_name=NODE,
        listed=listed,
        network=network_of(cluster),
        rivals=rivals,
        settled=settled,
    )


@pytest.mark.parametrize(
    ("listed", "asked"),
    [
        (("InternalDNS", "node-1.Example.COM"), "node-1.example.com"),
        (("InternalDNS", "node-1.example.com."), "node-1.example.com"),
        (("InternalIP", "10.0.0.9/24"), "10.0.0.9"),
        (("InternalIP", "2001:DB8:0::A/64"), "2001:db8::a"),
    ],
)
def test_what_the_machine_lists_in_another_spelling_passes_in_the_ordinary_one(
    listed: tuple[str, str], asked: str
) -> None:
    check(asked, listed=(listed,))


NOBODY: Callable[[str], Sequence[MachineView]] = lambda _: ()  # noqa: E731 - typed
VIP = "10.0.0.100"


def at_the_endpoint(asking: MachineView, *rivals: MachineView, listed: Addresses) -> None:
    network, others = for_machine(asking, network_of(CLUSTER), lambda _: rivals)
    check_sans(SubjectAltNames((), (VIP,)), node_name=NODE, listed=listed, network=network, rivals=others, settled=True)


def test_a_control_planes_machine_may_serve_the_endpoint_that_it_lists_and_no_worker_may() -> None:
    server, worker = make_member(name="cp-0", is_control_plane=True), make_member(name="worker")
    beside = make_member(name="cp-1", is_control_plane=True)
    listed = (*LISTED, ("InternalIP", VIP))
    at_the_endpoint(server, listed=listed)
    at_the_endpoint(server, beside, worker, replace(beside, deleting=True), listed=listed)
    for asking, says in ((server, LISTED), (worker, listed)):
        with pytest.raises(Denied, match=Reason.ADDRESS_NOT_ALLOWED):
            at_the_endpoint(asking, listed=says)


def test_control_planes_share_nothing_but_the_endpoint() -> None:
    server, beside = make_member(name="cp-0", is_control_plane=True), make_member(name="cp-1", is_control_plane=True)
    network, others = for_machine(server, network_of(CLUSTER), lambda _: [beside])
    assert list(others(VIP)) == []
    assert others("10.0.0.1") == [beside]
    for place in ("10.96.0.1", "169.254.169.254"):
        with pytest.raises(Denied):
            check_sans(
                SubjectAltNames((), (place,)),
                node_name=NODE,
                listed=(("InternalIP", place),),
                network=network,
                rivals=NOBODY,
                settled=True,
            )


@pytest.mark.parametrize("cluster", [{}, {"spec": {"clusterNetwork": {"services": {"cidrBlocks": ["x", 7]}}}}])
def test_a_cluster_that_says_nothing_still_protects_what_is_never_a_nodes(cluster: JsonObject) -> None:
    check("node-1", "10.0.0.1", cluster=cluster)
    check("10.96.0.2", listed=(("InternalIP", "10.96.0.2"),), cluster=cluster)
    for place in ("kubernetes.default.svc.cluster.local", "10.96.0.1"):
        with pytest.raises(Denied, match=Reason.ADDRESS_NOT_ALLOWED):
            check(place, listed=(("InternalIP", place),), cluster=cluster)


# Other machines


def others(*places: str, deleting: bool = False) -> Callable[[str], Sequence[MachineView]]:
    other = make_member(name="other", deleting=deleting)
    return lambda place: [other] if place in places else []


def machine(name: str, *addresses: tuple[str, str], node: str = "") -> JsonObject:
    return {
        "metadata": {"name": name, "namespace": "fleet", "uid": name},
        "spec": {"clusterName": "c", "providerID": f"x://{name}"},
        "status": {
            "addresses": [{"type": kind, "address": address} for kind, address in addresses],
            **({"nodeRef": {"name": node}} if node else {}),
        },
    }


@pytest.mark.parametrize(
    ("listed", "asked"),
    [
        (("InternalIP", "10.0.0.1"), "10.0.0.1"),
        (("Odd", "10.0.0.1"), "10.0.0.1"),
        (("InternalIP", "::ffff:10.0.0.1"), "10.0.0.1"),
        (("InternalIP", "FD00:0::1"), "fd00::1"),
        (("InternalIP", "fd00::1%eth0"), "fd00::1"),
        (("InternalIP", "10.0.0.1/24"), "10.0.0.1"),
        (("InternalIP", "[FD00::1]/64"), "fd00::1"),
        (("Hostname", "Node-1."), "node-1"),
    ],
)
def test_the_inventory_finds_another_machine_in_any_spelling(listed: tuple[str, str], asked: str) -> None:
    inventory = Inventory()
    inventory.put_machine("other", machine("other", listed))
    cluster = cluster_key("fleet", "c")
    assert [one.name for one in inventory.conflicting_members(cluster, normalize_host(asked), "x://mine")] == ["other"]
    assert inventory.conflicting_members(cluster, normalize_host(asked), "x://other") == []
    assert inventory.conflicting_members(cluster_key("fleet", "d"), normalize_host(asked), "x://mine") == []
    inventory.put_machine("other", None)
    assert inventory.conflicting_members(cluster, normalize_host(asked), "x://mine") == []
