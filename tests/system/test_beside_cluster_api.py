"""The whole way on real API servers: definitions, our manifests, a Machine of Cluster API, an attested node, its end.

Real: etcd, kube-apiserver, kube-controller-manager (garbage collector, token controllers), kubectl, kubeadm, kubelet,
swtpm, the controller with the rights of the manifests and no others, the agent. Written by the test, at the moment they
would write it: Cluster API's own controllers.
"""

from __future__ import annotations

import base64
import os
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, cast

import cluster_api_world as stage
import pytest
import yaml
from cluster_api_world import BOOTSTRAP, CLUSTER, CORE, INFRASTRUCTURE, NAMESPACE, Scene, condition, owner, secret
from cryptography import x509
from first_boot import booted
from runtime_stub import RuntimeStub
from test_rendered_bootstrap import HERE, keep_for_kubeadm
from world import BIN, EK_ANNOTATION, Controller, eventually

from nodeattest_controller.configfile import API_VERSION, KIND
from nodeattest_discovery.pins import pin_of
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at, texts_at
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.control_plane import free_ports, start_real
from nodeattest_sandbox.definitions import keeps_custom_resources
from nodeattest_sandbox.fleet import create_bootstrap_token
from nodeattest_sandbox.swtpm import SoftwareTpm

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.swtpm,
    pytest.mark.skipif(os.geteuid() != 0, reason="kubeadm and kubelet run as root only"),
]

OWN: Final = f"/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/{NAMESPACE}"
SECRETS: Final = "/api/v1/namespaces/kube-system/secrets"
BINDINGS: Final = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
CONFIGURATION: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/nodeattest-bootstrap-config"
WORKER: Final = "blue-md-0-x1"
POOL: Final = "blue-mp-0"
TOKEN: Final = "abc001.0123456789abcdef"
POOL_TOKEN: Final = "abc002.0123456789abcdef"
NOT_POSSIBLE: Final = "not possible here:"  # tests/conftest.py
SIGNER: Final = "attestation.cluster.x-k8s.io/kubelet-client-certificate-signer"


