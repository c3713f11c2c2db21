"""Control planes as processes on loopback: the sandbox's own server, or etcd and kube-apiserver.

They end with the process that started them. Each has bootstrap-token authentication, the authorizers Node and RBAC,
NodeRestriction, and an audit log of metadata. kube-controller-manager and kubeadm run beside it, to compare with.
Source: etcd, kube-apiserver, kube-controller-manager and kubeadm, ``--help``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, Self

from nodeattest_sandbox.apiserver.jsonvalue import load, text_at, texts_at, value_at
from nodeattest_sandbox.child_process import LOOPBACK, Process, StartFailed, free_ports, listens, wait
from nodeattest_sandbox.client import ApiRefusal, Client
from nodeattest_sandbox.pki import ClusterPki

_SERVICE_NETWORK: Final = "10.96.0.0/16"

_AUDIT_POLICY: Final = """\
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- {level: Metadata, omitStages: [RequestReceived, ResponseStarted]}
"""


def _apiserver_flags(pki: ClusterPki, port: int, etcd_port: int, issuer: str = "") -> list[str]:
    """Return the flags of kube-apiserver; without an issuer it is the server's address."""
    return [
        f"--etcd-servers=http://{LOOPBACK}:{etcd_port}",
        f"--bind-address={LOOPBACK}",
        f"--advertise-address={LOOPBACK}",
        "--endpoint-reconciler-type=none",
        f"--secure-port={port}",
        f"--tls-cert-file={pki.server_certificate}",
        f"--tls-private-key-file={pki.server_key}",
        f"--client-ca-file={pki.ca_certificate}",
        "--anonymous-auth=true",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--enable-bootstrap-token-auth=true",
        f"--service-account-issuer={issuer or f'https://{LOOPBACK}:{port}'}",
        f"--service-account-key-file={pki.account_public_key}",
        f"--service-account-signing-key-file={pki.account_key}",
        f"--service-cluster-ip-range={_SERVICE_NETWORK}",
        "--profiling=false",
    ]


_LIMIT: Final = 60.0
"""Seconds for one run of kubeadm."""
_VERSION_WORDS: Final = MappingProxyType({"kubeadm": ("version", "-o", "short"), "kubectl": ("version", "--client")})


@contextmanager
def controller_manager(
    plane: ControlPlane, assets: Path, controllers: Sequence[str], more: Mapping[str, object] | None = None
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
        **(more or {}),
    }
    command = [str(binary), *(f"--{name}={value}" for name, value in flags.items())]
    process = Process.of_program("kube-controller-manager", command, directory)
    try:
        wait(process, lambda: listens(port))
        yield process
    finally:
        process.stop()


def kubeadm(
    assets: Path,
    *words: str,
    environment: Mapping[str, str] | None = None,
    limit: float = _LIMIT,
) -> subprocess.CompletedProcess[str]:
    """Run kubeadm to its end; raises ``subprocess.TimeoutExpired``."""
    clean = {"PATH": os.defpath, "HOME": "/nonexistent", "NO_PROXY": LOOPBACK, **(environment or {})}
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


