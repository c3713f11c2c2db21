"""Which names a serving certificate may have: one law a test, one hostile name a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from builders import CREATED, make_member, make_request
from cryptography.hazmat.primitives.asymmetric import ec

from nodeattest_controller.model.attestation import Attestation, IssuedCertificate, new_attestation
from nodeattest_controller.model.certificate_authority import SubjectAltNames
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.policy import Policy, ServingPolicy
from nodeattest_controller.model.serving_names import (
    addresses_final,
    check_client_certificate,
    check_sans,
    check_serving_allowed,
    for_machine,
    network_of,
    normalize_host,
)
from nodeattest_controller.runtime.indexes import Inventory, cluster_key
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import NodeName, ProviderID, ProviderName, Purpose
from nodeattest_providers.verifier_interface import Addresses

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


def refusal(*places: str, **options: object) -> Denied:
    with pytest.raises(Denied, match=Reason.ADDRESS_NOT_ALLOWED) as refused:
        check(*places, **options)  # pyright: ignore[reportArgumentType] - the tests name real options
    return refused.value


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
    ["node-2", "node-10", "node-1.lan.evil.com", "evil.node-1.lan", "10.0.0.2", "203.0.113.70"],
)
def test_a_name_that_the_machine_does_not_list_is_denied(place: str) -> None:
    refusal(place)
    refusal("node-1", "10.0.0.1", place)


@pytest.mark.parametrize(
    ("kind", "place"),
    [("InternalIP", "node-9"), ("Hostname", "10.0.0.9"), ("Custom", "10.0.0.9"), ("", "node-9")],
)
def test_an_address_of_another_type_counts_for_nothing(kind: str, place: str) -> None:
    refusal(place, listed=((kind, place),))


@pytest.mark.parametrize(
    "place",
    [
        "*.lan",
        "node-1.",
        "Node-1",
        "node_1",
        "localhost",
        "a.localhost",
        "kubernetes",
        "kubernetes.default.svc",
        "kubernetes.default.svc.corp.local",
        "web.shop.svc.corp.local",
        "metadata.google.internal",
    ],
)
def test_a_name_that_no_node_may_have_is_denied_although_the_machine_lists_it(place: str) -> None:
    with pytest.raises(Denied, match=Reason.ADDRESS_NOT_ALLOWED):
        check_sans(
            SubjectAltNames((place,), ()),
            node_name=NodeName(place),
            listed=(("Hostname", place), ("InternalDNS", place)),
            network=network_of(CLUSTER),
            rivals=lambda _: (),
            settled=False,
        )


@pytest.mark.parametrize(
    "place",
    [
        "127.0.0.1",
        "::1",
        "0.0.0.0",
        "169.254.169.254",
        "fe80::1",
        "224.0.0.1",
        "255.255.255.255",
        "fd00:ec2::254",
        "168.63.129.16",
        "100.100.100.200",
        "10.96.0.1",
        "fd96::1",
        "10.0.0.100",
        "::ffff:10.0.0.1",
        "010.0.0.1",
        "10.0.0.1/32",
        "fe80::1%eth0",
        "64:ff9b::10.0.0.1",
    ],
)
def test_an_address_that_no_node_may_have_is_denied_although_the_machine_lists_it(place: str) -> None:
    refusal(place, listed=(("InternalIP", place), ("ExternalIP", place)), settled=False)


@pytest.mark.parametrize("host", ["api.example.com", "API.example.com", "api.example.com."])
def test_the_control_planes_name_is_denied(host: str) -> None:
    cluster: JsonObject = {"spec": {"controlPlaneEndpoint": {"host": host}}}
    refusal("api.example.com", listed=(("ExternalDNS", "api.example.com"),), cluster=cluster)
    check("node-1.lan", cluster=cluster)


@pytest.mark.parametrize("host", ["fd00:0:0::1", "[fd00::1]"])
def test_the_control_planes_address_is_denied_in_any_spelling(host: str) -> None:
    refusal("fd00::1", cluster={"spec": {"controlPlaneEndpoint": {"host": host}}})


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
                rivals=lambda _: (),
                settled=True,
            )


def test_a_name_that_reads_as_an_address_is_denied() -> None:
    with pytest.raises(Denied):
        check_sans(
            SubjectAltNames(("10.0.0.1",), ()),
            node_name=NodeName("10.0.0.1"),
            listed=(("Hostname", "10.0.0.1"),),
            network=network_of({}),
            rivals=lambda _: (),
            settled=True,
        )


@pytest.mark.parametrize("cluster", [{}, {"spec": {"clusterNetwork": {"services": {"cidrBlocks": ["x", 7]}}}}])
def test_a_cluster_that_says_nothing_still_protects_what_is_never_a_nodes(cluster: JsonObject) -> None:
    check("node-1", "10.0.0.1", cluster=cluster)
    refusal("kubernetes.default.svc.cluster.local", cluster=cluster)
    refusal("10.96.0.1", listed=(("InternalIP", "10.96.0.1"),), cluster=cluster)
    check("10.96.0.2", listed=(("InternalIP", "10.96.0.2"),), cluster=cluster)


# Other machines


def others(*places: str, deleting: bool = False) -> Callable[[str], Sequence[MachineView]]:
    other = make_member(name="other", deleting=deleting)
    return lambda place: [other] if place in places else []


@pytest.mark.parametrize("place", ["10.0.0.1", "fd00::1", "node-1.lan", "node-1"])
def test_what_another_machine_lists_too_is_denied(place: str) -> None:
    assert "other" in refusal(place, rivals=others(place)).got
    refusal(place, rivals=others(place), settled=False)


def test_what_a_machine_on_its_way_out_lists_is_waited_for() -> None:
    with pytest.raises(Unavailable, match=Reason.ADDRESS_NOT_ALLOWED):
        check("10.0.0.1", rivals=others("10.0.0.1", deleting=True))


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


# Not there yet


def test_an_address_of_a_young_machine_is_waited_for() -> None:
    for listed in ((), (("InternalIP", "10.0.0.2"),)):
        with pytest.raises(Unavailable, match=Reason.ADDRESS_NOT_ALLOWED):
            check("10.0.0.1", listed=listed, settled=False)


@pytest.mark.parametrize("kind", ["MachinePool", "MachineRecord"])
def test_whose_addresses_nobody_fills_in_is_not_waited_for(kind: str) -> None:
    assert addresses_final(make_member(kind=kind, addresses=()), CREATED)


# Attested requests

POLICY = Policy(name="p", attestors=frozenset({ProviderName("tpm")}), lifetime=None, enforce=True)
NODE_USER = "system:node:node-0"


def test_a_joined_node_may_ask() -> None:
    request = make_request(username=NODE_USER, dns_names=["node-0"])
    check_serving_allowed(request, POLICY, secure=True)
    check_client_certificate(request, joined(), CREATED)


@pytest.mark.parametrize(
    ("username", "serving", "secure"),
    [
        ("system:bootstrap:abcdef", ServingPolicy(), True),
        (NODE_USER, ServingPolicy(signs_attested=False), True),
        (NODE_USER, ServingPolicy(), False),
    ],
)
def test_a_token_an_insecure_provider_and_a_policy_that_forbids_get_no_serving_certificate(
    username: str, serving: ServingPolicy, secure: bool
) -> None:
    request = make_request(username=username, dns_names=["node-0"])
    with pytest.raises(Denied, match=Reason.SERVING_NOT_ALLOWED):
        check_serving_allowed(request, replace(POLICY, serving=serving), secure=secure)


def joined(spki: str = "sha256:client", **changes: object) -> Attestation:
    entry = IssuedCertificate(
        request_name="r",
        request_uid="u",
        first_request_uid="",
        spki=spki,
        serial="1",
        not_before=CREATED,
        not_after=CREATED + timedelta(days=14),
        issued_at=CREATED,
        certificate="",
    )
    ledger = replace(new_attestation(make_member()), provider=ProviderName("tpm"), issued=(entry,))
    return replace(ledger, **changes)  # pyright: ignore[reportArgumentType] - the tests name real fields


def test_a_machine_without_a_live_client_certificate_gets_no_serving_certificate() -> None:
    request = make_request(username=NODE_USER, dns_names=["node-0"])
    serving_only = tuple(replace(entry, purpose=Purpose.SERVING) for entry in joined().issued)
    for ledger, now in (
        (joined(issued=()), CREATED),
        (joined(issued=serving_only), CREATED),
        (joined(), CREATED + timedelta(days=14)),
        (joined(provider=ProviderName("challenge")), CREATED),
    ):
        with pytest.raises(Denied, match=Reason.SERVING_NOT_ALLOWED):
            check_client_certificate(request, ledger, now)


def test_the_key_of_a_client_certificate_gets_no_serving_certificate() -> None:
    request = make_request(
        username=NODE_USER, dns_names=["node-0"], key=ec.generate_private_key(ec.SECP256R1()), provider_id="x://1"
    )
    assert request.csr.provider_id == ProviderID("x://1")
    with pytest.raises(Denied, match=Reason.KEY_REUSED):
        check_client_certificate(request, joined(request.csr.spki_sha256), CREATED)
