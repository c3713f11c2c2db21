"""How a machine finds its cluster: server and CA file, or server and hash of the CA's key (discovery).

With discovery by token, the shipped command publishes cluster-info and the shipped controller signs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509

from nodeattest_cli.demo.children import Children
from nodeattest_cli.demo.manifests import create_all
from nodeattest_cli.demo.node_client import DemoFailure
from nodeattest_controller import manifests
from nodeattest_discovery import pins
from nodeattest_sandbox.control_plane import ControlPlane

__all__ = [
    "DISCOVERIES",
    "SIGNING_CONTROLLERS",
    "JoinInfo",
    "join_info_with_ca",
    "join_info_with_pin",
    "publish_cluster_info",
]

DISCOVERIES: Final = ("none", "token")
"""Discovery methods; ``none``: machines get the CA file."""
SIGNING_CONTROLLERS: Final = ("*", "bootstrap-signer", "token-cleaner")
_LIMIT: Final = 60.0
"""Seconds for a command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinInfo:
    """Arguments for ``kubelet-authenticator join``."""

    arguments: tuple[str, ...]
    pin: str = ""
    """Of the cluster's CA, with discovery by token."""


def join_info_with_ca(workload: ControlPlane) -> JoinInfo:
    """Use the server's address and the CA file."""
    return JoinInfo(arguments=(f"--server={workload.server}", f"--ca-file={workload.ca_certificate}"))


def join_info_with_pin(server: str, pin: str) -> JoinInfo:
    """Use the server's address and the hash of the CA's key."""
    endpoint = server.removeprefix("https://")
    arguments = (f"--discovery-server={endpoint}", f"--discovery-token-ca-cert-hash={pin}")
    return JoinInfo(arguments=arguments, pin=pin)


def publish_cluster_info(workload: ControlPlane, children: Children, command: Path, *, user: str) -> JoinInfo:
    """Publish cluster-info and wait for the controller (``user``) to sign it; raises ``DemoFailure``."""
    create_all(workload.client(), manifests.objects("workload-discovery"), user=user)
    arguments = ["cluster-info", "publish", f"--kubeconfig={workload.admin_kubeconfig}", "--token="]
    ended = children.run([command, *arguments], limit=_LIMIT)
    if ended.code:
        raise DemoFailure(f"cluster-info could not be published: {ended.last_line}")
    ca = x509.load_pem_x509_certificate(workload.ca_certificate.read_bytes())
    return join_info_with_pin(workload.server, str(pins.pin_of(ca)))
