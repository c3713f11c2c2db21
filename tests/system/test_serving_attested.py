"""Attested serving certificates, from the request to the certificate: what is signed, what is refused, what is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store
from killed_controller import Killer, Moment
from serving_requests import Asked, Node, certificate_of, end_of, enrol
from world import Controller, World
from write_gate import Gate

from nodeattest_providers.names import ANNOTATION_CHALLENGE
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, maps_at, text_at

ADDRESSES = [("Hostname", "serve-0"), ("InternalDNS", "serve-0.lan"), ("InternalIP", "10.7.0.1")]


@pytest.fixture(scope="module")
def controller(world: World) -> Iterator[Controller]:
    world.set_policy(authorizedAttestors=["challenge"])
    with world.controller("--leader-elect", "false", log="serving.log") as running:
        world.await_service(running)
        yield running


@pytest.fixture(scope="module")
def node(world: World, controller: Controller) -> Node:
    assert controller
    made = enrol(world, "serve-0", addresses=ADDRESSES)
    made.join()
    return made


@pytest.fixture(scope="module")
def victim(world: World, controller: Controller) -> str:
    """Make another machine, which has a name and an address."""
    assert controller
    enrol(world, "serve-victim", addresses=[("Hostname", "serve-victim"), ("InternalIP", "10.7.0.66")])
    return "serve-victim"


@pytest.fixture
def others(world: World, controller: Controller) -> Callable[[str], Node]:
    """Make a machine that has joined, with an address of its own."""
    assert controller

    def joined(name: str) -> Node:
        made = enrol(world, name, addresses=[("Hostname", name), ("InternalIP", f"10.7.1.{len(name)}")])
        made.join()
        return made

    return joined


def serving_entries(world: World, name: str) -> list[JsonMap]:
    return [one for one in maps_at(world.ledger(name), "spec", "issued") if text_at(one, "purpose") == "serving"]


def test_a_joined_node_gets_the_serving_certificate_that_it_asked_for(world: World, node: Node) -> None:
    asked = Asked(dns_names=["serve-0", "serve-0.lan"], ip_addresses=["10.7.0.1"])
    certificate = certificate_of(node.file(asked))
    ca = x509.load_pem_x509_certificate(world.workload.ca_certificate.read_bytes())
    assert certificate.public_key() == asked.key.public_key()
    assert certificate.subject.rfc4514_string() == "CN=system:node:serve-0,O=system:nodes"
    extensions = certificate.extensions
    assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.SERVER_AUTH]
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["serve-0", "serve-0.lan"]
    assert names.get_values_for_type(x509.IPAddress) == [ip_address("10.7.0.1")]
    verifier = PolicyBuilder().store(Store([ca])).build_server_verifier(x509.IPAddress(ip_address("10.7.0.1")))
    assert verifier.verify(certificate, []) == [certificate, ca]


def test_a_serving_certificate_leaves_the_machines_client_certificate_alone(
    world: World, others: Callable[[str], Node]
) -> None:
    made = others("serve-apart")
    before = world.ledger("serve-apart")
    certificate_of(made.file(Asked(dns_names=["serve-apart"])))
    after = world.ledger("serve-apart")
    assert [text_at(one, "purpose") for one in maps_at(after, "spec", "issued")] == ["", "serving"]
    for field in ("expires", "signerName", "nodeName", "provider"):
        assert text_at(after, "spec", field) == text_at(before, "spec", field)


def test_the_same_key_gets_the_same_serving_certificate_again(world: World, others: Callable[[str], Node]) -> None:
    made = others("serve-again")
    asked = Asked(dns_names=["serve-again"])
    first, second = (certificate_of(made.file(asked)) for _ in range(2))
    assert first == second
    assert len(serving_entries(world, "serve-again")) == 1


def test_a_key_serves_one_purpose_and_one_set_of_names(world: World, others: Callable[[str], Node]) -> None:
    made = others("serve-key")
    address = f"10.7.1.{len('serve-key')}"
    asked = Asked(dns_names=["serve-key"])
    certificate_of(made.file(asked))
    assert (
        end_of(made.file(Asked(dns_names=["serve-key"], ip_addresses=[address], key=asked.key))) == "Denied:KeyReused"
    )
    as_client = made.file(Asked(key=asked.key))
    assert end_of(as_client) == "Denied:KeyReused"
    renewed = Asked()
    certificate_of(made.file(renewed))
    assert end_of(made.file(Asked(dns_names=["serve-key"], key=renewed.key))) == "Denied:KeyReused"
    assert len(serving_entries(world, "serve-key")) == 1


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (Asked(dns_names=["serve-0"], by_token=True), "ServingNotAllowed"),
        (Asked(dns_names=["serve-0", "serve-victim"]), "AddressNotAllowed"),
        (Asked(ip_addresses=["10.7.0.66"]), "AddressNotAllowed"),
        (Asked(dns_names=["kubernetes.default.svc"]), "AddressNotAllowed"),
        (Asked(ip_addresses=["169.254.169.254"]), "AddressNotAllowed"),
        (Asked(dns_names=["serve-0"], usages=["digital signature", "client auth"]), "UsagesNotAllowed"),
    ],
)
def test_a_serving_request_that_breaks_a_rule_is_denied_before_it_is_challenged(
    victim: str, node: Node, asked: Asked, reason: str
) -> None:
    assert victim
    filed = node.file(asked)
    assert end_of(filed) == f"Denied:{reason}"
    assert not filed.annotation(ANNOTATION_CHALLENGE)


def test_a_machine_that_never_joined_gets_no_serving_certificate(world: World, controller: Controller) -> None:
    assert controller
    made = enrol(world, "serve-never", addresses=[("Hostname", "serve-never")])
    assert end_of(made.file(Asked(dns_names=["serve-never"]))) == "Denied:ServingNotAllowed"


def test_a_policy_may_refuse_attested_serving_requests(world: World, node: Node) -> None:
    world.set_policy(authorizedAttestors=["challenge"], serving={"attested": "Refuse"})
    world.await_policy()
    try:
        assert end_of(node.file(Asked(dns_names=["serve-0"]))) == "Denied:ServingNotAllowed"
    finally:
        world.set_policy(authorizedAttestors=["challenge"])
        world.await_policy()


def test_two_that_lead_at_once_sign_a_serving_certificate_once(world: World, others: Callable[[str], Node]) -> None:
    made = others("serve-two")
    asked = Asked(dns_names=["serve-two"])
    with world.controller("--leader-elect", "false", log="serving-2.log") as second, ThreadPoolExecutor(4) as pool:
        world.await_service(second)
        filed = list(pool.map(made.file, [asked] * 4))
        assert len({certificate_of(one).serial_number for one in filed}) == 1
    assert len(serving_entries(world, "serve-two")) == 1


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("write", ["ledger", "approve", "certificate"])
def test_a_serving_certificate_survives_the_controllers_death_around_a_write(
    world: World, controller: Controller, write: str, moment: Moment
) -> None:
    name = f"serve-{write}-{moment}"
    made = enrol(world, name, addresses=[("Hostname", name)])
    made.join()
    controller.kill()
    with ExitStack() as stack:
        stack.callback(controller.start)
        management, workload = (stack.enter_context(Gate(plane)) for plane in (world.management, world.workload))
        through = workload.kubeconfig(world.workload.admin_kubeconfig, world.directory / f"{name}.workload")
        world.route_workload(through.read_bytes())
        stack.callback(world.route_workload, world.workload.admin_kubeconfig.read_bytes())
        gated = management.kubeconfig(world.management.admin_kubeconfig, world.directory / f"{name}.management")
        dying = world.controller("--leader-elect", "false", kubeconfig=gated, log=f"{name}.log")
        killer = Killer.of(world, dying, write, moment)
        for gate in (management, workload):
            gate.before, gate.after = killer.passes("before"), killer.passes("after")
        stack.enter_context(dying)
        world.await_service(dying)
        filed = made.file(Asked(dns_names=[name]))
        assert killer.done.wait(60), f"no write {write!r}"
        dying.start()
        serial = certificate_of(filed).serial_number
    assert [text_at(one, "serial") for one in serving_entries(world, name)] == [f"{serial:x}"]