_NAMESPACES: Final = ("default", "kube-node-lease", "kube-public", "kube-system")


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One finished request."""

    user: str
    groups: tuple[str, ...]
    verb: str
    uri: str
    resource: str
    subresource: str
    name: str
    code: int
    group: str = ""
    namespace: str = ""
    source: str = ""
    """Address of the client."""
    received: str = ""
    completed: str = ""
    """RFC 3339, with microseconds."""


class ControlPlane(ABC):
    """A running control plane; as a context manager it stops at the end."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self.directory = directory
        self.server = ""
        self.pki = ClusterPki.make(directory / "pki", name)
        self.audit_log = directory / "audit.log"
        self.kubectl: Path | None = None
        """Beside a real API server only."""
        self._processes: list[Process] = []

    @property
    def ca_certificate(self) -> Path:
        """The cluster CA."""
        return self.pki.ca_certificate

    @property
    def ca_key(self) -> Path:
        """The key of the cluster CA."""
        return self.pki.ca_key

    @property
    def admin_kubeconfig(self) -> Path:
        """A kubeconfig in system:masters."""
        return self.directory / "admin.kubeconfig"

    @property
    def pids(self) -> dict[str, int]:
        """The processes by name."""
        return {process.name: process.pid() for process in self._processes}

    def client(self, kubeconfig: Path | None = None, *, timeout: float = 30.0) -> Client:
        """Return a client for the kubeconfig, by default the administrator's."""
        return Client.from_kubeconfig(kubeconfig or self.admin_kubeconfig, timeout)

    def client_kubeconfig(self, user: str, groups: Sequence[str] = ()) -> Path:
        """Write a kubeconfig with a client certificate for the user."""
        path = self.directory / f"{user.replace('/', '-').replace(':', '-')}.kubeconfig"
        return self.pki.client_kubeconfig(path, self.server, user, groups)

    def token_kubeconfig(self, token: str = "") -> Path:
        """Write a kubeconfig with a bearer token; without one it is anonymous."""
        return self.pki.token_kubeconfig(self.directory / f"token-{token[:6] or 'none'}.kubeconfig", self.server, token)

    def await_token(self, token: str) -> str:
        """Return a bootstrap token once this server takes it: a real one learns of new tokens by a watch."""
        bearer = self.client(self.token_kubeconfig(token), timeout=5.0)
        wait(self._processes[-1], lambda: _answers(bearer, "/api"))
        return token

    def requests(self) -> list[AuditEntry]:
        """Return the finished requests so far, in their order."""
        if not self.audit_log.exists():
            return []
        return [_audit_entry(line) for line in self.audit_log.read_bytes().splitlines() if line.endswith(b"}")]

    def start(self) -> None:
        """Start the processes and wait until the server answers; raises StartFailed."""
        try:
            self._launch()
        except BaseException:  # whatever ends the start, no process may stay
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the processes; files stay."""
        while self._processes:
            self._processes.pop().stop()

    def restart(self) -> None:
        """Stop and start again: same port, same PKI, same objects; watch history is gone."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def revive(self) -> None:
        """Start again what has ended, with the same objects."""
        self.restart()

    @abstractmethod
    def _launch(self) -> None:
        """Start the processes."""

    def _await_ready(self, process: Process) -> None:
        anonymous = Client.from_kubeconfig(self.token_kubeconfig(), timeout=2.0)
        wait(process, lambda: _answers(anonymous, "/readyz"))
        self.pki.client_kubeconfig(self.admin_kubeconfig, self.server, "admin", ("system:masters",))
        admin = self.client(timeout=5.0)
        for namespace in _NAMESPACES:
            wait(process, lambda namespace=namespace: _answers(admin, f"/api/v1/namespaces/{namespace}"))


class _Sandbox(ControlPlane):
    """The sandbox's own API server."""

    def __init__(self, directory: Path, name: str, options: Sequence[str]) -> None:
        super().__init__(directory, name)
        self._options = options
        self._port = 0

    def _launch(self) -> None:
        ready = self.directory / "ready"
        ready.unlink(missing_ok=True)
        process = Process("apiserver", self._command(ready), self.directory)
        self._processes.append(process)
        wait(process, ready.exists)
        self.server = ready.read_text(encoding="ascii")
        self._port = int(self.server.rpartition(":")[2])
        self._await_ready(process)

    def _command(self, ready: Path) -> list[str]:
        flags = {
            "tls-cert-file": self.pki.server_certificate,
            "tls-private-key-file": self.pki.server_key,
            "client-ca-file": self.pki.ca_certificate,
            "secure-port": self._port,
            "ready-file": ready,
            "audit-log": self.audit_log,
            "state": self.directory / "state.json",
        }
        command = [sys.executable, "-m", "nodeattest_sandbox.apiserver", "--exit-with-stdin"]
        return [*command, *(f"--{key}={value}" for key, value in flags.items()), *self._options]


