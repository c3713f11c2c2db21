"""The demo's machines: what each is and proves itself with, and the real agent that runs on its files.

A machine does what a node does: join, call the exec plugin as client-go does, register its Node, ask who it is.
"""

from __future__ import annotations

import json
import secrets
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography import x509

from nodeattest_kube.answers import parse_json
from nodeattest_parsing.objects import items, mapping, rfc3339, strings, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.identifiers import (
    ANNOTATION_TPM_ENDORSEMENT_KEY,
    ProviderName,
    Purpose,
    SignerName,
    signer_for,
)
from nodeattest_sandbox.client import ApiRefusal, Client, load_certificate
from nodeattest_sandbox.swtpm import SoftwareTpm

_PLUGIN_LIMIT: Final = 30.0
_STOP_LIMIT: Final = 5.0
"""Seconds between SIGTERM and SIGKILL."""
_TPM_PROGRAMS: Final = ("swtpm", "swtpm_setup", "swtpm_localca")
_PROGRAM_PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/sbin"


class DemoFailure(Exception):
    """Something went otherwise than the demo promises; one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedIdentity:
    """The identity that a machine claims."""

    node: str
    provider_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestorSettings:
    """The agent's provider and its settings."""

    provider: ProviderName
    settings: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    @property
    def signer(self) -> SignerName:
        """The signer of its client certificate."""
        return signer_for(self.provider, Purpose.CLIENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoMachine:
    """One machine, as its platform delivers it; then ``provision`` registers it."""

    attestor: AttestorSettings
    identity: ClaimedIdentity
    tpm: SoftwareTpm | None = None
    secret: bytes | None = field(default=None, repr=False)
    """The ``challenge`` provider's."""
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the infrastructure provider writes on the infrastructure object."""
    machine: str = ""
    """Name of the Machine object, once it is registered."""
    token: str = field(default="", repr=False)


def write_private_file(path: Path, content: str) -> None:
    """Write a file that nobody else may read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(content, encoding="ascii")


class DemoPlatform:
    """A rack of machines with a secret each: the ``challenge`` provider. Their TPMs end with the exit stack."""

    things = "secrets"
    """What its machines have, for the display."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack

    @classmethod
    def missing(cls) -> Iterable[str]:
        """Name programs that are missing here, with how to install them."""
        return ()

    def create_machine(self, number: int) -> DemoMachine:
        """Make one machine, which boots when its agent runs; called from several threads."""
        path, secret = self._directory / "secrets" / f"worker-{number}", secrets.token_hex(32)
        write_private_file(path, secret)
        attestor = AttestorSettings(provider=ProviderName("challenge"), settings={"secretFile": str(path)})
        return DemoMachine(attestor=attestor, identity=_on_rack(number), secret=secret.encode())


class TpmDemoPlatform(DemoPlatform):
    """Machines with TPMs, whose endorsement keys the platform knows."""

    things = "TPMs"

    @classmethod
    def missing(cls) -> Iterable[str]:
        """Name swtpm's programs that are missing."""
        absent = [name for name in _TPM_PROGRAMS if shutil.which(name, path=_PROGRAM_PATH) is None]
        if absent:
            yield f"{', '.join(absent)} (apt-get install swtpm swtpm-tools), or choose another --provider"

    def create_machine(self, number: int) -> DemoMachine:
        """Make a machine and switch its TPM on."""
        tpm = SoftwareTpm.create(self._directory / "tpms", name=f"tpm-{number}")
        self._stack.callback(tpm.stop)
        tpm.start()
        attestor = AttestorSettings(provider=ProviderName("tpm"), settings={"tcti": tpm.tcti})
        annotations = {ANNOTATION_TPM_ENDORSEMENT_KEY: tpm.endorsement_fingerprint()}
        return DemoMachine(attestor=attestor, identity=_on_rack(number), tpm=tpm, annotations=annotations)


def _on_rack(number: int) -> ClaimedIdentity:
    return ClaimedIdentity(node=f"worker-{number}", provider_id=f"demo://rack-1/{number}")


PLATFORMS: Final[Mapping[str, type[DemoPlatform]]] = {"tpm": TpmDemoPlatform, "challenge": DemoPlatform}
"""By provider."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that ended."""

    code: int
    output: str
    errors: str

    @property
    def last_line(self) -> str:
        """The last line on standard error, or of the output."""
        lines = (self.errors or self.output).strip().splitlines()
        return lines[-1] if lines else f"exit code {self.code}"


class Children:
    """Programs that run for a moment; ``close`` ends what still runs, and nothing starts afterwards. Thread-safe."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._closed = False

    def run(
        self, command: Sequence[str | Path], *, limit: float, environment: Mapping[str, str] | None = None
    ) -> Finished:
        """Run a program to its end; after ``limit`` seconds it is killed, and its exit code says so."""
        with self._lock:
            if self._closed:
                raise RuntimeError("nothing may be started any more")
            process = subprocess.Popen(
                [str(word) for word in command],
                env={**self._environment, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C goes to us, and we end it in order
            )
            self._running.add(process)
        try:
            output, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            errors += f"\nkilled after {limit:.0f} s"
        finally:
            with self._lock:
                self._running.discard(process)
        return Finished(process.returncode, output, errors)

    def close(self) -> None:
        """End everything that runs."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(_STOP_LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()


@dataclass(frozen=True, slots=True)
class NodeCredential:
    """What the exec plugin returned."""

    certificate_pem: str
    key_pem: str = field(repr=False)

    @property
    def not_after(self) -> str:
        """RFC 3339."""
        return rfc3339(x509.load_pem_x509_certificate(self.certificate_pem.encode()).not_valid_after_utc)


def node_kubeconfig(root: Path) -> Path:
    """Where kubelet's kubeconfig stands below a machine's root."""
    return root / "etc/kubernetes/kubelet.conf"


def call_plugin(children: Children, kubeconfig: Path) -> NodeCredential:
    """Run the exec plugin of a kubelet's kubeconfig as client-go does; raises ``DemoFailure``.

    Source: client-go plugin/pkg/client/auth/exec; client.authentication.k8s.io/v1.
    """
    document = parse_json(kubeconfig.read_bytes())
    plugin = mapping(items(document, "users")[0], "user", "exec")
    info: JsonObject = {
        "kind": "ExecCredential",
        "apiVersion": text(plugin, "apiVersion"),
        "spec": {"cluster": mapping(items(document, "clusters")[0], "cluster"), "interactive": False},
    }
    command = [text(plugin, "command"), *strings(plugin, "args")]
    ended = children.run(command, limit=_PLUGIN_LIMIT, environment={"KUBERNETES_EXEC_INFO": json.dumps(info)})
    if ended.code:
        raise DemoFailure(f"the credential plugin failed: {ended.last_line}")
    status = mapping(parse_json(ended.output.encode()), "status")
    return NodeCredential(text(status, "clientCertificateData"), text(status, "clientKeyData"))


def register(server: str, ca: Path, credential: NodeCredential, identity: ClaimedIdentity) -> str:
    """Create the Node as kubelet does, then ask the API server whose credential this is; returns its answer."""
    tls = ssl.create_default_context(cafile=str(ca))
    load_certificate(tls, (credential.certificate_pem + credential.key_pem).encode())
    client, node = Client(server, tls, {}), identity.node
    body: JsonObject = {"metadata": {"name": node}, "spec": {"providerID": identity.provider_id}}
    review: JsonObject = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        client.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", **body})
        answer = client.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    except ApiRefusal as refusal:
        raise DemoFailure(f"the API server does not accept the credential of {node}: {refusal}") from None
    user, groups = text(answer, "status", "userInfo", "username"), strings(answer, "status", "userInfo", "groups")
    if user != f"system:node:{node}" or "system:nodes" not in groups:
        raise DemoFailure(f"the API server takes {node} for {user or 'nobody'} in {', '.join(groups)}")
    return f"{user} in system:nodes"
