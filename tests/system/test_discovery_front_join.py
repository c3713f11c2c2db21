"""A cluster that shows cluster-info to nobody is joined through its front, every part a process."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest
from lying_servers import Ca
from polling import eventually
from test_discovery_system import discover, operate
from world import World

from nodeattest_controller import manifests
from nodeattest_discovery import clusterinfo
from nodeattest_discovery.node.by_token import by_front
from nodeattest_discovery.node.client import Environment
from nodeattest_discovery.pins import CaPin, pin_of
from nodeattest_discovery.secret import SECRET_TYPE, TokenSecret, Usage, encode, secret_name
from nodeattest_discovery.token import BootstrapToken, generate
from nodeattest_providers.errors import Unavailable
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at
from nodeattest_sandbox.child_process import free_ports
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.control_plane import ControlPlane

SECRETS: Final = "/api/v1/namespaces/kube-system/secrets"
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1/namespaces"
ACCOUNT: Final = "system:serviceaccount:nodeattest-discovery:discovery-front"
_LIMIT: Final = 30.0


class Cluster:
    """A control plane with cluster-info, tokens, and the rights of ``manifests``."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.admin = plane.client()

    @property
    def pins(self) -> frozenset[CaPin]:
        return frozenset(map(pin_of, clusterinfo.parse_ca_bundle(self.plane.ca_certificate.read_bytes())))

    def token(self) -> BootstrapToken:
        made = generate()
        groups = ("system:bootstrappers:kubeadm:default-node-token",)
        data = encode(TokenSecret(token=made, usages=frozenset(Usage), groups=groups))
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

    def __init__(self, cluster: Cluster, directory: Path, authority: Ca) -> None:
        directory.mkdir(exist_ok=True)
        self.log = directory / "front.log"
        self.port, self.health = free_ports(2)
        certificate, key = write_certificate(authority, directory)
        self._command = [
            str(Path(sys.prefix) / "bin" / "nodeattest"),
            *("discovery", "serve", "--kubeconfig", str(cluster.plane.client_kubeconfig(ACCOUNT))),
            f"--bind-address=127.0.0.1:{self.port}",
            f"--health-bind-address=127.0.0.1:{self.health}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
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


ANONYMOUS = (
    "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-public/rolebindings/kubeadm:bootstrap-signer-clusterinfo"
)


@pytest.fixture(scope="module")
def hidden(world: World, tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[World, Cluster, FrontProcess]]:
    """A world whose workload cluster tells nobody of itself, but for its front."""
    world.set_policy(authorizedAttestors=["insecure"])
    with suppress(ApiRefusal):
        world.workload_admin.send("DELETE", ANONYMOUS)
    operate(world, "cluster-info", "publish", "--no-anonymous")
    cluster = Cluster(world.workload)
    cluster.grant("discovery-front")
    try:
        with (
            world.controller(log="front-join.log") as running,
            FrontProcess(cluster, tmp_path_factory.mktemp("front"), Ca("nobody's")) as front,
        ):
            world.await_service(running)
            yield world, cluster, front
    finally:
        world.workload_admin.send("DELETE", clusterinfo.PATH)


def known(cluster: Cluster, front: FrontProcess) -> BootstrapToken:
    """Make a token, and wait until front and API server know it."""
    made = cluster.token()

    def answers() -> bool:
        try:
            return bool(by_front(front.endpoint, made, cluster.pins, quick()))
        except Unavailable:
            return False

    eventually(answers, "a front that knows the token")
    cluster.plane.await_token(made.reveal())
    return made


def test_a_machine_joins_a_cluster_that_only_its_front_tells_of(hidden: tuple[World, Cluster, FrontProcess]) -> None:
    world, cluster, front = hidden
    made = known(cluster, front)
    world.machine("fronted-0")
    joined = discover(world, world.agent("fronted-0", "insecure"), made.reveal(), "--discovery-front", front.endpoint)
    assert joined.returncode == 0, joined.stderr
    assert "only the pinned CAs" in joined.stderr
    assert text_at(world.ledger("fronted-0"), "spec", "nodeName") == "fronted-0"
    assert made.secret not in front.log.read_text()


def test_the_rights_of_the_manifest_are_for_these_reads_only(hidden: tuple[World, Cluster, FrontProcess]) -> None:
    plane = hidden[1].plane
    client = plane.client(plane.client_kubeconfig(ACCOUNT))
    client.get(SECRETS)
    for method, path in (
        ("GET", "/api/v1/namespaces/default/secrets"),
        ("GET", "/api/v1/secrets"),
        ("GET", "/api/v1/namespaces/kube-public/configmaps"),
        ("DELETE", clusterinfo.PATH),
        ("GET", "/api/v1/nodes"),
        ("GET", "/apis/certificates.k8s.io/v1/certificatesigningrequests"),
    ):
        with pytest.raises(ApiRefusal, match="403"):
            client.send(method, path)