@pytest.fixture(scope="module")
def scene(assets: Path, capi_definitions: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """What an operator has when everything is installed, before there is a machine."""
    directory = tmp_path_factory.mktemp("beside")
    with ExitStack() as stack:
        management = stack.enter_context(start_real(directory / "management", assets, name="management"))
        if not keeps_custom_resources(management):
            pytest.skip(f"{NOT_POSSIBLE} this kube-apiserver dies of custom resources")
        workload = stack.enter_context(start_real(directory / "workload", assets, name="workload"))
        made = Scene(assets=assets, directory=directory, management=management, workload=workload)
        kubeconfig = stage.prepare_management(made, capi_definitions, stack)
        rights = ("workload-hardening", "workload-bootstrap-token")
        there = stage.prepare_workload(made, stack, *rights)
        keep_for_kubeadm(made.there, workload.server)
        stage.create_cluster(made, there)
        made.here.create(f"{OWN}/nodeattestationpolicies", policy())
        stack.enter_context(controller(made, kubeconfig))
        yield made


def policy() -> JsonMap:
    """The one field that has to be set."""
    return {
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "NodeAttestationPolicy",
        "metadata": {"name": "metal"},
        "spec": {"authorizedAttestors": ["tpm"]},
    }


def controller(scene: Scene, kubeconfig: Path) -> Controller:
    """The controller with everything that is on by default, and its webhook at a port instead of a Service."""
    (port,) = free_ports(1)
    called: JsonMap = {"url": f"https://127.0.0.1:{port}/mutate-bootstrap-config"}
    replaced: JsonMap = {"op": "replace", "path": "/webhooks/0/clientConfig", "value": called}
    scene.here.patch(CONFIGURATION, [replaced], "json")
    settings = scene.directory / "controller.yaml"
    settings.write_text(yaml.safe_dump({"apiVersion": API_VERSION, "kind": KIND, "webhookHosts": ["127.0.0.1"]}))
    flags = ["--config", str(settings), "--webhook-bind-address", f"127.0.0.1:{port}"]
    flags += ["--namespace", "nodeattest-system"]
    return Controller(kubeconfig, scene.directory / "controller.log", flags)


def kubeadm_config(name: str) -> JsonMap:
    """The KubeadmConfig that a MachineSet or a user makes; nothing in it knows of attestation."""
    registration: JsonMap = {
        "name": name,
        "criSocket": "unix:///tmp/unset",
        "kubeletExtraArgs": [
            {"name": "provider-id", "value": f"dev://{name}"},
            {"name": "enforce-node-allocatable", "value": ""},  # this kubelet must not touch the machine of the tests
        ],
        "ignorePreflightErrors": list(HERE),
    }
    return {
        "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2",
        "kind": "KubeadmConfig",
        "metadata": {"name": name, "labels": {"cluster.x-k8s.io/cluster-name": CLUSTER}},
        "spec": {"joinConfiguration": {"nodeRegistration": registration}, "preKubeadmCommands": ["echo mine"]},
    }


def created_config(scene: Scene, config: JsonMap) -> JsonMap:
    """Create it as soon as the webhook's certificate has reached the API server."""

    def attempt() -> JsonMap | None:
        try:
            return scene.here.create(f"{BOOTSTRAP}/kubeadmconfigs", config)
        except ApiRefusal as refusal:
            if "webhook" not in str(refusal):
                raise
            return None

    return eventually(attempt, seconds=60, what="an answer of the webhook")


def with_token(scene: Scene, config: JsonMap, token: str) -> JsonMap:
    """Do the bootstrap provider's part: a token of 15 minutes in the workload cluster, and in the configuration."""
    create_bootstrap_token(scene.there, token, expiration=datetime.now(UTC) + timedelta(minutes=15))
    theirs = base64.b64encode(b"token generated by cluster-api-bootstrap-provider-kubeadm").decode()
    scene.there.patch(token_path(token), {"data": {"description": theirs}})
    ca = x509.load_pem_x509_certificate(scene.workload.ca_certificate.read_bytes())
    found: JsonMap = {
        "token": token,
        "apiServerEndpoint": scene.workload.server.removeprefix("https://"),
        "caCertHashes": [str(pin_of(ca))],
    }
    name = text_at(config, "metadata", "name")
    scene.here.create(f"/api/v1/namespaces/{NAMESPACE}/secrets", secret(name, {"value": b"#cloud-config\n"}))
    patch: JsonMap = {"spec": {"joinConfiguration": {"discovery": {"bootstrapToken": found}}}}
    return scene.here.patch(f"{BOOTSTRAP}/kubeadmconfigs/{name}", patch)


def reference(group: str, kind: str, name: str) -> JsonMap:
    return {"apiGroup": f"{group}.cluster.x-k8s.io", "kind": kind, "name": name}


def machine(scene: Scene, tpm: SoftwareTpm) -> JsonMap:
    """Make Machine and DevMachine, as the MachineSet and the infrastructure provider leave them."""
    spec: JsonMap = {
        "clusterName": CLUSTER,
        "providerID": f"dev://{WORKER}",
        "version": "v1.20.2",
        "infrastructureRef": reference("infrastructure", "DevMachine", WORKER),
        "bootstrap": {
            "configRef": reference("bootstrap", "KubeadmConfig", WORKER),
            "dataSecretName": WORKER,
        },
    }
    labels: JsonMap = {"cluster.x-k8s.io/cluster-name": CLUSTER}
    made = scene.here.create(
        f"{CORE}/machines",
        {
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "Machine",
            "metadata": {"name": WORKER, "labels": labels},
            "spec": spec,
        },
    )
    scene.here.create(
        f"{INFRASTRUCTURE}/devmachines",
        {
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2",
            "kind": "DevMachine",
            "metadata": {
                "name": WORKER,
                "labels": labels,
                "annotations": {EK_ANNOTATION: tpm.endorsement_fingerprint()},
                "ownerReferences": [owner(made)],
            },
            "spec": {"providerID": f"dev://{WORKER}", "backend": {"inMemory": {}}},
        },
    )
    return machine_status(scene, initialization={"bootstrapDataSecretCreated": True, "infrastructureProvisioned": True})


def machine_status(scene: Scene, **status: Any) -> JsonMap:
    return scene.here.patch(f"{CORE}/machines/{WORKER}/status", {"status": cast("JsonMap", status)})


def boot(scene: Scene, config: JsonMap, tpm: SoftwareTpm) -> dict[str, Any]:
    """Boot the machine with what the API server keeps of its configuration.

    Its PATH leads to the agent by way of what is special here: a TPM of software, and a kubelet of 1.20, which speaks
    v1beta1 of the exec protocol only.
    """
    folder, runtime = scene.directory / "boot", scene.directory / "runtime.sock"
    tools = scene.directory / "tools"
    tools.mkdir()
    agent = tools / "kubelet-authenticator"
    special = f"--tcti {shlex.quote(tpm.tcti)} --exec-api-version v1beta1"
    agent.write_text(
        f'#!/bin/sh\n[ "$1" = join ] && exec {BIN}/kubelet-authenticator "$@" {special}\n'
        f'exec {BIN}/kubelet-authenticator "$@"\n'
    )
    agent.chmod(0o755)
    spec = cast("dict[str, Any]", config["spec"])
    registration = dict(spec["joinConfiguration"]["nodeRegistration"], criSocket=f"unix://{runtime}")
    # To kubeadm 1.20 the bootstrap provider speaks v1beta2 of kubeadm's own API, which has a map here.
    registration["kubeletExtraArgs"] = {each["name"]: each["value"] for each in registration["kubeletExtraArgs"]}
    registration["ignorePreflightErrors"] = list(registration["ignorePreflightErrors"])
    join = {
        "apiVersion": "kubeadm.k8s.io/v1beta2",
        "kind": "JoinConfiguration",
        "discovery": spec["joinConfiguration"]["discovery"],
        "nodeRegistration": registration,
    }
    with RuntimeStub(runtime):
        return booted(
            folder,
            spec,
            yaml.safe_dump(join),
            path=f"{tools}:{BIN}:{scene.assets}:{os.environ['PATH']}",
            kubelet=scene.assets / "kubelet",
        )


def test_a_machine_joins_attested_and_leaves_nothing_behind(scene: Scene) -> None:
    """Cluster API's definitions, our manifests, one policy: the rest happens."""
    with ExitStack() as stack:
        tpm = SoftwareTpm.create(scene.directory / "tpms", name=WORKER)
        tpm.start()
        stack.callback(tpm.stop)
        config = created_config(scene, kubeadm_config(WORKER))
        check_rendered(config)
        config = with_token(scene, config, TOKEN)
        check_rendered(config)
        machine(scene, tpm)
        eventually(lambda: minutes_left(scene, TOKEN) > 30, seconds=60, what="the renewal of the machine's token")
        result = boot(scene, config, tpm)
        if "reflect2" in result["output"] and "SIGSEGV" in result["output"]:
            pytest.skip(f"{NOT_POSSIBLE} kubeadm before 1.23 built with Go 1.18 or later dies of KubeletConfiguration")
        assert result["kubeadm"], result["output"][-4000:] + result["kubeletLog"][-4000:]
        check_node(scene)
        machine_status(scene, nodeRef={"name": WORKER})
        check_standing(scene)
        check_cluster(scene)
        eventually(lambda: minutes_left(scene, TOKEN) <= 5, seconds=60, what="the nearing end of a token that served")
        leave(scene)
        eventually(lambda: not has_token(scene, TOKEN), seconds=90, what="the end of the machine's token")


def check_rendered(config: JsonMap) -> None:
    """The webhook added what attestation needs, and left the user's own."""
    commands = texts_at(config, "spec", "preKubeadmCommands")
    assert commands[0] == "echo mine"
    assert any("kubelet-authenticator join --kubeadm-config" in command for command in commands)


def check_node(scene: Scene) -> None:
    """kubelet registered with a certificate of ours, under its Machine's provider ID."""
    node = scene.there.get(f"/api/v1/nodes/{WORKER}")
    assert text_at(node, "spec", "providerID") == f"dev://{WORKER}"
    (ledger,) = scene.here.list(f"{OWN}/machineattestations")
    assert text_at(ledger, "spec", "nodeName") == WORKER
    requests = scene.there.list("/apis/certificates.k8s.io/v1/certificatesigningrequests")
    signers = {text_at(request, "spec", "signerName") for request in requests}
    assert "cluster.x-k8s.io/kube-apiserver-client-kubelet-tpm" in signers
    assert "kubernetes.io/kube-apiserver-client-kubelet" not in signers


def check_standing(scene: Scene) -> None:
    """The Machine says that it is attested."""

    def status() -> bool:
        return condition(scene.here.get(f"{CORE}/machines/{WORKER}"), "NodeAttested")[0] == "True"

    eventually(status, seconds=60, what="the Machine's condition")


def check_cluster(scene: Scene) -> None:
    """Side doors are closed, the signer's name stands, the policy is ready."""

    def closed() -> tuple[str, str, str] | None:
        said = condition(scene.here.get(f"{CORE}/clusters/{CLUSTER}"), "SideDoorsClosed")
        return said if said[0] == "True" else None

    eventually(closed, seconds=90, what="the side doors' end")
    left = {text_at(binding, "metadata", "name") for binding in scene.there.list(BINDINGS)}
    assert not left & {"kubeadm:node-autoapprove-bootstrap", "kubeadm:node-autoapprove-certificate-rotation"}
    infrastructure = scene.here.get(f"{INFRASTRUCTURE}/devclusters/{CLUSTER}")
    told = text_at(infrastructure, "status", "kubeletClientCertificateSigner")
    told = told or text_at(infrastructure, "metadata", "annotations", SIGNER)
    assert told == "cluster.x-k8s.io/kube-apiserver-client-kubelet-tpm"
    assert condition(scene.here.get(f"{OWN}/nodeattestationpolicies/metal"), "Ready")[0] == "True"


def token_path(token: str) -> str:
    """Where a token's Secret stands."""
    return f"{SECRETS}/bootstrap-token-{token.partition('.')[0]}"


def has_token(scene: Scene, token: str) -> bool:
    """Whether it is there."""
    name = token_path(token).rpartition("/")[2]
    return any(text_at(found, "metadata", "name") == name for found in scene.there.list(SECRETS))


def minutes_left(scene: Scene, token: str) -> float:
    """How long it is still good."""
    kept = base64.b64decode(text_at(scene.there.get(token_path(token)), "data", "expiration")).decode()
    return (datetime.fromisoformat(kept) - datetime.now(UTC)).total_seconds() / 60


def leave(scene: Scene) -> None:
    """Delete the Machine, as Cluster API does after it drained and deleted the Node: its ledger goes with it."""
    scene.there.delete(f"/api/v1/nodes/{WORKER}")
    scene.here.delete(f"{CORE}/machines/{WORKER}")
    eventually(lambda: not scene.here.list(f"{OWN}/machineattestations"), seconds=90, what="the ledger's end")


def test_a_pools_token_lives_as_long_as_the_pool(scene: Scene) -> None:
    with_token(scene, created_config(scene, kubeadm_config(POOL)), POOL_TOKEN)
    bootstrap: JsonMap = {"configRef": reference("bootstrap", "KubeadmConfig", POOL), "dataSecretName": POOL}
    template: JsonMap = {
        "spec": {
            "clusterName": CLUSTER,
            "bootstrap": bootstrap,
            "infrastructureRef": reference("infrastructure", "DevMachinePool", POOL),
        }
    }
    pool = scene.here.create(
        f"{CORE}/machinepools",
        {
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "MachinePool",
            "metadata": {"name": POOL, "labels": {"cluster.x-k8s.io/cluster-name": CLUSTER}},
            "spec": {"clusterName": CLUSTER, "replicas": 1, "template": template},
        },
    )
    eventually(lambda: minutes_left(scene, POOL_TOKEN) > 30, seconds=90, what="the renewal of the pool's token")
    scene.here.delete(f"{CORE}/machinepools/{text_at(pool, 'metadata', 'name')}")
    eventually(lambda: not has_token(scene, POOL_TOKEN), seconds=90, what="the end of the pool's token")
