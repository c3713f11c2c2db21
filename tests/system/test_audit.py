"""``enforcement: Audit``: nothing is signed that Enforce would deny, and nobody else's way is closed."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest
from filing_requests import Filed, Wanted, file_request
from kubelet_requests import Kubelet, kubelet_asks, register_node
from polling import eventually
from world import NAMESPACE, OWN, Controller, World

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, text_at

MACHINES = f"/apis/cluster.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/machines"
EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"
POLICY = f"{OWN}/nodeattestationpolicies/policy"


@pytest.fixture(scope="module")
def controller(world: World) -> Iterator[Controller]:
    serving: dict[str, JsonValue] = {"kubelet": "Approve"}
    world.set_policy(authorizedAttestors=["insecure"], serving=serving, enforcement="Enforce")
    config = world.directory / "audit.yaml"
    head = "apiVersion: config.nodeattest.x-k8s.io/v1alpha1\nkind: NodeAttestationControllerConfiguration\n"
    config.write_text(head + "waitLimit: 20s\n")
    with world.controller("--config", str(config), "--leader-elect", "false", log="audit.log") as running:
        world.await_service(running)
        yield running


pytestmark = pytest.mark.usefixtures("controller")


def enforce(world: World, enforcement: str) -> None:
    """Set it, and wait until the controller works by it."""
    world.admin.patch(POLICY, {"spec": {"enforcement": enforcement}})
    world.await_policy()


def attack(world: World, kind: str, name: str) -> Filed:
    """File a request that must be denied for good."""
    match kind:
        case "a provider that the policy does not name":
            world.machine(name)
            return file_request(world, Wanted(node=name, provider="challenge"))
        case "another machine's name":
            world.machine(name)
            return file_request(world, Wanted(node=f"{name}-attacker", provider_id=f"sandbox://{name}"))
        case "a version that nobody speaks":
            world.machine(name)
            return file_request(world, Wanted(node=name, version=99))
        case "a usage that clients have not":
            world.machine(name)
            return file_request(world, Wanted(node=name), usages=["server auth", "digital signature"])
        case "bytes that are no envelope":
            return file_request(world, Wanted(node=name), request=base64.b64encode(Kubelet(node=name).pem()).decode())
        case "a machine that is not there, until it waited too long":
            return file_request(world, Wanted(node=name))
        case _:
            raise AssertionError(kind)


ATTACKS = (
    "a provider that the policy does not name",
    "another machine's name",
    "a version that nobody speaks",
    "a usage that clients have not",
    "bytes that are no envelope",
    "a machine that is not there, until it waited too long",
)


def test_each_attack_meets_the_same_denial_in_both(world: World) -> None:
    ends: dict[str, list[str]] = {}
    for enforcement in ("Enforce", "Audit"):
        enforce(world, enforcement)
        filed = {kind: attack(world, kind, f"{enforcement.lower()}-{number}") for number, kind in enumerate(ATTACKS)}
        ends[enforcement] = [eventually(filed[kind].state, seconds=30, what=kind) for kind in ATTACKS]
    assert all(end.startswith("Denied:") for end in ends["Enforce"]), ends["Enforce"]
    assert ends["Audit"] == ends["Enforce"]


def test_what_enforce_would_sign_an_audit_signs(world: World) -> None:
    enforce(world, "Audit")
    world.machine("audited")
    filed = file_request(world, Wanted(node="audited"))
    eventually(lambda: filed.state() == "issued", what="the certificate")


def test_kubelets_own_request_that_enforce_would_deny_is_reported_and_left(world: World) -> None:
    enforce(world, "Audit")
    names = machine(world, "left-alone", "10.9.0.1")
    filed = kubelet_asks(world, Kubelet(node="left-alone", dns_names=names, ip_addresses=["10.9.9.9"]))
    eventually(lambda: told(world, filed), what="the report")
    assert filed.state() == ""
    enforce(world, "Enforce")
    assert eventually(filed.state, what="the denial").startswith("Denied:")


def test_kubelets_own_request_that_is_sound_is_approved_in_an_audit_too(world: World) -> None:
    enforce(world, "Audit")
    names = machine(world, "sound", "10.9.0.2")
    filed = kubelet_asks(world, Kubelet(node="sound", dns_names=names, ip_addresses=["10.9.0.2"]))
    assert eventually(filed.state, what="the approval") == "Approved"


def machine(world: World, name: str, address: str) -> list[str]:
    """Make a Machine and its Node, which know of each other; return its names."""
    world.machine(name, addresses=(("InternalDNS", f"{name}.lan"), ("InternalIP", address)))
    reference: JsonMap = {"name": name, "uid": text_at(register_node(world, name), "metadata", "uid")}
    world.admin.patch(f"{MACHINES}/{name}/status", {"status": {"nodeRef": reference}})
    return [f"{name}.lan"]


def told(world: World, filed: Filed) -> bool:
    return any(
        filed.name in text_at(one, "message") and "Audit" in text_at(one, "message") for one in world.admin.list(EVENTS)
    )
