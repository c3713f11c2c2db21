"""D8 at a running controller: serving certificates for what is not the node's, by kubelet's own requests and attested.

A bad guest can have its Machine list whatever it likes; what no node may serve is refused all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from typing import Final

import pytest
from attacked_world import attempted, becomes, controlled
from cases import attacks
from catalogue import Row
from cryptography import x509
from exchanges import node_client, opened, token_client
from filing_requests import Filed
from kubelet_requests import Kubelet, kubelet_asks, register_node
from polling import eventually
from serving_requests import Asked, Node, certificate_of, enrol
from world import CLUSTER, NAMESPACE, World

from nodeattest_providers.identifiers import Purpose
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at
from nodeattest_sandbox.client import ApiRefusal

CLUSTERS: Final = f"/apis/cluster.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/clusters"
ENDPOINT: Final = "10.6.255.1"
VICTIM: Final = "d8-victim"
VICTIMS: Final = "10.6.0.66"
NUMBERS: Final = count(1)


@dataclass(frozen=True, slots=True)
class Scene:
    """A victim that has not joined and a member that has."""

    world: World
    member: Node
    key: Asked


@pytest.fixture(scope="module")
def scene(world: World) -> Iterator[Scene]:
    spec: JsonMap = {
        "controlPlaneEndpoint": {"host": ENDPOINT, "port": 6443},
        "clusterNetwork": {"services": {"cidrBlocks": ["10.97.0.0/16"]}},
    }
    world.admin.patch(f"{CLUSTERS}/{CLUSTER}", {"spec": spec})
    machine(world, VICTIM, ("InternalIP", VICTIMS))
    listed = ("InternalIP", "127.0.0.1"), ("InternalIP", ENDPOINT), ("InternalDNS", "*.example.com")
    member, key = enrol(world, "d8-member", addresses=[("Hostname", "d8-member"), *listed]), Asked()
    with controlled(world, "d8.log", authorizedAttestors=["challenge"], serving={"kubelet": "Approve"}):
        certificate_of(opened(member, asked=key).carry_out(token_client(world)))
        yield Scene(world, member, key)


def machine(world: World, name: str, *addresses: tuple[str, str], provider_id: str | None = None) -> None:
    """Make a Machine and its Node, which know of each other."""
    uid = text_at(register_node(world, name, provider_id), "metadata", "uid")
    node: JsonMap | None = None if provider_id else {"name": name, "uid": uid}
    world.machine(name, addresses=[("Hostname", name), *addresses], node=node)


Attempt = Callable[[Scene], Filed]


# Kubelet's own requests


def kubelet(*extra: x509.GeneralName, dns: str = "", address: str = "", listed: bool = False) -> Attempt:
    """Ask for one's own name and for another, which one's Machine may even list."""

    def attempt(scene: Scene) -> Filed:
        name = f"d8-k{next(NUMBERS)}"
        listing = [("InternalDNS", dns) if dns else ("InternalIP", address)] if listed else []
        machine(scene.world, name, *listing)
        names = [name, dns] if dns else [name]
        asked = Kubelet(node=name, dns_names=names, ip_addresses=[address] if address else [], extra=extra)
        return kubelet_asks(scene.world, asked)

    return attempt


def on_anothers_node(scene: Scene) -> Filed:
    """The Node of this name carries another machine's provider ID."""
    machine(scene.world, "d8-hijacked", provider_id="sandbox://d8-somebody-else")
    return kubelet_asks(scene.world, Kubelet(node="d8-hijacked", dns_names=["d8-hijacked"]))


def by_an_administrator(scene: Scene) -> Filed:
    machine(scene.world, "d8-byhand")
    return kubelet_asks(scene.world, Kubelet(node="d8-byhand", dns_names=["d8-byhand"]), asks_as="d8-root")


def as_a_client(scene: Scene) -> Filed:
    machine(scene.world, "d8-client")
    wanted = Kubelet(node="d8-client", dns_names=["d8-client"])
    return kubelet_asks(scene.world, wanted, usages=["digital signature", "server auth", "client auth"])


def without_a_machine(scene: Scene) -> Filed:
    register_node(scene.world, "d8-alone")
    return kubelet_asks(scene.world, Kubelet(node="d8-alone", dns_names=["d8-alone"]))


