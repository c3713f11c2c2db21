"""What tests write for the Kubernetes programs of a folder: kubeadm's configuration, and how kubelet is started.

Sources: cmd/kubeadm/app/apis/kubeadm/v1beta4; cmd/kubelet/app/options.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

import yaml

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue
from nodeattest_sandbox.control_plane import version

KUBELET_SETTINGS: Final[JsonMap] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "address": "127.0.0.1",
    "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "cgroupsPerQOS": False,
    "enforceNodeAllocatable": [],
    "failCgroupV1": False,
    "failSwapOn": False,
    "healthzPort": 0,
    "makeIPTablesUtilChains": False,
}
"""For a kubelet that must not touch the machine on which the tests run."""
_KUBEADM: Final = "kubeadm.k8s.io/v1beta4"
_PROGRAMS: Final = ("kube-apiserver", "kube-controller-manager", "kubectl", "kubeadm", "kubelet")


def cluster_configuration(assets: Path, **fields: JsonValue) -> str:
    """Write a ClusterConfiguration that names its version, so that kubeadm does not look for one on the internet."""
    named: JsonMap = {
        "apiVersion": _KUBEADM,
        "kind": "ClusterConfiguration",
        "kubernetesVersion": version(assets / "kubeadm"),
    }
    return yaml.safe_dump({**named, **fields})


def join_configuration(discovery: JsonMap, *, seconds: int = 300, **fields: JsonValue) -> str:
    """Write a JoinConfiguration; ``seconds`` limits discovery and each wait for the API server."""
    timeouts: JsonMap = dict.fromkeys(("discovery", "kubernetesAPICall", "tlsBootstrap"), f"{seconds}s")
    named: JsonMap = {"apiVersion": _KUBEADM, "kind": "JoinConfiguration"}
    return yaml.safe_dump({**named, "discovery": discovery, "timeouts": timeouts, **fields})


def kubelet_command(kubelet: Path, config: Path, root: Path, socket: Path) -> list[str]:
    """Return kubelet's command."""
    flags = {"config": config, "root-dir": root, "container-runtime-endpoint": f"unix://{socket}"}
    return [str(kubelet), *(f"--{name}={value}" for name, value in flags.items())]


def stated_versions(assets: Path) -> str:
    """Name the programs of a folder, each with the version that it states: a log of the tests says what they ran on."""
    told = [f"{name} {version(assets / name)}" for name in _PROGRAMS if (assets / name).exists()]
    if (assets / "etcd").exists():
        stated = subprocess.run([assets / "etcd", "--version"], capture_output=True, text=True, timeout=30, check=True)
        told.append(re.sub(r"\Aetcd Version: (\S+)(?s:.*)", r"etcd \1", stated.stdout))
    missing = [name for name in (*_PROGRAMS, "etcd") if not (assets / name).exists()]
    return ", ".join([*told, *(f"no {name}" for name in missing)])
