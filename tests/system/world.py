"""Management and workload cluster, software TPMs, the real controller and real agents, each its own process."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar, cast

from cryptography import x509
from cryptography.x509.oid import NameOID
from polling import eventually

from nodeattest_controller import manifests
from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, map_at, maps_at, text_at
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import ControlPlane, StartControlPlane
from nodeattest_sandbox.definitions import install_cluster_api, install_definitions
from nodeattest_sandbox.swtpm import SoftwareTpm

BIN: Final = Path(sys.prefix) / "bin"
NAMESPACE: Final = "fleet"
CLUSTER: Final = "c1"
CSRS: Final = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
OWN: Final = f"/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/{NAMESPACE}"
EK_ANNOTATION: Final = "cluster-x-k8s-io/tpm-endorsement-key"
LOOPBACK_FLAGS: Final = (
    *("--health-bind-address", "127.0.0.1:0", "--metrics-bind-address", "127.0.0.1:0"),
    *("--allowed-addresses", "127.0.0.0/8"),
)
"""API servers of tests are on this machine, whose ports are shared."""


def node_of(request: JsonMap) -> str:
    """Read the node name of a request, or an empty string."""
    pem = base64.b64decode(text_at(request, "spec", "request"))
    name = x509.load_pem_x509_csr(pem).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(name[0].value).removeprefix("system:node:") if name else ""


class Controller:
    """The controller as a process; as a context manager it is terminated at the end."""

    def __init__(self, kubeconfig: Path, log: Path, flags: Sequence[str] = ()) -> None:
        self._kubeconfig = kubeconfig
        self._log = log
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start a process; ``log`` is appended to."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self

    def command(self) -> list[str]:
        """Return what is started."""
        command = [str(BIN / "node-attestation-controller"), "run", "--kubeconfig", str(self._kubeconfig)]
        return [*command, *LOOPBACK_FLAGS, *self._flags]

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def terminate(self) -> int:
        """Ask it to end; returns the exit code."""
        if self._process is None:
            return 0
        self._process.terminate()
        code = self._process.wait(15)
        self._process = None
        return code

    def log(self) -> str:
        """Return what it wrote so far."""
        return self._log.read_text() if self._log.exists() else ""

    def events(self, containing: str = "") -> list[JsonMap]:
        """Return the log's entries, or those lines that contain this; the last may not be written to its end."""
        lines = [line for line in self.log().splitlines(keepends=True) if containing in line]
        return [cast("JsonMap", json.loads(line)) for line in lines if line.startswith("{") and line.endswith("\n")]

    def said(self, message: str) -> JsonMap | None:
        """Return the newest log entry with this message."""
        found = self.events(json.dumps(message))
        return next((entry for entry in reversed(found) if entry.get("msg") == message), None)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if "--leader-elect" not in self._flags:  # it has a Lease to give back, for which the next one would wait
            with suppress(subprocess.TimeoutExpired):
                self.terminate()
        self.kill()


