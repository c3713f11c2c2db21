"""What is rendered, run: real agent, swtpm, controller, API server, kubeadm and kubelet make a node of a template."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import pytest
import yaml
from cryptography import x509
from first_boot import booted
from kubernetes_assets import (
    KUBELET_SETTINGS,
    cluster_configuration,
    join_configuration,
)
from needs import ONLY_ROOT
from runtime_stub import RuntimeStub
from test_discovery_real_kubelet import QUIET
from test_discovery_system import new_token, operate
from world import BIN, World

from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig import IGNORED_PREFLIGHT, RenderOptions
from nodeattest_controller.controllers.bootstrap_config.render import render
from nodeattest_discovery import clusterinfo
from nodeattest_discovery.pins import pin_of
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.identifiers import ProviderName
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at
from nodeattest_sandbox.client import Client

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.swtpm,
    # kubelet speaks protobuf, which the sandbox does not.
    pytest.mark.parametrize("control_plane_kind", ["real"], indirect=True, scope="session"),
    ONLY_ROOT,
]

CONFIG_MAPS: Final = "/api/v1/namespaces/kube-system/configmaps"
RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
HERE: Final = [
    "NumCPU",
    "Mem",
    "Swap",
    "CRI",
    "ContainerRuntimeVersion",
    "SystemVerification",
    "Port-10250",
    "Hostname",
    "Service-Kubelet",
    *(
        f"FileExisting-{name}"
        for name in ("conntrack", "crictl", "ip", "iptables", "ebtables", "ethtool", "socat", "tc")
    ),
    *(f"FileContent--proc-sys-net-{name}" for name in ("bridge-bridge-nf-call-iptables", "ipv4-ip_forward")),
]
"""What this machine lacks to be a node, and a real one would not; what attestation needs is not in it."""


@pytest.fixture(scope="module")
def cluster(world: World, assets: Path) -> Iterator[World]:
    """A world whose workload cluster holds what kubeadm join asks for."""
    world.set_policy(authorizedAttestors=["tpm"])
    with world.controller("--controllers=*,bootstrap-signer,token-cleaner", log="rendered.log") as running:
        world.await_service(running)
        operate(world, "cluster-info", "publish", "--replace")
        keep_for_kubeadm(world.workload_admin, world.workload.server, assets)
        yield world
    for path in (clusterinfo.PATH, f"{CONFIG_MAPS}/kubelet-config"):
        world.workload_admin.send("DELETE", path)


def keep_for_kubeadm(admin: Client, server: str, assets: Path) -> None:
    """Keep what ``kubeadm init`` leaves for ``join`` (phases uploadconfig, kubelet, bootstraptoken)."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    configuration = cluster_configuration(assets, controlPlaneEndpoint=server.removeprefix("https://"))
    kubelet = {**QUIET, **KUBELET_SETTINGS, "port": port, "maxPods": 7}
    data: dict[str, JsonMap] = {
        "kubeadm-config": {"ClusterConfiguration": configuration},
        "kubelet-config": {"kubelet": yaml.safe_dump(kubelet)},
    }
    for name, content in data.items():
        admin.create(CONFIG_MAPS, {"metadata": {"name": name}, "data": content})
    maps: JsonMap = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": list(data), "verbs": ["get"]}
    nodes: JsonMap = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}
    group: JsonMap = {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "Group",
        "name": "system:bootstrappers:kubeadm:default-node-token",
    }
    for kind, path, rule in (
        ("Role", f"{RBAC}/namespaces/kube-system/role", maps),
        ("ClusterRole", f"{RBAC}/clusterrole", nodes),
    ):
        role: JsonMap = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "kubeadm:join"}
        admin.create(f"{path}s", {"metadata": {"name": "kubeadm:join"}, "rules": [rule]})
        admin.create(f"{path}bindings", {"metadata": {"name": "kubeadm:join"}, "subjects": [group], "roleRef": role})


def template(
    machine: str,
    version: str,
    tcti: str,
    file_format: str = "cloud-config",
    **registration: Any,
) -> dict[str, Any]:
    """Render a worker's template, with a name and a provider ID that differ by machine."""
    # kubeadm writes no empty list into kubelet's configuration, and one that is not there means a default.
    arguments: dict[str, JsonValue] = {"enforce-node-allocatable": ""}
    if version == "v1beta1":
        registration["kubeletExtraArgs"] = arguments
    else:
        registration["kubeletExtraArgs"] = [{"name": name, "value": value} for name, value in arguments.items()]
    own: JsonObject = {"joinConfiguration": {"nodeRegistration": registration}, "format": file_format}
    # What differs by machine cloud-init fills in by itself; with Ignition it is the user's command that does.
    own["preKubeadmCommands"] = (
        [f"sed -i s/@NAME@/{machine}/ /etc/kubeadm.yml"] if file_format == "ignition" else ["echo 1"]
    )
    document: JsonObject = {
        "apiVersion": f"bootstrap.cluster.x-k8s.io/{version}",
        "kind": "KubeadmConfigTemplate",
        "metadata": {"name": "md-0"},
        "spec": {"template": {"spec": own}},
    }
    plan = RenderOptions(provider=ProviderName("tpm"), provider_id="sandbox://@NAME@", settings={"tcti": tcti})
    return json.loads(json.dumps(render(document, plan)))["spec"]["template"]["spec"]


