"""The flags of etcd and kube-apiserver for one control plane on loopback.

Promises: bootstrap-token authentication, the authorizers Node and RBAC, NodeRestriction, an audit log of metadata.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from nodeattest_sandbox.child_process import LOOPBACK
from nodeattest_sandbox.pki import ClusterPki

__all__ = ["AUDIT_POLICY", "apiserver_flags", "etcd_flags"]

_SERVICE_NETWORK: Final = "10.96.0.0/16"

AUDIT_POLICY: Final = """\
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- {level: Metadata, omitStages: [RequestReceived, ResponseStarted]}
"""


def etcd_flags(data: Path, port: int, peer_port: int) -> list[str]:
    """Return the flags of a single etcd without TLS: only kube-apiserver knows its port."""
    client, peer = f"http://{LOOPBACK}:{port}", f"http://{LOOPBACK}:{peer_port}"
    return [
        "--name=sandbox",
        f"--data-dir={data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=sandbox={peer}",
    ]


def apiserver_flags(pki: ClusterPki, port: int, etcd_port: int, issuer: str = "") -> list[str]:
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