class _Real(ControlPlane):
    """etcd and kube-apiserver."""

    def __init__(self, directory: Path, name: str, assets: Path, *, flags: Sequence[str], issuer: str) -> None:
        super().__init__(directory, name)
        self._flags = flags
        self._issuer = issuer
        kubectl = assets / "kubectl"
        self.kubectl = kubectl if kubectl.exists() else None
        self._assets = assets
        self._ports = free_ports(3)

    def revive(self) -> None:
        """Start again what has ended: same ports, same PKI, and what etcd's folder holds."""
        ended = {process.name for process in self._processes if process.has_ended()}
        if "etcd" in ended:
            self._start_etcd()
        if "kube-apiserver" in ended:
            self._start_apiserver()

    def _launch(self) -> None:
        self.server = f"https://{LOOPBACK}:{self._ports[0]}"
        self._start_etcd()
        self._start_apiserver()

    def _start_etcd(self) -> None:
        _, port, peer_port = self._ports
        data = self.directory / "etcd"
        data.mkdir(mode=0o700, exist_ok=True)
        client, peer = f"http://{LOOPBACK}:{port}", f"http://{LOOPBACK}:{peer_port}"
        flags = [
            "--name=sandbox",
            f"--data-dir={data}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=sandbox={peer}",
        ]
        etcd = self._run("etcd", flags)
        wait(etcd, lambda: listens(port))

    def _start_apiserver(self) -> None:
        port, etcd_port, _ = self._ports
        policy = self.directory / "audit-policy.yaml"
        policy.write_text(_AUDIT_POLICY, encoding="ascii")
        flags = [
            *_apiserver_flags(self.pki, port, etcd_port, self._issuer),
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self.audit_log}",
            *self._flags,
        ]
        self._await_ready(self._run("kube-apiserver", flags))

    def _run(self, name: str, flags: Sequence[str]) -> Process:
        process = Process.of_program(name, [str(_binary(self._assets, name)), *flags], self.directory)
        others = [other for other in self._processes if other.name != name]
        self._processes = sorted([*others, process], key=lambda each: each.name != "etcd")  # it is stopped last
        wait(process, process.has_begun)
        return process


StartControlPlane = Callable[[str], AbstractContextManager[ControlPlane]]
"""Starts a control plane of a name; it stops at the end of the block."""


def start_sandbox(directory: Path, *, name: str, options: Sequence[str] = ()) -> ControlPlane:
    """Start the sandbox's API server on a free loopback port; ``options`` are further flags of it."""
    directory.mkdir(parents=True, exist_ok=True)
    plane = _Sandbox(directory.resolve(), name, options)
    plane.start()
    return plane


def start_real(
    directory: Path, assets: Path, *, name: str, flags: Sequence[str] = (), issuer: str = ""
) -> ControlPlane:
    """Start etcd and kube-apiserver from ``assets``.

    ``flags`` are further ones of kube-apiserver. ``issuer`` of service-account tokens is no such flag: of two, versions
    take the first or the last.
    """
    directory.mkdir(parents=True, exist_ok=True)
    plane = _Real(directory.resolve(), name, assets, flags=flags, issuer=issuer)
    plane.start()
    return plane


def _answers(client: Client, path: str) -> bool:
    try:
        client.send("GET", path)
    except (OSError, ApiRefusal):
        return False
    return True


def _audit_entry(line: bytes) -> AuditEntry:
    entry = load(line)
    code = value_at(entry, "responseStatus", "code")
    return AuditEntry(
        user=text_at(entry, "user", "username"),
        groups=tuple(texts_at(entry, "user", "groups")),
        verb=text_at(entry, "verb"),
        uri=text_at(entry, "requestURI"),
        resource=text_at(entry, "objectRef", "resource"),
        subresource=text_at(entry, "objectRef", "subresource"),
        name=text_at(entry, "objectRef", "name"),
        code=code if isinstance(code, int) else 0,
        group=text_at(entry, "objectRef", "apiGroup"),
        namespace=text_at(entry, "objectRef", "namespace"),
        source=next(iter(texts_at(entry, "sourceIPs")), ""),
        received=text_at(entry, "requestReceivedTimestamp"),
        completed=text_at(entry, "stageTimestamp"),
    )
