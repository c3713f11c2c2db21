"""Kubernetes' own programs beside a control plane: kube-controller-manager and kubeadm, to compare ourselves with.

Promises: what is started ends with the block; no configuration of this machine's user is read.
Source: kube-controller-manager and kubeadm, ``--help``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

from nodeattest_sandbox.child_process import LOOPBACK, Process, StartFailed, wait
from nodeattest_sandbox.control_plane import ControlPlane, free_ports, listens

__all__ = ["controller_manager", "kubeadm", "version"]

_LIMIT: Final = 60.0
"""Seconds for one run of kubeadm."""
_VERSION_WORDS: Final = MappingProxyType({"kubeadm": ("version", "-o", "short"), "kubectl": ("version", "--client")})
_NO_VARIABLES: Final[Mapping[str, str]] = MappingProxyType({})
_NO_FLAGS: Final[Mapping[str, object]] = MappingProxyType({})


@contextmanager
def controller_manager(
    plane: ControlPlane, assets: Path, controllers: Sequence[str], more: Mapping[str, object] = _NO_FLAGS
) -> Generator[Process]:
    """Run kube-controller-manager with these controllers (such as ``bootstrapsigner``) for the length of the block.

    ``more``: further flags.
    """
    binary = _binary(assets, "kube-controller-manager")
    (port,) = free_ports(1)
    directory = plane.directory / f"controller-manager-{port}"
    directory.mkdir()
    flags: dict[str, object] = {
        "kubeconfig": plane.client_kubeconfig("kube-controller-manager", ("system:masters",)),
        "bind-address": LOOPBACK,
        "secure-port": port,
        "leader-elect": "false",
        "controllers": ",".join(controllers),
        "root-ca-file": plane.ca_certificate,
        "service-account-private-key-file": plane.pki.account_key,
        "cluster-signing-cert-file": plane.ca_certificate,
        "cluster-signing-key-file": plane.ca_key,
        "cert-dir": directory / "certificates",
        **more,
    }
    pid_file = directory / "kube-controller-manager.pid"
    wrapper = [sys.executable, "-m", "nodeattest_sandbox.die_with_parent", str(pid_file)]
    command = [*wrapper, str(binary), *(f"--{name}={value}" for name, value in flags.items())]
    process = Process("kube-controller-manager", command, directory, pid_file)
    try:
        wait(process, lambda: listens(port))
        yield process
    finally:
        process.stop()


def kubeadm(
    assets: Path,
    *words: str,
    environment: Mapping[str, str] = _NO_VARIABLES,
    limit: float = _LIMIT,
) -> subprocess.CompletedProcess[str]:
    """Run kubeadm to its end; raises ``subprocess.TimeoutExpired``."""
    clean = {"PATH": os.defpath, "HOME": "/nonexistent", "NO_PROXY": LOOPBACK, **environment}
    command = [str(_binary(assets, "kubeadm")), *words]
    return subprocess.run(command, env=clean, capture_output=True, text=True, timeout=limit, check=False)


@cache
def version(binary: Path) -> str:
    """Return the version that a Kubernetes program states, such as ``v1.36.2``; each program is asked once."""
    words = _VERSION_WORDS.get(binary.name, ("--version",))
    stated = subprocess.run([binary, *words], capture_output=True, text=True, timeout=_LIMIT, check=True).stdout
    found = re.search(r"\bv1\.\d+\.\d+", stated)
    if found is None:
        raise StartFailed(f"{binary} states no version of Kubernetes: {stated[:200]!r}")
    return found[0]


def _binary(assets: Path, name: str) -> Path:
    binary = assets / name
    if not binary.exists():
        raise StartFailed(f"{name} is not in {assets}; KUBEBUILDER_ASSETS must name a folder that holds it")
    return binary