@dataclass(frozen=True, slots=True)
class Agent:
    """The agent of one machine, with its files in a folder of its own."""

    directory: Path
    server: str
    ca_file: Path
    node_name: str
    provider: str
    provider_id: str
    """Empty: the agent is to find it itself."""
    settings: Mapping[str, str]
    program: tuple[str, ...] = (str(BIN / "kubelet-authenticator"),)
    """The command, perhaps in a chroot."""

    @property
    def kubeconfig(self) -> Path:
        """What kubelet would use."""
        return self.directory / "kubelet.conf"

    def join(self, token: str, *flags: str, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run ``kubelet-authenticator join``."""
        self.directory.mkdir(parents=True, exist_ok=True)
        token_file = self.directory / "token"
        token_file.write_text(token)
        token_file.chmod(0o600)
        command: list[str] = ["join", "--server", self.server, "--ca-file", str(self.ca_file)]
        command += ["--token-file", str(token_file), "--provider", self.provider, "--node-name", self.node_name]
        command += ["--provider-id", self.provider_id] if self.provider_id else []
        command += ["--kubeconfig", str(self.kubeconfig), *self.files(), *flags]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        return self.run(*command, timeout=timeout)

    def files(self) -> list[str]:
        """Return the flags that say where its files are."""
        return ["--cache-dir", str(self.directory / "cache"), "--config", str(self.directory / "agent.json")]

    def run(self, *words: str, timeout: float = 120.0, exec_info: str = "") -> subprocess.CompletedProcess[str]:
        """Run one of the agent's commands."""
        environment = {**os.environ, **({"KUBERNETES_EXEC_INFO": exec_info} if exec_info else {})}
        return subprocess.run(
            [*self.program, *words],
            capture_output=True,
            text=True,
            timeout=timeout,
            env=environment,
            check=False,
        )


class World:
    """Two control planes with a fleet in them."""

    def __init__(self, directory: Path, management: ControlPlane, workload: ControlPlane) -> None:
        self.directory = directory
        self.management = management
        self.workload = workload
        self.admin: Client = management.client()
        self.workload_admin: Client = workload.client()
        self._tpms: dict[str, SoftwareTpm] = {}
        self._tokens = count(1)
        install_definitions(self.admin, self.definitions())
        fleet.create_namespace(self.admin, "nodeattest-system")
        self.cluster = self.make_cluster()

    def definitions(self) -> list[JsonMap]:
        """Return our definitions, which are there before a controller runs."""
        return cast("list[JsonMap]", manifests.crds())

    def make_cluster(self) -> JsonMap:
        install_cluster_api(self.admin)
        return self.create_cluster()

    def create_cluster(self) -> JsonMap:
        """Create the Cluster with its Secrets."""
        return fleet.create_cluster(
            self.admin,
            CLUSTER,
            namespace=NAMESPACE,
            kubeconfig=self.workload.admin_kubeconfig.read_bytes(),
            ca_certificate=self.workload.ca_certificate.read_bytes(),
            ca_key=self.workload.ca_key.read_bytes(),
        )

    def close(self) -> None:
        """Stop the TPMs."""
        for tpm in self._tpms.values():
            tpm.stop()

    def set_policy(self, namespace: str = NAMESPACE, /, **spec: JsonValue) -> None:
        """Make this the one policy of the fleet's namespace, or of another.

        Most tests join with any token and are about something else, so tokens are bound where a test says so only.
        """
        spec.setdefault("tokenBinding", "Off")
        path = OWN.removesuffix(NAMESPACE) + f"{namespace}/nodeattestationpolicies"
        body: JsonMap = {
            "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
            "kind": "NodeAttestationPolicy",
            "metadata": {"name": "policy", "namespace": namespace},
            "spec": spec,
        }
        for old in self.admin.list(path):
            self.admin.delete(f"{path}/{text_at(old, 'metadata', 'name')}")
        self.admin.create(path, body)

    def await_policy(self) -> None:
        """Wait until a controller has reported on the policy as it is now: its cache has it then."""
        path = f"{OWN}/nodeattestationpolicies/policy"

        def is_observed() -> bool:
            policy = self.admin.get(path)
            observed = map_at(policy, "status").get("observedGeneration")
            return observed is not None and observed == map_at(policy, "metadata").get("generation")

        eventually(is_observed, what="the controller's report on the policy")

    def keep_secret(self, name: str, **data: bytes) -> None:
        """Create a Secret of the fleet."""
        encoded: JsonMap = {key: base64.b64encode(value).decode() for key, value in data.items()}
        metadata: JsonMap = {"name": name, "labels": {"cluster.x-k8s.io/cluster-name": CLUSTER}}
        body: JsonMap = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": encoded}
        self.admin.create(f"/api/v1/namespaces/{NAMESPACE}/secrets", body)

    def route_workload(self, kubeconfig: bytes) -> None:
        """Let the controller reach the workload cluster by another kubeconfig."""
        path = f"/api/v1/namespaces/{NAMESPACE}/secrets/{CLUSTER}-kubeconfig"
        self.admin.patch(path, {"data": {"value": base64.b64encode(kubeconfig).decode()}})

    def reset_authority(self) -> None:
        """Give the cluster's CA Secret its own certificate and key again."""
        pki = self.workload.pki
        parts = {"tls.crt": pki.ca_certificate, "tls.key": pki.ca_key}
        data: JsonMap = {name: base64.b64encode(path.read_bytes()).decode() for name, path in parts.items()}
        self.admin.patch(f"/api/v1/namespaces/{NAMESPACE}/secrets/{CLUSTER}-ca", {"data": data})

    def token(self, *groups: str) -> str:
        """Make a bootstrap token, whose user is in the kubeadm tokens' group or in these."""
        token = f"tok{next(self._tokens):03d}.0123456789abcdef"
        default = ("system:bootstrappers:kubeadm:default-node-token",)
        return self.workload.await_token(
            fleet.create_bootstrap_token(self.workload_admin, token, groups=groups or default)
        )

    def tpm(self, name: str) -> SoftwareTpm:
        """Return a machine's running software TPM."""
        if name not in self._tpms:
            tpm = SoftwareTpm.create(self.directory / "tpms", name=name)
            tpm.start()
            self._tpms[name] = tpm
        return self._tpms[name]

    def machine(self, name: str, *, tpm: SoftwareTpm | None = None, **options: object) -> fleet.Machine:
        """Create a Machine, with the platform's endorsement key where it has a TPM."""
        platform = {EK_ANNOTATION: tpm.endorsement_fingerprint()} if tpm else None
        return fleet.create_machine(
            self.admin,
            name,
            cluster=self.cluster,
            provider_id=f"sandbox://{name}",
            infrastructure_annotations=platform,
            **options,  # pyright: ignore[reportArgumentType] - the tests name real options
        )

    def agent(
        self, name: str, provider: str, *, directory: str = "", server: str = "", provider_id: str = "", **settings: str
    ) -> Agent:
        """Make a machine's agent."""
        return Agent(
            directory=self.directory / "nodes" / (directory or name),
            server=server or self.workload.server,
            ca_file=self.workload.ca_certificate,
            node_name=name,
            provider=provider,
            provider_id=provider_id or f"sandbox://{name}",
            settings=settings,
        )

    def controller(self, *flags: str, kubeconfig: Path | None = None, log: str = "controller.log") -> Controller:
        """Make a controller; it does not run yet."""
        return Controller(kubeconfig or self.management.admin_kubeconfig, self.directory / log, flags)

    def await_service(self, controller: Controller) -> None:
        """Wait until the controller serves the cluster, and bootstrap tokens may file requests."""
        eventually(lambda: controller.said("connected"), seconds=60, what="the connection")
        path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
        names = {
            "nodeattest:node-bootstrapper",
            "kubeadm:kubelet-bootstrap",
        }  # ours, or kubeadm's
        eventually(
            lambda: any(text_at(one, "metadata", "name") in names for one in self.workload_admin.list(path)),
            seconds=60,
            what="the bootstrappers' binding",
        )

    def requests(self) -> list[JsonMap]:
        """Return the workload cluster's requests."""
        return self.workload_admin.list(CSRS)

    def requests_of(self, node: str) -> list[JsonMap]:
        """Return the requests for a node's name."""
        return [one for one in self.requests() if node_of(one) == node]

    def ledger(self, name: str) -> JsonMap:
        """Return the ledger of one machine, or an empty object."""
        found = self.admin.list(f"{OWN}/machineattestations")
        nothing: JsonMap = {}
        return next((one for one in found if text_at(one, "spec", "machineName") == name), nothing)

    def denial(self, request: JsonMap) -> str:
        """Return the reason with which a request was denied, or an empty string."""
        conditions = maps_at(map_at(request, "status"), "conditions")
        return next((text_at(one, "reason") for one in conditions if text_at(one, "type") == "Denied"), "")


W = TypeVar("W", bound=World)


@contextmanager
def built_world(
    start_control_plane: StartControlPlane, directory: Path, kind: type[W] = World, name: str = ""
) -> Generator[W]:
    """Build a world on control planes of one kind."""
    with ExitStack() as stack:
        management = stack.enter_context(start_control_plane(f"{name}management"))
        built = kind(directory, management, stack.enter_context(start_control_plane(f"{name}workload")))
        stack.callback(built.close)
        yield built
