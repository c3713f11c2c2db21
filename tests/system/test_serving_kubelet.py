"""Kubelet's own serving requests: approved where every name is the Machine's, refused or left alone elsewhere."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from filing_requests import Filed
from kubelet_requests import KUBELET_SERVING, Kubelet, kubelet_asks, register_node
from needs import ONLY_ROOT, kubernetes_program, not_possible
from polling import eventually
from test_serving_agent import kubelet, shown
from world import NAMESPACE, Controller, World

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, maps_at, text_at

MACHINES = f"/apis/cluster.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/machines"
EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"
LIFETIME = 60
"""Seconds that a certificate is still valid when it is issued."""
BACKDATE = timedelta(minutes=5)
"""By which kube-controller-manager lets validity begin before. Kubelet rotates a certificate when 70 to 90 % of its
validity has passed: here at once, or at most 24 s after it was issued."""
APPROVING: dict[str, JsonValue] = {"authorizedAttestors": ["challenge"], "serving": {"kubelet": "Approve"}}


@pytest.fixture(scope="module")
def controller(world: World) -> Iterator[Controller]:
    world.set_policy(**APPROVING)
    config = world.directory / "kubelet-serving.yaml"
    head = "apiVersion: config.nodeattest.x-k8s.io/v1alpha1\nkind: NodeAttestationControllerConfiguration\n"
    config.write_text(head + "waitLimit: 30s\n")
    flags = ("--config", str(config), "--leader-elect", "false")
    with world.controller(*flags, log="kubelet-serving.log") as running:
        world.await_service(running)
        yield running


pytestmark = pytest.mark.usefixtures("controller")


def end_of(filed: Filed) -> str:
    return eventually(filed.state, what=f"the end of {filed.name}")


def machine(world: World, name: str, *addresses: tuple[str, str]) -> None:
    """Make a Machine and its Node, which know of each other."""
    world.machine(name, addresses=addresses)
    reference: JsonMap = {"name": name, "uid": text_at(register_node(world, name), "metadata", "uid")}
    world.admin.patch(f"{MACHINES}/{name}/status", {"status": {"nodeRef": reference}})


def test_a_request_for_the_machines_names_is_approved_and_not_signed_here(world: World) -> None:
    machine(world, "k-good", ("InternalDNS", "k-good.lan"), ("InternalIP", "10.8.0.1"))
    filed = kubelet_asks(world, Kubelet(node="k-good", dns_names=["k-good.lan"], ip_addresses=["10.8.0.1"]))
    assert end_of(filed) == "Approved"

    def is_reported() -> bool:  # other machines of this world have Events of this reason, too
        approved = (event for event in world.admin.list(EVENTS) if text_at(event, "reason") == "ServingApproved")
        return any(text_at(event, "involvedObject", "name") == "k-good" for event in approved)

    eventually(is_reported, what="the Event")
    assert text_at(filed.read(), "status", "certificate") == ""
    assert world.ledger("k-good") == {}


@pytest.fixture
def signing(world: World, control_plane_kind: str) -> Iterator[None]:
    """Run the real kube-controller-manager's signer, whose certificates expire soon."""
    if control_plane_kind != "real":
        not_possible("signing for this signer is the work of kube-controller-manager")
    binary = kubernetes_program("kube-controller-manager")
    workload = world.workload
    flags = {
        "kubeconfig": workload.admin_kubeconfig,
        "cluster-signing-cert-file": workload.ca_certificate,
        "cluster-signing-key-file": workload.ca_key,
        "controllers": "csrsigning",
        "leader-elect": "false",
        "bind-address": "127.0.0.1",
        "secure-port": "0",
        "cluster-signing-duration": f"{LIFETIME}s",
    }
    with (world.directory / "kube-controller-manager.log").open("wb") as log:
        command = [str(binary), *(f"--{name}={value}" for name, value in flags.items())]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


@ONLY_ROOT
@pytest.mark.usefixtures("signing")
def test_a_real_kubelet_serves_what_is_approved_and_rotates_it_before_it_expires(world: World, tmp_path: Path) -> None:
    program, name = kubernetes_program("kubelet"), "k-real"
    world.machine(name)
    kubeconfig = world.workload.client_kubeconfig(f"system:node:{name}", ["system:nodes"])
    flags = (f"--kubeconfig={kubeconfig}", f"--hostname-override={name}")
    with kubelet(program, tmp_path, *flags, serverTLSBootstrap=True, providerID=f"sandbox://{name}") as port:
        node = eventually(lambda: registered(world, name), seconds=60, what="the Node with its addresses")
        # As an infrastructure provider and Cluster API report them.
        status: JsonMap = {
            "nodeRef": {"name": name, "uid": text_at(node, "metadata", "uid")},
            "addresses": list(maps_at(node, "status", "addresses")),
        }
        world.admin.patch(f"{MACHINES}/{name}/status", {"status": status})
        first = eventually(lambda: shown(world, port, name), seconds=60, what="the certificate")
        second = eventually(
            lambda: None if (found := shown(world, port, name)) == first else found,
            seconds=LIFETIME,
            what="the next certificate",
        )
    assert second is not None
    assert second.not_valid_before_utc + BACKDATE < first.not_valid_after_utc
    assert second.public_key() != first.public_key()
    assert names_of(second) == names_of(first)  # a change of names would renew it, too
    requests = [one for one in world.requests_of(name) if text_at(one, "spec", "signerName") == KUBELET_SERVING]
    issued = [text_at(one, "status", "certificate") for one in requests]
    pems = [base64.b64encode(one.public_bytes(Encoding.PEM)).decode() for one in (first, second)]
    assert set(pems) <= set(issued)
    conditions = [one for request in requests for one in maps_at(request, "status", "conditions")]
    assert {(text_at(one, "type"), text_at(one, "reason")) for one in conditions} == {("Approved", "AddressesVerified")}


def names_of(certificate: x509.Certificate) -> list[x509.GeneralName]:
    return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)


def registered(world: World, name: str) -> JsonMap | None:
    """Return a Node that its kubelet has registered with an address."""
    nodes = [one for one in world.workload_admin.list("/api/v1/nodes") if text_at(one, "metadata", "name") == name]
    kinds = {text_at(one, "type") for node in nodes for one in maps_at(node, "status", "addresses")}
    return nodes[0] if "InternalIP" in kinds else None
