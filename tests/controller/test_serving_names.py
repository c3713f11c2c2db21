"""Which names a serving certificate may have: what passes, and the laws of control planes; the attacks are in D8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from builders import CREATED, decide, make_member, make_request

from nodeattest_controller.model.certificate_authority import SubjectAltNames
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.node_names import NameContext
from nodeattest_controller.model.serving_names import (
    YOUNG,
    addresses_final,
    check_sans_listed,
    check_sans_unclaimed,
    network_of,
    normalize_host,
)
from nodeattest_controller.runtime.indexes import Inventory, cluster_key
from nodeattest_controller.verification.checks import names_unclaimed
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import NodeName
from nodeattest_providers.verifier_interface import Addresses

VIP = "10.0.0.100"
LISTED = (("InternalDNS", "node-1.lan"), ("InternalIP", "10.0.0.1"))
CLUSTER: JsonObject = {
    "spec": {
        "controlPlaneEndpoint": {"host": VIP, "port": 6443},
        "clusterNetwork": {"services": {"cidrBlocks": ["10.96.0.0/12", "fd96::/112"]}, "serviceDomain": "corp.local"},
    }
}
SERVER, BESIDE = (make_member(name=name, is_control_plane=True) for name in ("cp-0", "cp-1"))
WORKER = make_member(name="worker")


def check(
    *places: str,
    listed: Addresses,
    cluster: JsonObject = CLUSTER,
    by: MachineView = WORKER,
    rivals: Sequence[MachineView] = (),
) -> None:
    """Check names as the declared checks do; ``rivals`` list whatever is asked for."""
    addresses = tuple(place for place in places if ":" in place or not any(letter.isalpha() for letter in place))
    wanted = SubjectAltNames(tuple(place for place in places if place not in addresses), addresses)
    check_sans_unclaimed(wanted, machine=by, network=network_of(cluster), rivals=lambda _: rivals)
    check_sans_listed(wanted, node_name=NodeName("node-1"), listed=listed, settled=True)


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


@pytest.mark.parametrize(
    "place",
    [
        *("127.0.0.2", "0.1.2.3", "169.254.1.1", "239.1.2.3", "240.0.0.1", "255.255.255.255"),
        *("::", "::1", "fe80::1", "ff02::1", "fd00::1%eth0"),
        *("fd20:ce::254", "168.63.129.16", "100.100.100.200", "192.0.0.192"),
    ],
)
def test_an_address_that_no_machine_has_for_itself_is_refused_though_listed(place: str) -> None:
    with pytest.raises(Denied, match=Reason.ADDRESS_NOT_ALLOWED):
        check(place, listed=(("InternalIP", place),))


def test_a_control_planes_machine_may_serve_the_endpoint_that_it_lists_and_no_worker_may() -> None:
    listed = (*LISTED, ("InternalIP", VIP))
    check(VIP, listed=listed, by=SERVER, rivals=[BESIDE, WORKER, replace(BESIDE, deleting=True)])
    for asking, says in ((SERVER, LISTED), (WORKER, listed)):
        with pytest.raises(Denied, match=Reason.ADDRESS_NOT_ALLOWED):
            check(VIP, listed=says, by=asking)


@pytest.mark.parametrize("place", ["10.0.0.1", "10.96.0.1", "169.254.169.254"])
def test_control_planes_share_nothing_but_the_endpoint(place: str) -> None:
    with pytest.raises(Denied, match=Reason.ADDRESS_NOT_ALLOWED):
        check(place, listed=(("InternalIP", place),), by=SERVER, rivals=[BESIDE] if place == "10.0.0.1" else [])


@pytest.mark.parametrize("cluster", [{}, {"spec": {"clusterNetwork": {"services": {"cidrBlocks": ["x", 7]}}}}])
def test_a_cluster_that_says_nothing_still_protects_what_is_never_a_nodes(cluster: JsonObject) -> None:
    check("node-1", "10.0.0.1", listed=LISTED, cluster=cluster)
    check("10.96.0.2", listed=(("InternalIP", "10.96.0.2"),), cluster=cluster)
    for place in ("kubernetes.default.svc.cluster.local", "10.96.0.1"):
        with pytest.raises(Denied, match=Reason.ADDRESS_NOT_ALLOWED):
            check(place, listed=(("InternalIP", place),), cluster=cluster)


@pytest.mark.parametrize(
    "name", ["127.0.0.1", "*.lan", "node-1.localhost", "metadata.google.internal", "kubernetes.lan"]
)
def test_what_is_no_name_of_one_machine_is_refused_whoever_lists_it(name: str) -> None:
    wanted = SubjectAltNames((name,), ())
    with pytest.raises(Denied, match=Reason.ADDRESS_NOT_ALLOWED):
        check_sans_unclaimed(wanted, machine=WORKER, network=network_of(CLUSTER), rivals=lambda _: ())


@pytest.mark.parametrize(
    ("kind", "listed", "asked"),
    [
        ("Odd", "10.0.0.1", "10.0.0.1"),
        ("InternalIP", "::ffff:10.0.0.1", "10.0.0.1"),
        ("InternalIP", "FD00:0::1", "fd00::1"),
        ("InternalIP", "fd00::1%eth0", "fd00::1"),
        ("InternalIP", "10.0.0.1/24", "10.0.0.1"),
        ("InternalIP", "[FD00::1]/64", "fd00::1"),
        ("Hostname", "Node-1.", "node-1"),
    ],
)
def test_the_inventory_finds_another_machine_in_any_spelling(kind: str, listed: str, asked: str) -> None:
    other: JsonObject = {
        "metadata": {"name": "other", "namespace": "fleet", "uid": "other"},
        "spec": {"clusterName": "c", "providerID": "x://other"},
        "status": {"addresses": [{"type": kind, "address": listed}]},
    }
    inventory, cluster, place = Inventory(), cluster_key("fleet", "c"), normalize_host(asked)
    inventory.put_machine("other", other)
    assert [one.name for one in inventory.conflicting_members(cluster, place, "x://mine")] == ["other"]
    assert inventory.conflicting_members(cluster, place, "x://other") == []
    assert inventory.conflicting_members(cluster_key("fleet", "d"), place, "x://mine") == []
    inventory.put_machine("other", None)
    assert inventory.conflicting_members(cluster, place, "x://mine") == []


def test_who_has_the_nodes_name_by_its_objects_shares_no_other_name() -> None:
    guest: JsonObject = {
        "metadata": {"name": "guest", "namespace": "fleet", "uid": "guest"},
        "spec": {"clusterName": "c", "providerID": "x://guest"},
        "status": {"addresses": [{"type": "InternalDNS", "address": name} for name in ("node-0", "db.example.com")]},
    }
    inventory = Inventory()
    inventory.put_machine("guest", guest)
    around = NameContext(claimants=(), holders=())
    facts: dict[str, Any] = {"machine": make_member(), "inventory": inventory, "name_context": around, "cluster": {}}
    decide(names_unclaimed, make_request(dns_names=("node-0",)), **facts)
    with pytest.raises(Denied, match=Reason.ADDRESS_NOT_ALLOWED):
        decide(names_unclaimed, make_request(dns_names=("node-0", "db.example.com")), **facts)


SETTLED = make_member(created=CREATED - YOUNG, addresses=LISTED, node_ref_name=NodeName("node-1"))


@pytest.mark.parametrize(
    ("member", "final"),
    [
        (SETTLED, True),
        (replace(SETTLED, created=CREATED - YOUNG + timedelta(seconds=1)), False),
        (replace(SETTLED, addresses=()), False),
        (replace(SETTLED, node_ref_name=None), False),
        (make_member(kind="MachinePool", created=CREATED), True),
    ],
)
def test_a_young_machine_and_one_without_node_or_addresses_may_list_more_later(
    member: MachineView, *, final: bool
) -> None:
    assert addresses_final(member, CREATED) is final
