"""An infrastructure provider whose clusters and machines are processes of this machine (contract v1beta2).

A ProcessCluster is etcd, kube-apiserver and kube-controller-manager behind its endpoint, before any machine: ``kubeadm
init`` on the first machine does the rest. Their certificates are the user's, which Cluster API takes from Secrets. A
ProcessMachine is a ``machine.ProcessMachineHost``. The provider registers each TPM's endorsement key.

Machines outlive the provider: one that is started anew, or for another management cluster, finds them.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import subprocess
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast

import yaml
from first_boot import image, run_on, start
from kinds import (
    CLUSTER,
    CLUSTER_LABEL,
    MACHINE,
    POOL,
    PROCESS_CLUSTER,
    PROCESS_MACHINE,
    PROCESS_POOL,
    SECRET,
    Object,
    controller_of,
    made,
    name_of,
    owner,
    owner_of,
    secret,
)
from managers import Access, running
from world import BIN, EK_ANNOTATION

from nodeattest_sandbox.child_process import free_ports
from nodeattest_sandbox.control_plane import ControlPlane, controller_manager, start_real
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


DEFINITIONS: Final = Path(__file__).with_name("infrastructure.yaml")
_FINALIZER: Final = "processmachine.infrastructure.cluster.x-k8s.io"
_POOL_LABEL: Final = "cluster.x-k8s.io/pool-name"
_OF_KUBEADM: Final = ("csrapproving", "csrsigning", "bootstrapsigner", "tokencleaner")
"""Controllers that every cluster of kubeadm has, as far as joining needs them."""


@dataclass(slots=True)
class Infrastructure:
    """The processes, and the reconcilers that make them; as a context manager all end with the block."""

    directory: Path
    assets: Path
    planes: dict[str, ControlPlane] = field(default_factory=dict[str, ControlPlane])
    machines: dict[str, ProcessMachineHost] = field(default_factory=dict[str, ProcessMachineHost])
    _stack: ExitStack = field(default_factory=ExitStack)

    def manager(self, plane: ControlPlane, namespace: str) -> AbstractContextManager[None]:
        """Return the provider for one management cluster."""
        reconcilers = {PROCESS_CLUSTER: self._cluster, PROCESS_MACHINE: self._machine, PROCESS_POOL: self._pool}
        return running(Access(plane.client(), namespace), reconcilers)

    def spare_tpm(self, name: str) -> SoftwareTpm:
        """Make a TPM that is no machine's."""
        return self._stack.enter_context(SoftwareTpm.create(self.directory / "tpms", name=name))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for machine in self.machines.values():
            machine.stop()
        self._stack.close()

    def _cluster(self, access: Access, value: Object) -> None:
        name = value["metadata"].get("labels", {}).get(CLUSTER_LABEL, "")
        if not owner_of(value, CLUSTER):
            return  # contract: wait for Cluster API to own it; it is its controller with a topology only
        if name not in self.planes:
            self.planes[name] = self._start(name)
        plane = self.planes[name]
        authority = {"tls.crt": plane.ca_certificate.read_bytes(), "tls.key": plane.ca_key.read_bytes()}
        access.create(secret(f"{name}-ca", name, authority))
        access.create(secret(f"{name}-kubeconfig", name, {"value": plane.admin_kubeconfig.read_bytes()}))
        host, _, port = plane.server.removeprefix("https://").partition(":")
        value = access.patch(value, spec={"controlPlaneEndpoint": {"host": host, "port": int(port)}})
        access.status(value, initialization={"provisioned": True})

    def _start(self, name: str) -> ControlPlane:
        plane = self._stack.enter_context(start_real(self.directory / name, self.assets, name=name))
        self._stack.enter_context(controller_manager(plane, self.assets, _OF_KUBEADM))
        return plane

    def _machine(self, access: Access, value: Object) -> None:
        name, metadata = name_of(value), value["metadata"]
        if "deletionTimestamp" in metadata:
            gone = self.machines.pop(name, None)
            if gone is not None:
                gone.stop()
            access.patch(value, metadata={"finalizers": None})
            return
        reference = controller_of(value)
        owning = access.get(MACHINE, reference["name"]) if reference.get("kind") == MACHINE.kind else None
        data_name = _data_secret(access, owning) if owning else ""
        if not data_name:
            return
        if name not in self.machines:
            self.machines[name] = ProcessMachineHost.create(name, self.directory, self.assets)
        machine = self.machines[name]
        annotations = {EK_ANNOTATION: machine.tpm.endorsement_fingerprint()}
        value = access.patch(value, metadata={"annotations": annotations, "finalizers": [_FINALIZER]})
        value = access.patch(value, spec={"providerID": machine.provider_id})
        addresses = [{"type": "Hostname", "address": name}]
        access.status(value, addresses=addresses, initialization={"provisioned": True})
        if not machine.booted:
            data: Any = access.get(SECRET, data_name)
            machine.boot(base64.b64decode(data["data"]["value"]).decode())

    def _pool(self, access: Access, value: Object) -> None:
        reference = controller_of(value)
        pool = access.get(POOL, reference["name"]) if reference.get("kind") == POOL.kind else None
        if pool is None:
            return
        cluster, replicas = value["metadata"]["labels"][CLUSTER_LABEL], int(pool["spec"].get("replicas", 1))
        names = [f"{name_of(value)}-{number}" for number in range(replicas)]
        value = access.status(value, infrastructureMachineKind=PROCESS_MACHINE.kind, replicas=replicas)
        labels = {_POOL_LABEL: name_of(pool)}
        for name in names:
            references = [owner(value, controller=False)]
            access.create(made(PROCESS_MACHINE, name, cluster, {}, labels=labels, ownerReferences=references))
        value = access.patch(value, spec={"providerIDList": [f"process://{name}" for name in names]})
        # Of pools Cluster API 1.13 still asks for the field of v1beta1 (controllers/external, IsReady).
        access.status(value, ready=True, initialization={"provisioned": True})


def _data_secret(access: Access, machine: Object) -> str:
    """Name the bootstrap data of a Machine; a pool's Machines have none of their own (computeDesiredMachine)."""
    pool = machine["metadata"].get("labels", {}).get(_POOL_LABEL)
    owning = access.get(POOL, pool) if pool else None
    spec = owning["spec"]["template"]["spec"] if owning else machine["spec"]
    return str(spec.get("bootstrap", {}).get("dataSecretName", ""))
