"""An infrastructure provider whose clusters and machines are processes of this machine (contract v1beta2).

A ProcessCluster is etcd, kube-apiserver and kube-controller-manager behind its endpoint, before any machine: ``kubeadm
init`` on the first machine does the rest. Their certificates are the user's, which Cluster API takes from Secrets. A
ProcessMachine is a ``machine.ProcessMachineHost``. The provider registers each TPM's endorsement key.

Machines outlive the provider: one that is started anew, or for another management cluster, finds them.
"""

from __future__ import annotations

import base64
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

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
from machine import ProcessMachineHost
from manager import Access, running
from world import EK_ANNOTATION

from nodeattest_sandbox.control_plane import ControlPlane, controller_manager, start_real
from nodeattest_sandbox.swtpm import SoftwareTpm

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
