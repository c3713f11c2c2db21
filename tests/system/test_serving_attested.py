"""Attested serving certificates, from the request to the certificate: what is signed, what is refused, what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store
from serving_requests import Asked, Node, certificate_of, enrol
from world import Controller, World

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
