"""Builders that the tests of the API server share."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue
from nodeattest_sandbox.client import ApiRefusal

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SIGNER = "cluster.x-k8s.io/kube-apiserver-client-kubelet-tpm"

T = TypeVar("T")


def pem_request() -> bytes:
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
            x509.NameAttribute(NameOID.COMMON_NAME, "system:node:a"),
        ]
    )
    key = ec.generate_private_key(ec.SECP256R1())
    signed = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def csr_object(name: str, **spec: JsonValue) -> JsonMap:
    body: JsonMap = {
        "request": encoded(pem_request()),
        "signerName": SIGNER,
        "usages": ["digital signature", "client auth"],
        **spec,
    }
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": body,
    }


def condition(kind: str, status: str = "True", reason: str = "Test") -> JsonMap:
    return {"type": kind, "status": status, "reason": reason, "message": "by a test"}


def role(name: str, *rules: JsonMap, namespace: str = "") -> JsonMap:
    metadata: JsonMap = {"name": name, **({"namespace": namespace} if namespace else {})}
    kind = "Role" if namespace else "ClusterRole"
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata, "rules": list(rules)}


def rule(
    verbs: list[JsonValue], group: str, resources: list[JsonValue], names: list[JsonValue] | None = None
) -> JsonMap:
    return {"verbs": verbs, "apiGroups": [group], "resources": resources, **({"resourceNames": names} if names else {})}


def binding(name: str, role_name: str, subject: JsonMap, *, namespace: str = "", cluster_role: bool = True) -> JsonMap:
    metadata: JsonMap = {"name": name, **({"namespace": namespace} if namespace else {})}
    reference: JsonMap = {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole" if cluster_role else "Role",
        "name": role_name,
    }
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": metadata,
        "roleRef": reference,
        "subjects": [subject],
    }


def user(name: str) -> JsonMap:
    return {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}


def group(name: str) -> JsonMap:
    return {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name}


def refusal(call: Callable[[], object]) -> ApiRefusal:
    """Make the call, which must be refused."""
    try:
        call()
    except ApiRefusal as refused:
        return refused
    raise AssertionError("the server did not refuse")
