"""What a machine is told of its cluster before it joins: address and CA file, or an address and a hash (discovery).

Promises: whatever a machine is told stands in one value, so that honest machines and impostors differ in nothing else.
With discovery by token the cluster is described by the shipped command, and signed by the shipped controller.
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

__all__ = ["DISCOVERIES", "SIGNING_CONTROLLERS", "Directions", "given", "publish", "to"]

DISCOVERIES: Final = ("none", "token")
"""How machines get to know their cluster; ``none``: they are handed its CA."""
SIGNING_CONTROLLERS: Final = ("*", "bootstrap-signer", "token-cleaner")
_LIMIT: Final = 60.0
"""Seconds for a command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Directions:
    """Words for ``kubelet-authenticator join``."""

    words: tuple[str, ...]
    pin: str = ""
    """Of the cluster's CA, with discovery by token."""


def given(workload: ControlPlane) -> Directions:
    """Hand out the address and the CA."""
    return Directions(words=(f"--server={workload.server}", f"--ca-file={workload.ca_certificate}"))


def to(server: str, pin: str) -> Directions:
    """Hand out an address and the hash of a CA's key."""
    endpoint = server.removeprefix("https://")
    words = (f"--discovery-server={endpoint}", f"--discovery-token-ca-cert-hash={pin}")
    return Directions(words=words, pin=pin)


def publish(workload: ControlPlane, children: Children, command: Path, *, user: str) -> Directions:
    """Publish cluster-info and let the controller (``user``) sign it; raises ``DemoFailure``."""
    create_all(workload.client(), manifests.objects("workload-discovery"), user=user)
    words = ["cluster-info", "publish", f"--kubeconfig={workload.admin_kubeconfig}", "--token="]
    ended = children.run([command, *words], limit=_LIMIT)
    if ended.code:
        raise DemoFailure(f"cluster-info could not be published: {ended.last_line}")
    ca = x509.load_pem_x509_certificate(workload.ca_certificate.read_bytes())
    return to(workload.server, str(pins.pin_of(ca)))
