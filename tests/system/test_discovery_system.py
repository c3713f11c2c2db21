"""From an operator's ``cluster-info publish`` to a node that follows its cluster: every part a process, no kubeadm."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
import yaml
from cryptography import x509
from polling import eventually
from world import BIN, Agent, World

from nodeattest_discovery import clusterinfo, token
from nodeattest_discovery.pins import pin_of
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at
from nodeattest_sandbox.client import ApiRefusal

KUBE_SYSTEM = "/api/v1/namespaces/kube-system/configmaps"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system"
KEPT = "kubelet-config"
"""The ConfigMap's name, and that of the right to read it."""
CONFIGURATION = """apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
maxPods: 77
"""


@pytest.fixture(scope="module")
def discoverable(world: World) -> Iterator[World]:
    """A world whose workload cluster can be discovered, and keeps a configuration for its kubelets."""
    world.set_policy(authorizedAttestors=["insecure"])
    keep_kubelet_configuration(world)
    with world.controller("--controllers=*,bootstrap-signer,token-cleaner", log="signing.log") as running:
        world.await_service(running)
        operate(world, "cluster-info", "publish")
        yield world
    for path in (
        clusterinfo.PATH,
        f"{KUBE_SYSTEM}/{KEPT}",
        f"{RBAC}/rolebindings/{KEPT}",
        f"{RBAC}/roles/{KEPT}",
    ):
        world.workload_admin.send("DELETE", path)


def keep_kubelet_configuration(world: World) -> None:
    """Do as kubeadm does (phases/kubelet, ``kubeadm:kubelet-config``)."""
    name = KEPT
    rule: JsonMap = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["get"]}
    group: JsonMap = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"}
    role: JsonMap = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    admin = world.workload_admin
    admin.create(KUBE_SYSTEM, {"metadata": {"name": name}, "data": {"kubelet": CONFIGURATION}})
    admin.create(f"{RBAC}/roles", {"metadata": {"name": name}, "rules": [rule]})
    admin.create(f"{RBAC}/rolebindings", {"metadata": {"name": name}, "subjects": [group], "roleRef": role})


def operate(world: World, *words: str) -> None:
    """Type what an operator types."""
    command = [BIN / "nodeattest", *words, "--kubeconfig", str(world.workload.admin_kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def new_token(world: World) -> str:
    """Make a token, and wait until a controller has signed with it and the API server knows it."""
    made = token.generate()
    operate(world, "token", "create", made.reveal())
    await_signature(world, made.id)
    return world.workload.await_token(made.reveal())


def await_signature(world: World, token_id: str) -> None:
    def signed() -> bool:
        try:
            found = world.workload_admin.get(clusterinfo.PATH)
        except ApiRefusal:
            return False
        return bool(text_at(found, "data", clusterinfo.SIGNATURE_PREFIX + token_id))

    eventually(signed, what="the signature")


def discover(world: World, agent: Agent, made: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Join with nothing but an address, a token and a pin."""
    agent.directory.mkdir(parents=True, exist_ok=True)
    token_file = agent.directory / "token"
    token_file.write_text(made)
    token_file.chmod(0o600)
    ca = x509.load_pem_x509_certificate(world.workload.ca_certificate.read_bytes())
    return agent.run(
        *("join", world.workload.server.removeprefix("https://"), "--token-file", str(token_file)),
        *("--discovery-token-ca-cert-hash", str(pin_of(ca)), "--discovery-timeout", "30"),
        *("--provider", "insecure", "--provider-id", agent.provider_id, "--node-name", agent.node_name),
        *("--kubeconfig", str(agent.kubeconfig), *agent.files(), *flags),
    )


def test_a_machine_that_knows_an_address_a_token_and_a_pin_becomes_a_node(discoverable: World) -> None:
    world, made = discoverable, new_token(discoverable)
    world.machine("found-0")
    agent = world.agent("found-0", "insecure")
    config, ca_file = agent.directory / "kubelet.yaml", agent.directory / "ca.crt"
    joined = discover(world, agent, made, "--kubelet-config", str(config), "--kubelet-ca-file", str(ca_file))
    assert joined.returncode == 0, joined.stderr
    document = yaml.safe_load(config.read_text())
    assert (document["maxPods"], document["rotateCertificates"], document["serverTLSBootstrap"]) == (77, False, True)
    assert document["authentication"]["x509"]["clientCAFile"] == str(ca_file)
    assert ca_file.read_bytes().endswith(world.workload.ca_certificate.read_bytes())
    assert text_at(world.ledger("found-0"), "spec", "nodeName") == "found-0"
    assert made[7:] not in joined.stdout + joined.stderr + (world.directory / "signing.log").read_text()
