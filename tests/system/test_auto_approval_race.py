"""A cluster's birth under attack: who holds a worker's token files requests with the in-tree signer all the while.

``kubeadm init`` creates its ConfigMap first, at which Cluster API calls the control plane initialized and hands out
worker tokens; then its phase bootstrap-token creates the auto-approving bindings, and cluster-info last
(cmd/kubeadm/app/cmd/init.go and phases/init/bootstraptoken.go). kube-controller-manager approves and signs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import pytest
from auto_approval_kit import (
    BOOTSTRAP,
    CLUSTERS,
    asks_in_tree,
    binding_names,
    condition,
    forget_bindings,
    forget_block,
    kubeadm_init,
    make_bindings,
)
from needs import kubernetes_folder, not_possible
from polling import eventually
from world import CSRS, World, built_world
from write_gate import Call, Gate

from nodeattest_controller.controllers.auto_approval.approval_block import POLICY_NAME
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.control_plane import StartControlPlane, controller_manager

ALONE: Final = ("--leader-elect", "false")
SIGNER: Final = "kubernetes.io/kube-apiserver-client-kubelet"
FOREIGN: Final = "somebodys:node-autoapprove"
ATTEMPTS: Final = 20
"""Of a thief between two phases of kubeadm."""
CLUSTER_INFO: Final = "/api/v1/namespaces/kube-public/configmaps/cluster-info"


@pytest.fixture(scope="module")
def town(start_control_plane: StartControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with built_world(start_control_plane, tmp_path_factory.mktemp("born")) as built:
        yield built


@pytest.fixture
def unborn(town: World) -> Iterator[World]:
    """Make the cluster one that kubeadm has not begun with; afterwards nothing of the test is left."""
    town.admin.patch(f"{CLUSTERS}/status", {"status": {"controlPlaneReady": False, "conditions": []}})
    town.set_policy(authorizedAttestors=["insecure"])
    forget_block(town)
    yield town
    forget_bindings(town, FOREIGN)
    for path in (CLUSTER_INFO, *(f"{CSRS}/{text_at(one, 'metadata', 'name')}" for one in requests(town))):
        with suppress(ApiRefusal):
            town.workload_admin.send("DELETE", path)


def requests(town: World) -> list[JsonMap]:
    found = town.workload_admin.list(CSRS)
    return [one for one in found if text_at(one, "spec", "signerName") == SIGNER]


def certificates(town: World) -> list[JsonMap]:
    return [one for one in requests(town) if text_at(one, "status", "certificate")]


@contextmanager
def signing(town: World, kind: str) -> Generator[None]:
    """Let the real kube-controller-manager approve and sign where there is one."""
    if kind != "real":
        yield
        return
    with controller_manager(town.workload, kubernetes_folder(), ["csrapproving", "csrsigning"]):
        yield


@dataclass
class Attempts:
    """What a thief tried: the names of his requests, and the answers by which the API server took others not."""

    filed: list[str] = field(default_factory=list[str])
    refused: list[str] = field(default_factory=list[str])

    def count(self) -> int:
        """Count them all."""
        return len(self.filed) + len(self.refused)


@contextmanager
def thief(town: World) -> Generator[Attempts]:
    """File requests for a victim's name with a worker's token, without a pause."""
    attempts = Attempts()
    stolen = town.workload.token_kubeconfig(town.token())
    over = threading.Event()

    def steal() -> None:
        while not over.is_set():
            try:
                attempts.filed.append(asks_in_tree(town, "victim", stolen))
            except ApiRefusal as refusal:
                attempts.refused.append(str(refusal))

    threads = [threading.Thread(target=steal, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield attempts
    finally:
        over.set()
        for thread in threads:
            thread.join(20)


@contextmanager
def watching(town: World) -> Generator[list[str]]:
    """Note whatever the condition says while cluster-info is not there yet."""
    early: list[str] = []
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            said = text_at(condition(town), "reason")
            try:
                town.workload_admin.get(CLUSTER_INFO)
            except ApiRefusal:
                early.append(said)
            time.sleep(0.05)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield early
    finally:
        over.set()
        thread.join(20)


def await_reason(town: World, reason: str, never: Callable[[], list[JsonMap]] = list) -> JsonMap:
    """Wait for the condition's reason; a failure says what the condition is instead, or what was ``never`` to be."""

    def is_given() -> bool:
        assert never() == []
        return text_at(condition(town), "reason") == reason

    eventually(
        is_given,
        f"the reason {reason}",
        seconds=40,
        state=lambda: condition(town),
    )
    return condition(town)


def installs_block(call: Call) -> bool:
    """Tell whether a call empties the ClusterRole or binds the admission policy."""
    return call.is_write and ("clusterroles/" in call.path or "policybindings" in call.path)


def upload_config(town: World, kind: str) -> None:
    """Run kubeadm's phase upload-config, at whose end Cluster API calls the control plane initialized."""
    if kind == "real":
        kubeadm_init(town, "upload-config", "kubeadm")
    town.admin.patch(f"{CLUSTERS}/status", {"status": {"controlPlaneReady": True}})


def give_birth(town: World, kind: str, over: Callable[[], object]) -> Attempts:
    """Let kubeadm run its phases while a thief works, who goes on until ``over`` returns."""
    upload_config(town, kind)
    with thief(town) as attempts:
        eventually(lambda: attempts.count() >= ATTEMPTS, what="the thief's attempts")  # before the phase's bindings
        make_bindings(town, real=kind == "real")
        over()
    return attempts


def await_certificate(town: World) -> None:
    """Wait until the thief has a certificate."""
    eventually(lambda: certificates(town), "a certificate")


def test_a_thief_gets_certificates_where_no_controller_is(unborn: World, control_plane_kind: str) -> None:
    if control_plane_kind != "real":
        not_possible("approving by itself is the work of kube-controller-manager")
    with signing(unborn, control_plane_kind):
        assert give_birth(unborn, control_plane_kind, lambda: await_certificate(unborn)).filed


def test_a_thief_gets_no_certificate_while_a_cluster_is_born(unborn: World, control_plane_kind: str) -> None:
    with Gate(unborn.workload) as gate, signing(unborn, control_plane_kind):
        gate.refused = lambda _call: 503
        path = gate.kubeconfig(unborn.workload.admin_kubeconfig, unborn.directory / "birth.kubeconfig")
        unborn.route_workload(path.read_bytes())
        try:
            with unborn.controller(*ALONE, log="birth.log"), watching(unborn) as early:
                eventually(lambda: gate.calls or None, seconds=60, what="the first write")
                gate.refused = lambda _call: None  # the API server answers: kubeadm's wait-control-plane ends
                eventually(lambda: any(installs_block(call) for call in gate.calls), what="the block")

                def is_over() -> None:
                    await_reason(unborn, "ClosedForBootstrap", never=lambda: certificates(unborn))

                attempts = give_birth(unborn, control_plane_kind, is_over)
                assert certificates(unborn) == []
                assert BOOTSTRAP not in binding_names(unborn)
                if control_plane_kind == "sandbox":  # without kubeadm's binding that lets tokens file requests
                    assert attempts.refused
                else:
                    assert f"ValidatingAdmissionPolicy '{POLICY_NAME}'" in attempts.refused[-1]
        finally:
            unborn.route_workload(unborn.workload.admin_kubeconfig.read_bytes())
    assert not {"Closed", "ClosedForBootstrap"} & set(early), early