# Attested requests


def attested(*dns: str, address: str = "") -> Attempt:
    """Ask with right evidence, for the member's name and for another."""
    asked = Asked(dns_names=["d8-member", *dns], ip_addresses=[address] if address else [])
    return lambda scene: opened(scene.member, asked=asked).carry_out(node_client(scene.world, "d8-member"))


def by_a_token(scene: Scene) -> Filed:
    return opened(scene.member, asked=Asked(dns_names=["d8-member"])).carry_out(token_client(scene.world))


def by_a_machine_that_never_joined(scene: Scene) -> Filed:
    node = enrol(scene.world, "d8-never", addresses=[("Hostname", "d8-never")])
    return opened(node, asked=Asked(dns_names=["d8-never"])).carry_out(node_client(scene.world, "d8-never"))


def by_another_node(scene: Scene) -> Filed:
    return opened(scene.member, asked=Asked(dns_names=["d8-member"])).carry_out(node_client(scene.world, VICTIM))


def with_the_clients_key(scene: Scene) -> Filed:
    asked = Asked(dns_names=["d8-member"], key=scene.key.key)
    return opened(scene.member, asked=asked).carry_out(node_client(scene.world, "d8-member"))


def with_a_renewals_answer(scene: Scene) -> Filed:
    """Answer a renewal's challenge at the serving signer."""
    client = node_client(scene.world, "d8-member")
    renewal = opened(scene.member)
    answer = renewal.answer(renewal.first(client))
    serving = opened(scene.member, asked=Asked(dns_names=["d8-member"]))
    assert serving.purpose is Purpose.SERVING
    return serving.file(client, answer)


CASES: Final[Mapping[str, Attempt]] = {
    "D8-78": kubelet(dns=VICTIM),
    "D8-79": kubelet(address=VICTIMS),
    "D8-80": kubelet(address=ENDPOINT, listed=True),
    "D8-81": kubelet(address="127.0.0.1", listed=True),
    "D8-82": kubelet(address="0.0.0.0", listed=True),
    "D8-83": kubelet(address="169.254.169.254", listed=True),
    "D8-84": kubelet(address="fd00:ec2::254", listed=True),
    "D8-85": kubelet(address="10.97.0.1", listed=True),
    "D8-86": kubelet(address="::ffff:10.6.0.66", listed=True),
    "D8-87": kubelet(dns="*.example.com", listed=True),
    "D8-88": kubelet(dns="localhost", listed=True),
    "D8-89": kubelet(dns="kubernetes.default.svc", listed=True),
    "D8-90": kubelet(x509.RFC822Name("root@example.com")),
    "D8-91": kubelet(x509.UniformResourceIdentifier("spiffe://example.com/victim")),
    "D8-92": on_anothers_node,
    "D8-93": by_an_administrator,
    "D8-94": as_a_client,
    "D8-95": without_a_machine,
    "D8-96": by_a_token,
    "D8-97": by_a_machine_that_never_joined,
    "D8-98": by_another_node,
    "D8-99": with_the_clients_key,
    "D8-100": with_a_renewals_answer,
    "D8-101": attested(VICTIM),
    "D8-102": attested(address=VICTIMS),
    "D8-103": attested(address="127.0.0.1"),
    "D8-104": attested(address=ENDPOINT),
    "D8-105": attested(),
}


@pytest.fixture(scope="module")
def filed(scene: Scene) -> Mapping[str, Future[Filed]]:
    return attempted(CASES, scene)


@pytest.mark.parametrize(("row", "attempt"), attacks(CASES))
def test_no_certificate_names_what_is_not_the_nodes(
    filed: Mapping[str, Future[Filed]], row: Row, attempt: Attempt
) -> None:
    assert attempt
    refusal = filed[row.id].exception()
    if isinstance(refusal, ApiRefusal):  # an API server built with Go 1.27 does not parse this one (crypto/x509)
        assert "SAN iPAddress contains IPv4-mapped IPv6 address" in str(refusal)
        return
    becomes(filed[row.id].result(), row)


def test_kubelets_own_request_for_what_the_machine_lists_is_approved(scene: Scene) -> None:
    filed = kubelet(address="10.6.0.7", listed=True)(scene)
    assert eventually(filed.state, seconds=60, what="the approval") == "Approved"
