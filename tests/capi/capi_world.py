"""A management cluster with Cluster API's managers, an infrastructure provider and our shipped manifests."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import yaml
from cert_manager import serving_files
from infrastructure import DEFINITIONS, Infrastructure
from kinds import CONFIG, MACHINE, Kind, Object, made, name_of
from managers import Managers
from polling import eventually
from world import Controller

from nodeattest_controller.model.webhook_configuration import label_command
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at
from nodeattest_sandbox.child_process import free_ports
from nodeattest_sandbox.client import ApiRefusal, Client
from nodeattest_sandbox.control_plane import ControlPlane, controller_manager, start_real
from nodeattest_sandbox.definitions import install_definitions

MANIFESTS: Final = Path(__file__).parents[2] / "manifests"
ACCOUNT: Final = "node-attestation-controller"
NAMESPACE: Final = "fleet"
BLUE: Final = "blue"
GREEN: Final = "green"
LEDGERS: Final = Kind("attestation.cluster.x-k8s.io", "machineattestations", "MachineAttestation", "v1alpha1")
POLICIES: Final = Kind("attestation.cluster.x-k8s.io", "nodeattestationpolicies", "NodeAttestationPolicy", "v1alpha1")
_OF_MANAGEMENT: Final = ("garbagecollector", "clusterrole-aggregation")
"""Controllers of a management cluster: Cluster API's managers get their rights by aggregated ClusterRoles."""
T = TypeVar("T")


@dataclass(slots=True)
class Management:
    """One management cluster and the programs that act in it."""

    plane: ControlPlane
    kubeconfig: Path
    controller: Controller
    admin: Client
    port: int

    def list(self, kind: Kind, **labels: str) -> list[Object]:
        query = {"labelSelector": ",".join(f"{key}={value}" for key, value in labels.items())} if labels else {}
        return cast("list[Object]", self.admin.list(kind.path(NAMESPACE), **query))

    def get(self, kind: Kind, name: str) -> Object | None:
        return cast("Object | None", self.admin.find(kind.path(NAMESPACE, name)))

    def patch(self, kind: Kind, name: str, **patch: Any) -> Object:
        return cast("Object", self.admin.patch(kind.path(NAMESPACE, name), cast("JsonMap", patch)))

    def delete(self, kind: Kind, name: str) -> None:
        self.admin.delete(kind.path(NAMESPACE, name))

    def create(self, kind: Kind, value: Object, **query: str) -> Object:
        """Create an object, again while a webhook does not answer."""

        def attempt() -> Object | None:
            try:
                return cast("Object", self.admin.create(kind.path(NAMESPACE), cast("JsonMap", value), **query))
            except ApiRefusal as refusal:
                if "webhook" not in str(refusal) or "denied" in str(refusal):
                    raise
                return None

        return eventually(attempt, seconds=120, what="an answer of the webhooks")

    def workers(self, **labels: str) -> list[Object]:
        """Return the Machines that are no control plane's, and are not being deleted."""
        found = [one for one in self.list(MACHINE, **labels) if "deletionTimestamp" not in one["metadata"]]
        return [one for one in found if "cluster.x-k8s.io/control-plane" not in one["metadata"]["labels"]]

    def certificates(self, node: str) -> int:
        """Count the certificates in a node's ledger."""
        found = [one["spec"] for one in self.list(LEDGERS)]
        return sum(len(spec.get("issued", [])) for spec in found if spec.get("nodeName") == node)

    def ledger_names(self) -> set[str]:
        """Return the node names that have a ledger."""
        return {str(one["spec"].get("nodeName", "")) for one in self.list(LEDGERS)}


