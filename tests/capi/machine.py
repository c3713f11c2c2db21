"""A machine that is a process: software TPM, the image's programs, and the user data that cloud-init executes.

Mounts and process IDs are its own (first_boot.py); the network is shared, so each kubelet has a port of its own.
Source: cloud-init "Instance-data" (templates), cc_write_files, cc_runcmd.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import yaml
from first_boot import image, run_on, start
from world import BIN

from nodeattest_sandbox.control_plane import free_ports
from nodeattest_sandbox.swtpm import SoftwareTpm

PATCHES: Final = "/etc/kubernetes/patches"
"""Where the image has kubeadm's patches of kubelet's configuration: kubeadm asks the port for health that they name."""

_DONE: Final = "/run/cluster-api/bootstrap-success.complete"
_FIELD: Final = re.compile(r"\{\{\s*ds\.meta_data\.(\w+)\s*\}\}")
_INIT: Final = """\
conf=/etc/kubernetes/super-admin.conf
set -e
{kubeadm} init phase kubeconfig all --config $3
[ -e $conf ] || conf=/etc/kubernetes/admin.conf
sed -i "s#server: .*#$(grep -o 'server: .*' $conf)#" /etc/kubernetes/*.conf
{kubeadm} init phase kubelet-start --config $3
{kubeadm} init phase upload-config all --config $3 --kubeconfig $conf
until {kubectl} --kubeconfig $conf label --overwrite node {name} node-role.kubernetes.io/control-plane=; do
  sleep 0.5
done
{kubeadm} init phase bootstrap-token --config $3 --kubeconfig $conf
"""
"""``kubeadm init`` in its order, without what the provider did (certs, control-plane, etcd) and add-ons, which have no
runtime here (cmd/kubeadm/app/cmd/init.go). Since 1.31 some kubeconfigs, and since 1.33 kubeadm itself without
``--kubeconfig``, call the machine's own address, where the provider's API server does not listen; the phase
mark-control-plane, which waits for the Node, too, takes none."""


@dataclass(slots=True)
class ProcessMachineHost:
    """One machine; ``boot`` it once, and ``stop`` it."""

    name: str
    directory: Path
    assets: Path
    tpm: SoftwareTpm
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @classmethod
    def create(cls, name: str, directory: Path, assets: Path) -> ProcessMachineHost:
        """Make a machine with a TPM that runs."""
        tpm = SoftwareTpm.create(directory / "tpms", name=name)
        tpm.start()
        return cls(name, directory / name, assets, tpm)

    @property
    def provider_id(self) -> str:
        return f"process://{self.name}"

    @property
    def booted(self) -> bool:
        return self._process is not None

    def boot(self, user_data: str) -> None:
        """Boot it with a bootstrap data Secret's value."""
        known = {"local_hostname": self.name, "instance_id": self.name}
        text = _FIELD.sub(lambda found: known[found[1]], user_data)
        document = cast("dict[str, Any]", yaml.safe_load(text))
        files = [{**each, "content": _content(each)} for each in document.get("write_files", [])]
        port, health = free_ports(2)
        files += [
            {"path": "/etc/default/kubelet", "content": f"KUBELET_EXTRA_ARGS={self._kubelet_flags(port, health)}\n"},
            {"path": f"{PATCHES}/kubeletconfiguration0+merge.json", "content": json.dumps({"healthzPort": health})},
        ]
        commands = [each if isinstance(each, str) else shlex.join(each) for each in document.get("runcmd", [])]
        self.directory.mkdir(parents=True, exist_ok=True)
        self._process = start(
            self.directory / "boot",
            files,
            "\n".join(["#!/bin/sh", *commands]),
            path=self._path(),
            kubelet=self.assets / "kubelet",
            done=_DONE,
            stays=True,
        )

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the machine, as root who logged in."""
        assert self._process is not None
        return run_on(self._process, *command, path=self._path())

    def attest_anew(self, *flags: str, provider: str = "tpm") -> subprocess.CompletedProcess[str]:
        """Join again by the node's own certificate: the cluster is given, as no token that could find it is left."""
        kubeconfig = yaml.safe_load(self.run("cat", "/etc/kubernetes/kubelet.conf").stdout)
        cluster = kubeconfig["clusters"][0]["cluster"]
        told = {
            "server": cluster["server"],
            "ca-file": "/etc/kubernetes/pki/ca.crt",
            "node-name": self.name,
            "provider-id": self.provider_id,
            "provider": provider,
            "token": "gone00.0000000000000000",
        }
        words = [word for name, value in told.items() for word in (f"--{name}", value)]
        return self.run("kubelet-authenticator", "join", "--renew", *words, *flags)

    def stop(self) -> None:
        """Switch it off for ever."""
        if self._process is not None:
            self._process.communicate(timeout=30)  # closes its standard input, with which it ends
        self.tpm.stop()

    def _kubelet_flags(self, port: int, health: int) -> str:
        """Say what an image may say: which ports, and nothing of the machine of the tests is touched."""
        return (
            f"--fail-cgroupv1=false --port={port} --healthz-port={health} --read-only-port=0 --address=127.0.0.1 "
            "--cgroups-per-qos=false --enforce-node-allocatable= --make-iptables-util-chains=false --fail-swap-on=false"
        )

    def _path(self) -> str:
        """Return PATH, which begins with the image's programs: the agent with its TPM, and kubeadm."""
        agent, kubeadm = f"exec {BIN}/kubelet-authenticator", self.assets / "kubeadm"
        tcti = f'command=$1; shift; set -- "$command" --tcti {shlex.quote(self.tpm.tcti)} "$@"'
        tcti = f'case "$*" in *"--provider tpm"*) {tcti};; esac'
        of_kubelet = f'case "$1" in join | adopt) ;; *) {agent} "$@";; esac'
        phases = _INIT.format(kubeadm=kubeadm, kubectl=self.assets / "kubectl", name=self.name)
        programs = {
            "kubelet-authenticator": f'{of_kubelet}\n{tcti}\n{agent} "$@"',
            "kubeadm": f'[ "$1" = init ] || exec {kubeadm} "$@"\n{phases}',
        }
        return f"{image(self.directory / 'image', programs)}:{BIN}:{self.assets}:{os.environ['PATH']}"


def _content(file: dict[str, Any]) -> str:
    if file.get("encoding") in ("base64", "b64"):
        return base64.b64decode(file["content"]).decode()
    return str(file["content"])
