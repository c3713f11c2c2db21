"""The line that makes a machine join with a token: kubeadm's, or the agent's.

Promises: kubeadm's line is kubeadm's, byte for byte; each CA of the kubeconfig's bundle is pinned; whatever is in a
kubeconfig, the line is one command of a shell.
Source: kubernetes cmd/kubeadm/app/cmd/util/join.go.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from nodeattest_cli.errors import UserError, user_errors
from nodeattest_discovery.clusterinfo import parse_ca_bundle
from nodeattest_discovery.pins import CaPin, pin_of
from nodeattest_discovery.token import BootstrapToken
from nodeattest_kube.kubeconfig import ApiEndpoint

__all__ = ["Joiner", "check_certificate_key", "check_provider", "join_command"]

_HOST_PORT: Final = re.compile(r"https://((?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?)/?", re.ASCII)
_HTTPS_PORT: Final = ":443"
_PROVIDER: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}", re.ASCII)
_CERTIFICATE_KEY: Final = re.compile(r"[0-9A-Fa-f]{64}", re.ASCII)
"""AES-256, as kubeadm certs certificate-key prints it."""


class Joiner(StrEnum):
    """Who joins."""

    KUBEADM = "kubeadm"
    AGENT = "kubelet-authenticator"


def check_certificate_key(key: str) -> str:
    """Return the key of a control plane's uploaded certificates as it came; raises ``UserError``."""
    if _CERTIFICATE_KEY.fullmatch(key) is None:
        raise UserError("--certificate-key: expected 64 hexadecimal digits, of kubeadm init phase upload-certs")
    return key


def check_provider(name: str) -> str:
    """Return an attestation provider's name as it came; raises ``UserError``."""
    if _PROVIDER.fullmatch(name) is None:
        raise UserError("--provider: expected a name such as tpm, aws or composite")
    return name


def join_command(
    endpoint: ApiEndpoint, token: BootstrapToken, *, certificate_key: str | None = None, provider: str | None = None
) -> str:
    """Write kubeadm's line, or with a ``provider`` the agent's; both were checked.

    Raises ``UserError`` for a kubeconfig that no machine can join by.
    """
    found = _HOST_PORT.fullmatch(endpoint.server)
    if found is None:
        raise UserError("the kubeconfig's server: expected https://host:port and no path, which machines join by")
    pins = _pins(endpoint)
    where = found[1] + ("" if found[2] else _HTTPS_PORT)
    hashes = "".join(f"--discovery-token-ca-cert-hash {pin} " for pin in pins)
    if provider is not None:
        return f"{Joiner.AGENT} join {where} --token {token.reveal()} {hashes}--provider {provider}"
    control_plane = f"--control-plane --certificate-key {certificate_key}" if certificate_key else ""
    return f"kubeadm join {where} --token {token.reveal()} {hashes}{control_plane}"


def _pins(endpoint: ApiEndpoint) -> list[CaPin]:
    """Pin each CA once, in the bundle's order."""
    if endpoint.ca_pem is None:
        raise UserError("the kubeconfig: expected certificate-authority-data, of which machines pin the CA, got none")
    with user_errors("the kubeconfig's CA"):
        return list(dict.fromkeys(pin_of(certificate) for certificate in parse_ca_bundle(endpoint.ca_pem.encode())))