@dataclass(slots=True)
class CapiWorld:
    """All of it; ``management`` is the cluster that manages now."""

    directory: Path
    assets: Path
    managers: Managers
    infrastructure: Infrastructure
    stack: ExitStack
    _acting: Management | None = None
    _running: dict[str, ExitStack] = field(default_factory=dict[str, ExitStack])
    """What runs in each management cluster."""

    @property
    def management(self) -> Management:
        """The management cluster in which all act."""
        assert self._acting is not None
        return self._acting

    def workload(self, cluster: str = BLUE) -> Client:
        return self.infrastructure.planes[cluster].client()

    def nodes(self, cluster: str = BLUE) -> dict[str, Object]:
        found = cast("list[Object]", self.workload(cluster).list("/api/v1/nodes"))
        return {name_of(one): one for one in found}

    def kubectl(self, plane: ControlPlane, *words: str) -> None:
        command = [str(self.assets / "kubectl"), f"--kubeconfig={plane.admin_kubeconfig}"]
        command += [f"--cache-dir={self.directory / 'kubectl-cache'}", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr

    def add_management(self, name: str) -> Management:
        """Make a management cluster with all that an operator installs there; nothing runs in it yet.

        The Deployment stays out: no kubelet runs there.
        """
        plane = self.stack.enter_context(start_real(self.directory / name, self.assets, name=name))
        self.stack.enter_context(controller_manager(plane, self.assets, _OF_MANAGEMENT))
        self.managers.install(plane)
        install_definitions(plane.client(), list(yaml.load_all(DEFINITIONS.read_text(), yaml.CSafeLoader)))
        self.kubectl(plane, "apply", "-f", str(MANIFESTS / "base" / "namespace.yaml"))
        for folder in ("crd", "rbac", "webhook", "challenge-secrets"):
            self.kubectl(plane, "apply", "-k", str(MANIFESTS / folder))
        self.kubectl(plane, "create", "namespace", NAMESPACE)
        self.kubectl(plane, *label_command(NAMESPACE).split()[1:])
        kubeconfig = account_kubeconfig(plane)
        (port,) = free_ports(1)
        url = f"https://127.0.0.1:{port}"
        certificates = serving_files(self.directory / f"{name}-webhook", plane.client(), url=url)
        flags = ["--webhook-bind-address", f"127.0.0.1:{port}", "--webhook-cert-dir", str(certificates)]
        flags += ["--namespace", "nodeattest-system"]
        controller = Controller(kubeconfig, self.directory / f"{name}.log", flags)
        return Management(plane, kubeconfig, controller, plane.client(), port)

    def start(self, management: Management) -> None:
        """Start the managers, the infrastructure provider and our controller, and await our webhook."""
        programs = self._running[management.plane.name] = ExitStack()
        programs.enter_context(management.controller)
        programs.enter_context(self.managers.running(management.plane))
        programs.enter_context(self.infrastructure.manager(management.plane, NAMESPACE))
        management.create(CONFIG, made(CONFIG, "asked", "nobodys", {"format": "cloud-config"}), dryRun="All")

    def use(self, management: Management) -> None:
        """Let what started in this cluster act, and stop what runs in others."""
        self._acting = management
        for name in [name for name in self._running if name != management.plane.name]:
            self._running.pop(name).close()

    def close(self) -> None:
        """Stop all that acts."""
        for programs in self._running.values():
            programs.close()

    def requests(self) -> list[JsonMap]:
        """Return all requests of the first cluster."""
        return self.workload().list("/apis/certificates.k8s.io/v1/certificatesigningrequests")

    def report(self) -> str:
        """Say what the machines did, for a test that fails."""
        told: list[str] = []
        for machine in self.infrastructure.machines.values():
            boot = machine.directory / "boot"
            for name in ("output.log", "kubelet.log"):
                with suppress(OSError):
                    told.append(f"--- {machine.name} {name}\n{(boot / name).read_text()[-1500:]}")
        return "\n".join(told)

    def eventually(self, read: Callable[[], T | None], what: str, seconds: float = 360) -> T:
        """Wait, and say what the machines did where it was in vain."""
        try:
            return eventually(read, seconds=seconds, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.report()}") from None


@contextmanager
def capi_world(directory: Path, assets: Path, managers: Managers) -> Generator[CapiWorld]:
    """Build the world with one management cluster, in which all run."""
    with ExitStack() as stack:
        infrastructure = stack.enter_context(Infrastructure(directory / "machines", assets))
        world = CapiWorld(directory, assets, managers, infrastructure, stack)
        management = world.add_management("management")
        try:
            world.start(management)
            world.use(management)
            yield world
        finally:
            world.close()  # before the servers end, which are on the stack


def account_kubeconfig(plane: ControlPlane) -> Path:
    """Make a kubeconfig of our service account: the rights of the manifests and no others."""
    lifetime: JsonMap = {"expirationSeconds": 6 * 3600}  # longer than a journey on a slow machine
    asked: JsonMap = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": lifetime}
    path = f"/api/v1/namespaces/nodeattest-system/serviceaccounts/{ACCOUNT}/token"
    return plane.token_kubeconfig(text_at(plane.client().create(path, asked), "status", "token"))
