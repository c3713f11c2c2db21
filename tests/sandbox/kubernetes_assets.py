"""What the Kubernetes programs of a folder speak: each is asked for its version once, and nothing else decides.

Known are 1.20 and later, as far as the tests need them. Sources: CHANGELOG-1.22 to 1.36 of Kubernetes;
cmd/kubeadm/app/apis/kubeadm (v1beta2 until 1.22, v1beta3 from there, v1beta4 from 1.31; each is read for years, and its
successor is the one to write); cmd/kubelet/app/options.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, maps_at, text_at
from nodeattest_sandbox.client import ApiRefusal, Client
from nodeattest_sandbox.kubernetes_binaries import minor_version, version

__all__ = [
    "cluster_configuration",
    "extra_arguments",
    "join_configuration",
    "kubeadm_api",
    "kubelet_command",
    "kubelet_config_map",
    "kubelet_settings",
    "serves",
    "stated_versions",
]

_KUBEADM: Final = "kubeadm.k8s.io"
_PROGRAMS: Final = ("kube-apiserver", "kube-controller-manager", "kubectl", "kubeadm", "kubelet")


def kubeadm_api(assets: Path) -> str:
    """Return the newest API version of kubeadm's own configuration: ``kubeadm.k8s.io/v1beta4``."""
    minor = minor_version(assets / "kubeadm")
    return f"{_KUBEADM}/v1beta{4 if minor >= 31 else 3 if minor >= 22 else 2}"


def cluster_configuration(assets: Path, **fields: JsonValue) -> str:
    """Write a ClusterConfiguration that names its version, so that kubeadm does not look for one on the internet."""
    named: JsonMap = {
        "apiVersion": kubeadm_api(assets),
        "kind": "ClusterConfiguration",
        "kubernetesVersion": version(assets / "kubeadm"),
    }
    return yaml.safe_dump({**named, **fields})


def join_configuration(assets: Path, discovery: JsonMap, *, seconds: int = 300, **fields: JsonValue) -> str:
    """Write a JoinConfiguration; ``seconds`` is the limit of discovery."""
    limit = f"{seconds}s"
    told: JsonMap = (
        {"discovery": discovery, "timeouts": {"discovery": limit, "tlsBootstrap": limit}}
        if kubeadm_api(assets).endswith("v1beta4")
        else {"discovery": {**discovery, "timeout": limit}}
    )
    return yaml.safe_dump({"apiVersion": kubeadm_api(assets), "kind": "JoinConfiguration", **told, **fields})


def extra_arguments(assets: Path, arguments: Mapping[str, str]) -> JsonValue:
    """Return ``kubeletExtraArgs``: a list since v1beta4, before that a map."""
    if kubeadm_api(assets).endswith("v1beta4"):
        return [{"name": name, "value": value} for name, value in arguments.items()]
    return {**arguments}


def kubelet_config_map(assets: Path) -> str:
    """Return the name under which kubeadm keeps kubelet's configuration; until 1.23 the version is part of it."""
    minor = minor_version(assets / "kubeadm")
    return "kubelet-config" if minor >= 24 else f"kubelet-config-1.{minor}"


def kubelet_settings(kubelet: Path) -> JsonMap:
    """Return what a KubeletConfiguration needs on any machine: from 1.35 on the first hierarchy of cgroups is refused.

    The field is known from 1.31 on.
    """
    return {"failCgroupV1": False} if minor_version(kubelet) >= 31 else {}


def kubelet_command(kubelet: Path, config: Path, root: Path, socket: Path) -> list[str]:
    """Return kubelet's command; from 1.27 on every runtime is remote, and no flag says so."""
    said = [] if minor_version(kubelet) >= 27 else ["--container-runtime=remote"]
    flags = {"config": config, "root-dir": root, "container-runtime-endpoint": f"unix://{socket}"}
    return [str(kubelet), *said, *(f"--{name}={value}" for name, value in flags.items())]


def serves(client: Client, group_version: str, resource: str) -> bool:
    """Tell whether an API server serves a resource, such as ``apps/v1`` and ``deployments``."""
    try:
        found = client.get(f"/apis/{group_version}")
    except ApiRefusal:
        return False
    return any(text_at(one, "name") == resource for one in maps_at(found, "resources"))


def stated_versions(assets: Path) -> str:
    """Name the programs of a folder, each with the version that it states: a log of the tests says what they ran on."""
    told = [f"{name} {version(assets / name)}" for name in _PROGRAMS if (assets / name).exists()]
    if (assets / "etcd").exists():
        stated = subprocess.run([assets / "etcd", "--version"], capture_output=True, text=True, timeout=30, check=True)
        told.append(re.sub(r"\Aetcd Version: (\S+)(?s:.*)", r"etcd \1", stated.stdout))
    missing = [name for name in (*_PROGRAMS, "etcd") if not (assets / name).exists()]
    return ", ".join([*told, *(f"no {name}" for name in missing)])
