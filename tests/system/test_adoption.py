"""A node that joined by kubeadm is taken over: certificate, ledger, the binding by which it renewed, the word."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from auto_approval_kit import (
    BOOTSTRAP,
    ROTATION,
    binding_names,
    condition,
    file_in_tree,
    make_bindings,
    nudge,
    register_node,
)
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from needs import kubernetes_folder
from polling import eventually
from world import CSRS, Agent, World, built_world

from nodeattest_controller.controllers.auto_approval.approval_block import POLICY_NAME
from nodeattest_sandbox.apiserver.jsonvalue import map_at, maps_at, text_at
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.control_plane import StartControlPlane, controller_manager
from nodeattest_sandbox.swtpm import SoftwareTpm

pytestmark = pytest.mark.swtpm
ALONE = ("--leader-elect", "false")
NODE = "veteran"


@pytest.fixture(scope="module")
def town(start_control_plane: StartControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world of its own: whose Nodes matter here."""
    with built_world(start_control_plane, tmp_path_factory.mktemp("adoption")) as built:
        yield built


def kubelets_kubeconfig(town: World, *, real: bool) -> Path:
    """Give a node what kubeadm join leaves it with; where kube-controller-manager is at hand, it signs, unasked."""
    if not real:
        return town.workload.client_kubeconfig(f"system:node:{NODE}", ["system:nodes"])
    key = ec.generate_private_key(ec.SECP256R1())
    assets = kubernetes_folder()
    with controller_manager(town.workload, assets, ["csrapproving", "csrsigning"]):
        name = file_in_tree(town.workload.client(town.workload.token_kubeconfig(town.token())), NODE, key)
        found = eventually(
            lambda: text_at(town.workload_admin.get(f"{CSRS}/{name}"), "status", "certificate"), what="the signature"
        )
    folder = town.directory / "old-node"
    folder.mkdir()
    pem = folder / "kubelet-client-current.pem"
    key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    pem.write_bytes(base64.b64decode(found) + key_pem)
    cluster = {"server": town.workload.server, "certificate-authority": str(town.workload.ca_certificate)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "default-context",
        "clusters": [{"name": "default-cluster", "cluster": cluster}],
        "contexts": [{"name": "default-context", "context": {"cluster": "default-cluster", "user": "default-auth"}}],
        "users": [{"name": "default-auth", "user": {"client-certificate": pem.name, "client-key": pem.name}}],
    }
    kubeconfig = folder / "kubelet.conf"
    kubeconfig.write_text(json.dumps(document))
    return kubeconfig


def adopts(agent: Agent, kubeconfig: Path, tpm: SoftwareTpm) -> tuple[int, str]:
    done = agent.run(
        "adopt",
        *("--provider", "tpm", "--provider-id", agent.provider_id, "--tcti", tpm.tcti),
        *("--kubeconfig", str(kubeconfig), *agent.files()),
    )
    return done.returncode, done.stdout + done.stderr


def test_a_node_that_joined_by_kubeadm_is_adopted_and_the_last_automatic_approval_ends(
    town: World, control_plane_kind: str
) -> None:
    real = control_plane_kind == "real"
    make_bindings(town, real=real)
    kubeconfig = kubelets_kubeconfig(town, real=real)
    joined = time.time()
    eventually(lambda: time.time() >= joined + 1, what="the second to end: the policy is younger than the certificate")
    town.set_policy(authorizedAttestors=["tpm"])
    node = register_node(town, NODE, f"sandbox://{NODE}")
    tpm = town.tpm(NODE)
    reference = {"kind": "Node", "name": NODE, "uid": text_at(node, "metadata", "uid")}
    town.machine(NODE, tpm=tpm, node=reference)

    with town.controller(*ALONE, log="adoption.log"):
        eventually(lambda: text_at(condition(town), "reason") == "ClosedForBootstrap", seconds=60, what="the finding")
        assert NODE in text_at(condition(town), "message")

        by_token = town.agent(NODE, "tpm", directory="by-token", tcti=tpm.tcti).join(town.token())
        assert "MachineAlreadyBound" in by_token.stderr
        assert "kubelet-authenticator adopt" in by_token.stderr

        thief = town.agent(NODE, "tpm", directory="thief")
        copy = town.directory / "stolen.conf"
        there = f'"{kubeconfig.parent}/kubelet-client'
        copy.write_text(kubeconfig.read_text().replace('"kubelet-client', there))
        code, said = adopts(thief, copy, town.tpm("other"))
        assert code == 1, said
        assert not town.ledger(NODE)
        assert ROTATION in binding_names(town)

        agent = town.agent(NODE, "tpm", directory="veteran", tcti=tpm.tcti)
        code, said = adopts(agent, kubeconfig, tpm)
        assert code == 0, said
        assert "systemctl restart kubelet" in said
        assert len(list(maps_at(map_at(town.ledger(NODE), "spec"), "issued"))) == 1
        exec_plugin = json.loads(kubeconfig.read_bytes())["users"][0]["user"]["exec"]
        assert exec_plugin["args"][0] == "credential"

        nudge(town)
        eventually(lambda: text_at(condition(town), "reason") == "Closed", seconds=60, what="the last door to close")
        assert not binding_names(town) & {BOOTSTRAP, ROTATION}

    assert adopts(agent, kubeconfig, tpm)[0] == 0  # again, and nobody need be there

    stolen = town.workload.token_kubeconfig(town.token())
    with pytest.raises(ApiRefusal, match=f"ValidatingAdmissionPolicy '{POLICY_NAME}'"):
        file_in_tree(town.workload.client(stolen), "victim")
    if real:
        approver_skips(town, stolen)


def approver_skips(town: World, stolen: Path) -> None:
    """Without the policy, too, kube-controller-manager approves no request of a token: nobody has the permission."""
    for resource in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
        town.workload_admin.delete(f"/apis/admissionregistration.k8s.io/v1/{resource}/{POLICY_NAME}")

    def file() -> str | None:
        with suppress(ApiRefusal):  # the server evaluates a deleted policy for up to a second
            return file_in_tree(town.workload.client(stolen), "victim")

    def reviews() -> int:
        return sum(one.resource == "subjectaccessreviews" for one in town.workload.requests())

    name, before = eventually(file, what="the policy's end"), reviews()
    with controller_manager(town.workload, kubernetes_folder(), ["csrapproving", "csrsigning"]):
        eventually(lambda: reviews() >= before + 4, what="two attempts of the approver, each with two reviews")
    assert not map_at(town.workload_admin.get(f"{CSRS}/{name}"), "status")
