"""What makes cluster-info public: the ConfigMap, who may read it, and whether the present one means the same.

Promises: the kubeconfig is kubeadm's, byte for byte; a bundle with anything but CA certificates in it, such as a
private key, is refused and not published. Leaves to others: signatures (``signatures``, the bootstrap signer).
Source: kubernetes cmd/kubeadm/app/phases/bootstraptoken/clusterinfo; companion proposal 001.
"""

from __future__ import annotations

import re
from typing import Final

from nodeattest_cli.errors import UserError
from nodeattest_controller.model.objects import text
from nodeattest_discovery.clusterinfo import (
    KUBECONFIG_KEY,
    NAME,
    NAMESPACE,
    SIGNATURE_PREFIX,
    ClusterInfo,
    build,
    check_server,
    parse,
)
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.errors import Denied

__all__ = [
    "ROLE",
    "check_option",
    "config_map",
    "kubeconfig_of",
    "namespace",
    "replacement",
    "role",
    "role_binding",
    "same_cluster",
]

ROLE: Final = "kubeadm:bootstrap-signer-clusterinfo"
"""Role and RoleBinding bear kubeadm's name, so that a cluster has them once."""
ANONYMOUS: Final = "system:anonymous"
_RBAC: Final = "rbac.authorization.k8s.io"
_BLOCK: Final = re.compile(r"-----BEGIN ([^-\r\n]*)-----")


def kubeconfig_of(server: str, ca_pem: str) -> str:
    """Write the kubeconfig to publish; raises ``UserError``.

    1. The bundle holds certificates and no other PEM. 2. The server is a URL, and they are CAs.
    """
    # 1
    others = sorted(set(_BLOCK.findall(ca_pem)) - {"CERTIFICATE"})
    if others:
        raise UserError(f"the CA bundle: expected CERTIFICATE blocks only, got {ascii(others[0][:40])[1:-1]}")
    # 2
    check_option(server)
    try:
        return build(server, ca_pem.encode())
    except Denied as denied:
        raise UserError(f"the CA bundle: expected {denied.expected}, got {denied.got}") from None


def check_option(server: str) -> None:
    """Check the value of ``--server``; raises ``UserError``."""
    try:
        check_server(server)
    except Denied:
        raise UserError(f"--server: expected https://host:port, got {server[:80]!a}") from None


def config_map(kubeconfig: str) -> JsonObject:
    """Return the ConfigMap, unsigned."""
    return _object("v1", "ConfigMap", NAME, {"data": {KUBECONFIG_KEY: kubeconfig}})


def replacement(found: JsonObject, kubeconfig: str) -> JsonObject:
    """Return a merge patch that puts another kubeconfig there and drops signatures, which no longer fit.

    It has the version that was read: a write by somebody else meanwhile wins.
    """
    data = found.get("data")
    stale = [key for key in (data if isinstance(data, dict) else {}) if key.startswith(SIGNATURE_PREFIX)]
    return {
        "metadata": {"resourceVersion": text(found, "metadata", "resourceVersion")},
        "data": {KUBECONFIG_KEY: kubeconfig, **dict.fromkeys(stale)},
    }


def same_cluster(found: str, wanted: str) -> bool:
    """Return whether two kubeconfigs name one server and the same CAs, however they are written."""
    try:
        return _meaning(parse(found)) == _meaning(parse(wanted))
    except Denied:
        return False


def namespace() -> JsonObject:
    """Return the namespace, which clusters of kube-apiserver have from the start."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}


def role() -> JsonObject:
    """Return the right to read cluster-info and nothing else."""
    rules: list[JsonObject] = [
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [NAME], "verbs": ["get"]}
    ]
    return _object(f"{_RBAC}/v1", "Role", ROLE, {"rules": [*rules]})


def role_binding() -> JsonObject:
    """Give that right to unauthenticated users; others need no discovery."""
    reference: JsonObject = {"apiGroup": _RBAC, "kind": "Role", "name": ROLE}
    subject: JsonObject = {"apiGroup": _RBAC, "kind": "User", "name": ANONYMOUS}
    return _object(f"{_RBAC}/v1", "RoleBinding", ROLE, {"roleRef": reference, "subjects": [subject]})


def _meaning(info: ClusterInfo) -> object:
    return info.server.rstrip("/"), info.tls_server_name, frozenset(info.ca_certificates)


def _object(version: str, kind: str, name: str, rest: JsonObject) -> JsonObject:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, **rest}