def kubeadms(world: World, spec: dict[str, Any], token: str, name: str) -> str:
    """Write what Cluster API's bootstrap provider, and cloud-init where it runs, make of a joinConfiguration."""
    registration: dict[str, Any] = dict(spec["joinConfiguration"]["nodeRegistration"])
    arguments: Any = registration["kubeletExtraArgs"]
    if isinstance(arguments, dict):  # Cluster API converts v1beta1 to kubeadm's list
        arguments = [{"name": name, "value": value} for name, value in cast("dict[str, str]", arguments).items()]
    registration["kubeletExtraArgs"] = arguments
    ca = x509.load_pem_x509_certificate(world.workload.ca_certificate.read_bytes())
    server = world.workload.server.removeprefix("https://")
    by_token: JsonMap = {"apiServerEndpoint": server, "token": token, "caCertHashes": [str(pin_of(ca))]}
    text = "---\n" + join_configuration({"bootstrapToken": by_token}, nodeRegistration=registration)
    return text if spec["format"] == "ignition" else text.replace("@NAME@", name)


@pytest.mark.parametrize(("version", "file_format"), [("v1beta1", "cloud-config"), ("v1beta2", "ignition")])
def test_a_machine_of_a_rendered_template_becomes_a_node_by_kubeadm_join(
    cluster: World, assets: Path, tmp_path: Path, version: str, file_format: str
) -> None:
    name = f"rendered-{version}"
    tpm = cluster.tpm(name)
    cluster.machine(name, tpm=tpm)
    token = new_token(cluster)
    socket_path = tmp_path / "runtime.sock"
    spec = template(
        name,
        version,
        tpm.tcti,
        file_format,
        name="@NAME@",
        criSocket=f"unix://{socket_path}",
        ignorePreflightErrors=HERE,
    )
    with RuntimeStub(socket_path):
        result = booted(
            tmp_path / "boot",
            spec,
            kubeadms(cluster, spec, token, name),
            path=f"{BIN}:{assets}:{os.environ['PATH']}",
            kubelet=assets / "kubelet",
        )
    assert result["kubeadm"], result["output"][-4000:] + result["kubeletLog"][-4000:]
    check_node(cluster, name)
    check_kubelet(result["started"].split())
    check_files(tmp_path / "boot" / "root", token)
    assert f"[WARNING {IGNORED_PREFLIGHT}]" in result["output"]
    assert result["kubelet"]


def check_node(world: World, name: str) -> None:
    """The Node is there, with its Machine's provider ID, by an attested request and no other."""
    node = world.workload_admin.get(f"/api/v1/nodes/{name}")
    assert text_at(node, "spec", "providerID") == f"sandbox://{name}"
    assert text_at(world.ledger(name), "spec", "nodeName") == name
    signers = {text_at(request, "spec", "signerName") for request in world.requests_of(name)}
    signers.discard("kubernetes.io/kubelet-serving")  # a kubelet may have come so far
    assert signers == {"cluster.x-k8s.io/kube-apiserver-client-kubelet-tpm"}


def check_kubelet(words: list[str]) -> None:
    """kubelet's last word on each: no bootstrap, no rotation of its own, serving certificates from the cluster."""
    said = {word.partition("=")[0]: word.partition("=")[2] for word in words if word.startswith("--")}
    assert said["--bootstrap-kubeconfig"] == ""
    assert said["--kubeconfig"] == "/etc/kubernetes/kubelet.conf"
    assert (said["--rotate-certificates"], said["--rotate-server-certificates"]) == ("false", "true")
    assert not any("bootstrap-kubelet.conf" in word for word in words)


def check_files(root: Path, token: str) -> None:
    """kubeadm left our kubeconfig alone; the token is where the agent keeps it, and nowhere else."""
    kubeconfig = json.loads((root / "etc/kubernetes/kubelet.conf").read_bytes())
    assert kubeconfig["users"][0]["user"]["exec"]["args"][0] == "credential"
    assert not (root / "etc/kubernetes/bootstrap-kubelet.conf").exists()
    holders = [
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and token.encode() in path.read_bytes()
    ]
    assert holders == ["var/lib/kubelet-authenticator/bootstrap-token"]
