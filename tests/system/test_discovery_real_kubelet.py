"""A real kubelet reads the configuration that join writes for it, and does what it says."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from agent_cluster import Authority
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from kubernetes_assets import KUBELET_SETTINGS, kubelet_command
from needs import ONLY_ROOT
from polling import eventually
from runtime_stub import RuntimeStub
from test_serving_agent import ELSEWHERE

from nodeattest_authenticator.cluster import kubelet_config
from nodeattest_authenticator.state import kubelet_files
from nodeattest_providers.node_interface import JsonObject

QUIET: Final[JsonObject] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "address": "127.0.0.1",
    "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "cgroupsPerQOS": False,
    "enforceNodeAllocatable": [],
    "failSwapOn": False,
    "healthzPort": 0,
    "makeIPTablesUtilChains": False,
    "rotateCertificates": True,
}
"""What a cluster might keep for kubelets that must not touch the machine on which the tests run."""


@pytest.mark.conformance
@ONLY_ROOT
def test_a_real_kubelet_obeys_the_configuration_that_join_writes(assets: Path, tmp_path: Path) -> None:
    cluster, config, ca_file = Authority(), tmp_path / "kubelet.yaml", tmp_path / "ca.crt"
    pair = cluster.server_file(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    kept = yaml.safe_dump({**QUIET, **KUBELET_SETTINGS, "port": port, "maxPods": 7})
    made = kubelet_config.adjust(
        kubelet_config.parse({"data": {"kubelet": kept}}), ca_file=str(ca_file), serving_file=str(pair)
    )
    kubelet_files.write(str(config), kubelet_config.render(made), mode=kubelet_files.PRIVATE)
    kubelet_files.write(str(ca_file), cluster.pem, mode=kubelet_files.PUBLIC)
    program, runtime = assets / "kubelet", tmp_path / "runtime.sock"
    command = [*ELSEWHERE, *kubelet_command(program, config, tmp_path / "kubelet", runtime)]
    log = tmp_path / "kubelet.log"
    with (
        RuntimeStub(runtime),
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output) as process,
    ):
        try:
            found = eventually(lambda: configuration(port, cluster, tmp_path), seconds=40, what="kubelet's answer")
        finally:
            process.kill()
    assert found["kubeletconfig"]["maxPods"] == 7
    assert found["kubeletconfig"]["authentication"]["x509"]["clientCAFile"] == str(ca_file)


def configuration(port: int, cluster: Authority, folder: Path) -> dict[str, Any] | None:
    """Ask kubelet what it runs with, as a client whose certificate the CA file vouches for."""
    context = ssl.create_default_context(cadata=cluster.pem.decode())
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=60) as plain:
        context.load_cert_chain(*client_files(cluster, folder))
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as tls:
            tls.sendall(b"GET /configz HTTP/1.0\r\nHost: kubelet\r\n\r\n")
            answer = b"".join(iter(lambda: tls.recv(65536), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b" 200 " in head, head
        return json.loads(body)
    return None


def client_files(cluster: Authority, folder: Path) -> tuple[Path, Path]:
    """Make a client's certificate and key."""
    made = ec.generate_private_key(ec.SECP256R1())
    certificate, key = folder / "client.crt", folder / "client.key"
    certificate.write_bytes(cluster.client(made.public_key(), "operator", organization="system:masters"))
    key.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return certificate, key
