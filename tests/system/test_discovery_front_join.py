"""A cluster that shows cluster-info to nobody is joined through its front, every part a process."""

from __future__ import annotations

import subprocess
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, cast

import pytest
from lying_servers import Ca
from polling import eventually
from test_discovery_system import discover, operate
from world import BIN, World

from nodeattest_controller import manifests
from nodeattest_discovery import clusterinfo
from nodeattest_discovery.token import parse
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at
from nodeattest_sandbox.child_process import free_ports
from nodeattest_sandbox.client import ApiRefusal

RBAC: Final = "/apis/rbac.authorization.k8s.io/v1/namespaces"
ACCOUNT: Final = "system:serviceaccount:nodeattest-discovery:discovery-front"
ANONYMOUS: Final = f"{RBAC}/kube-public/rolebindings/kubeadm:bootstrap-signer-clusterinfo"


@contextmanager
def front_process(world: World, directory: Path) -> Generator[tuple[str, Path]]:
    """Run ``nodeattest discovery serve`` under a certificate of nobody's; yields its endpoint and its log."""
    key, _, certificate = Ca("nobody's").server().decode().partition("-----BEGIN CERTIFICATE-----")
    files, log = (directory / "tls.crt", directory / "tls.key"), directory / "front.log"
    files[0].write_text(f"-----BEGIN CERTIFICATE-----{certificate}")
    files[1].write_text(key)
    port, health = free_ports(2)
    command = [
        *(BIN / "nodeattest", "discovery", "serve", "--kubeconfig", world.workload.client_kubeconfig(ACCOUNT)),
        *(f"--bind-address=127.0.0.1:{port}", f"--health-bind-address=127.0.0.1:{health}"),
        *(f"--tls-cert-file={files[0]}", f"--tls-private-key-file={files[1]}"),
    ]

    def is_ready() -> bool:
        with suppress(urllib.error.URLError), urllib.request.urlopen(f"http://127.0.0.1:{health}/readyz") as answer:
            return answer.status == 200
        return False

    with log.open("wb") as out, subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=out, stdout=out) as process:
        try:
            eventually(is_ready, "a ready front", state=log.read_text)
            yield f"127.0.0.1:{port}", log
        finally:
            process.terminate()


@pytest.fixture
def hidden(world: World) -> Generator[World]:
    """A world whose workload cluster tells nobody of itself, but for its front, which has the manifest's rights."""
    world.set_policy(authorizedAttestors=["insecure"])
    with suppress(ApiRefusal):
        world.workload_admin.send("DELETE", ANONYMOUS)
    operate(world, "cluster-info", "publish", "--no-anonymous")
    for made in cast("list[JsonMap]", manifests.objects("discovery-front")):
        if (kind := text_at(made, "kind")) in {"Role", "RoleBinding"}:
            world.workload_admin.create(f"{RBAC}/{text_at(made, 'metadata', 'namespace')}/{kind.lower()}s", made)
    with world.controller(log="front-join.log") as running:
        world.await_service(running)
        yield world
    world.workload_admin.send("DELETE", clusterinfo.PATH)


def test_a_machine_joins_a_cluster_that_only_its_front_tells_of(hidden: World, tmp_path: Path) -> None:
    hidden.machine("fronted-0")
    token, agent = hidden.token(), hidden.agent("fronted-0", "insecure")
    with front_process(hidden, tmp_path) as (endpoint, log):
        joined = discover(hidden, agent, token, "--discovery-front", endpoint)
        assert joined.returncode == 0, joined.stderr
        assert "only the pinned CAs" in joined.stderr
        assert text_at(hidden.ledger("fronted-0"), "spec", "nodeName") == "fronted-0"
        assert parse(token).secret not in log.read_text()
    front = hidden.workload.client(hidden.workload.client_kubeconfig(ACCOUNT))
    front.get("/api/v1/namespaces/kube-system/secrets")
    for method, path in (
        ("GET", "/api/v1/namespaces/default/secrets"),
        ("GET", "/api/v1/secrets"),
        ("GET", "/api/v1/namespaces/kube-public/configmaps"),
        ("DELETE", clusterinfo.PATH),
        ("GET", "/api/v1/nodes"),
        ("GET", "/apis/certificates.k8s.io/v1/certificatesigningrequests"),
    ):
        with pytest.raises(ApiRefusal, match="403"):
            front.send(method, path)
