"""The discovery front as the command that people run, beside a control plane."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from lying_servers import Ca
from polling import eventually

from nodeattest_controller import manifests
from nodeattest_discovery import clusterinfo
from nodeattest_discovery.node.client import Environment
from nodeattest_discovery.pins import CaPin, pin_of
from nodeattest_discovery.secret import SECRET_TYPE, TokenSecret, Usage, encode, secret_name
from nodeattest_discovery.token import BootstrapToken, generate
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at
from nodeattest_sandbox.control_plane import ControlPlane, free_ports

SECRETS: Final = "/api/v1/namespaces/kube-system/secrets"
_CONFIG_MAPS: Final = "/api/v1/namespaces/kube-public/configmaps"
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1/namespaces"
ACCOUNT: Final = "system:serviceaccount:nodeattest-discovery:discovery-front"
_LIMIT: Final = 30.0


class Cluster:
    """A control plane with cluster-info, tokens, and the rights of ``manifests``."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.admin = plane.client()
        self.kubeconfig = clusterinfo.build(plane.server, plane.ca_certificate.read_bytes())

    @property
    def pins(self) -> frozenset[CaPin]:
        return frozenset(map(pin_of, clusterinfo.parse_ca_bundle(self.plane.ca_certificate.read_bytes())))

    def publish(self) -> None:
        body: JsonMap = {"metadata": {"name": clusterinfo.NAME}, "data": {"kubeconfig": self.kubeconfig}}
        self.admin.create(_CONFIG_MAPS, body)

    def token(self, usages: Sequence[Usage] = tuple(Usage)) -> BootstrapToken:
        made = generate()
        groups = ("system:bootstrappers:kubeadm:default-node-token",) if Usage.AUTHENTICATION in usages else ()
        data = encode(TokenSecret(token=made, usages=frozenset(usages), groups=groups))
        metadata: JsonMap = {"name": secret_name(made.id)}
        self.admin.create(SECRETS, {"metadata": metadata, "type": SECRET_TYPE, "data": {**data}})
        return made

    def grant(self, base: str) -> None:
        """Apply the Roles and RoleBindings of a base of the manifests."""
        for found in manifests.objects(base):
            kind, namespace = text_at(found, "kind"), text_at(found, "metadata", "namespace")  # pyright: ignore[reportArgumentType] - manifests hold no fractions
            if kind in {"Role", "RoleBinding"}:
                self.admin.create(f"{_RBAC}/{namespace}/{kind.lower()}s", found)  # pyright: ignore[reportArgumentType] - the same


def write_certificate(authority: Ca, directory: Path) -> tuple[Path, Path]:
    """Write a serving certificate and its key, replacing those that stand there, and return their files."""
    directory.mkdir(exist_ok=True)
    pem = authority.server().decode()
    key, _, certificate = pem.partition("-----BEGIN CERTIFICATE-----")
    certificate_file, key_file = directory / "tls.crt", directory / "tls.key"
    certificate_file.write_text(f"-----BEGIN CERTIFICATE-----{certificate}")
    key_file.write_text(key)
    return certificate_file, key_file


class FrontProcess:
    """``nodeattest discovery serve``, for the length of a block."""

    def __init__(self, cluster: Cluster, directory: Path, authority: Ca, *flags: str, port: int = 0) -> None:
        directory.mkdir(exist_ok=True)
        self.log = directory / "front.log"
        self.port, self.health = free_ports(2)
        self.port = port or self.port
        certificate, key = write_certificate(authority, directory)
        self._command = [
            str(Path(sys.prefix) / "bin" / "nodeattest"),
            *("discovery", "serve", "--kubeconfig", str(cluster.plane.client_kubeconfig(ACCOUNT))),
            f"--bind-address=127.0.0.1:{self.port}",
            f"--health-bind-address=127.0.0.1:{self.health}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            *flags,
        ]
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stderr=log, stdout=log)
        eventually(self._is_ready, f"a ready front ({self.log})")

    def stop(self) -> int:
        """End it in order and return its exit code."""
        assert self._popen is not None
        self._popen.terminate()
        return self._popen.wait(_LIMIT)

    def read(self, path: str) -> tuple[int, str]:
        """Read from the health port; status 0 where nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._popen is not None and self._popen.poll() is None:
            self.stop()

    def _is_ready(self) -> bool:
        assert self._popen is not None
        if self._popen.poll() is not None:
            raise AssertionError(f"the front ended: {self.log.read_text()}")
        return self.read("/readyz")[0] == 200


def quick() -> Environment:
    """Make the environment of a node that does not wait long."""
    return Environment(limit=30.0)
