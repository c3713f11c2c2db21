"""D8: serving certificates for names and addresses that are not this one machine's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import pytest
from builders import bound, decide, make_member, make_request
from catalogue import Row, attacks, evaluated
from cryptography.hazmat.primitives.asymmetric import ec
from handmade import DNS, OTHER_NAME, PROVIDER_ID, SAN, TRUE, extended, extension, general, seq

from nodeattest_controller.controllers.csr.machine_checks import joined_machine, serving_allowed
from nodeattest_controller.model.attestation import Attestation, new_attestation
from nodeattest_controller.model.certificate_authority import SubjectAltNames
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.policy import Policy
from nodeattest_controller.model.serving_names import (
    check_sans_listed,
    check_sans_unclaimed,
    network_of,
    normalize_host,
)
from nodeattest_controller.runtime.indexes import Inventory, cluster_key
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.identifiers import NodeName, ProviderName, Purpose
from nodeattest_providers.insecure.verifier import InsecureSigner
from nodeattest_providers.pkcs10 import parse_csr
from nodeattest_providers.tpm.verifier import TpmSigner
from nodeattest_providers.verifier_interface import Addresses

Case = Callable[[], object]


NODE: Final = NodeName("node-1")
LISTED: Final = (("Hostname", "node-1"), ("InternalIP", "10.0.0.1"), ("ExternalIP", "192.0.2.1"))
NETWORK: Final = network_of(
    {
        "spec": {
            "controlPlaneEndpoint": {"host": "10.0.0.100", "port": 6443},
            "clusterNetwork": {"services": {"cidrBlocks": ["10.96.0.0/12"]}},
        }
    }
)
NAMED_ENDPOINT: Final = network_of({"spec": {"controlPlaneEndpoint": {"host": "api.example.com", "port": 6443}}})


def asking(
    *names: str,
    node: str = NODE,
    listed: Addresses = LISTED,
    rivals: Mapping[str, Sequence[MachineView]] | None = None,
    settled: bool = True,
) -> Case:
    """Ask for names and addresses that the Machine itself may even list."""
    dns = tuple(name for name in names if not is_address(name))
    wanted = SubjectAltNames(dns, tuple(name for name in names if is_address(name)))
    network = NAMED_ENDPOINT if "api.example.com" in names else NETWORK

    def case() -> None:
        claimed = rivals or {}
        check_sans_unclaimed(
            wanted, machine=make_member(), network=network, rivals=lambda place: claimed.get(place, ())
        )
        check_sans_listed(wanted, node_name=NodeName(node), listed=listed, settled=settled)

    return case


def is_address(name: str) -> bool:
    return ":" in name or name.replace(".", "").isdigit()


def listed_by_a_bad_guest(name: str) -> Case:
    """Ask for what an agent in the guest had the Machine list."""
    kind = "InternalIP" if is_address(name) else "InternalDNS"
    return asking(name, listed=(*LISTED, (kind, name)))


def of_another(*, deleting: bool) -> Case:
    return asking("10.0.0.1", rivals={"10.0.0.1": [make_member(name="other", deleting=deleting)]})


def of_another_with_its_prefix_length() -> object:
    """Ask for what a bad guest had its Machine list, too."""
    inventory = Inventory()
    addresses: list[JsonValue] = [{"type": "InternalIP", "address": "10.0.0.1/24"}]
    metadata: JsonObject = {"name": "other", "namespace": "fleet", "uid": "u"}
    spec: JsonObject = {"clusterName": "blue", "providerID": "x://other"}
    inventory.put_machine("other", {"metadata": metadata, "spec": spec, "status": {"addresses": addresses}})
    rivals = inventory.conflicting_members(cluster_key("fleet", "blue"), normalize_host("10.0.0.1"), "x://mine")
    return asking("10.0.0.1", rivals={"10.0.0.1": rivals})()


POLICY: Final = Policy(name="p", attestors=frozenset({ProviderName("tpm")}), lifetime=None, enforce=True)
OF_THE_NODE: Final = make_request(username="system:node:node-0", dns_names=("node-0",))


def attested(*, username: str = "system:node:node-0", secure: bool = True, signs: bool = True) -> Case:
    policy = replace(POLICY, signs_serving=signs)
    request = make_request(username=username, dns_names=("node-0",))
    return lambda: decide(serving_allowed, request, policy=policy, verifier=TpmSigner() if secure else InsecureSigner())


def joined(provider: str = "tpm", spki: str = "sha256:client") -> Attestation:
    return replace(bound(make_member(), spki), provider=ProviderName(provider))


def with_ledger(ledger: Attestation) -> Case:
    return lambda: decide(joined_machine, OF_THE_NODE, machine=make_member(), attestation=ledger)


def with_the_clients_key() -> object:
    request = make_request(
        username="system:node:node-0", dns_names=("node-0",), key=ec.generate_private_key(ec.SECP256R1())
    )
    ledger = joined(spki=request.csr.spki_sha256)
    return decide(joined_machine, request, machine=make_member(), attestation=ledger)


def parsed(*names: bytes, critical: bytes = b"") -> Case:
    der = extended(PROVIDER_ID, extension(SAN, seq(*names), critical)).der()
    return lambda: parse_csr(der, purpose=Purpose.SERVING)


CASES: Final[Mapping[str, Case]] = {
    "D8-01": asking("node-2"),
    "D8-02": asking("node-10"),
    "D8-03": asking("auth.example.com", node="a"),
    "D8-04": asking("Node-1"),
    "D8-05": asking("node-1."),
    "D8-06": listed_by_a_bad_guest("*.example.com"),
    "D8-07": listed_by_a_bad_guest("localhost"),
    "D8-08": listed_by_a_bad_guest("metadata.google.internal"),
    "D8-09": listed_by_a_bad_guest("kubernetes.default.svc"),
    "D8-10": listed_by_a_bad_guest("vault.security.svc.cluster.local"),
    "D8-11": listed_by_a_bad_guest("api.example.com"),
    "D8-12": listed_by_a_bad_guest("10.0.0.100"),
    "D8-13": listed_by_a_bad_guest("127.0.0.1"),
    "D8-14": listed_by_a_bad_guest("0.0.0.0"),
    "D8-15": listed_by_a_bad_guest("169.254.169.254"),
    "D8-16": listed_by_a_bad_guest("fd00:ec2::254"),
    "D8-17": listed_by_a_bad_guest("224.0.0.1"),
    "D8-18": listed_by_a_bad_guest("10.96.0.1"),
    "D8-19": of_another(deleting=False),
    "D8-20": asking("198.51.100.7"),
    "D8-21": of_another(deleting=True),
    "D8-22": asking("198.51.100.7", settled=False),
    "D8-23": listed_by_a_bad_guest("::ffff:10.0.0.1"),
    "D8-24": listed_by_a_bad_guest("010.0.0.1"),
    "D8-25": attested(username="system:bootstrap:abcdef"),
    "D8-26": attested(secure=False),
    "D8-27": attested(signs=False),
    "D8-28": with_ledger(new_attestation(make_member())),
    "D8-29": with_ledger(joined("challenge")),
    "D8-30": with_the_clients_key,
    "D8-31": parsed(DNS, general(1, b"root@example.com")),
    "D8-32": parsed(DNS, general(6, b"spiffe://example.com/victim")),
    "D8-33": parsed(DNS, OTHER_NAME),
    "D8-34": parsed(general(2, b"n-0\0.victim")),
    "D8-35": parsed(general(7, b"12345")),
    "D8-36": parsed(general(7, bytes(10) + b"\xff\xff\x0a\0\0\x01")),
    "D8-37": parsed(*(general(2, b"n-%d" % number) for number in range(33))),
    "D8-38": parsed(DNS, DNS),
    "D8-39": parsed(),
    "D8-40": parsed(DNS, critical=TRUE),
    "D8-115": of_another_with_its_prefix_length,
}


def test_what_the_attacks_spoil_is_granted() -> None:
    asking("node-1", "10.0.0.1", "192.0.2.1")()
    attested()()
    with_ledger(joined())()
    parsed(DNS)()


@pytest.mark.parametrize(("row", "case"), attacks(CASES))
def test_no_node_answers_for_what_is_not_its_own(row: Row, case: Case) -> None:
    assert evaluated(case) == row.expected
