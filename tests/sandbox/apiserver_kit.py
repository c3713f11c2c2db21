"""Objects that the tests of the API server share."""

from __future__ import annotations

import base64
from collections.abc import Callable

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue
from nodeattest_sandbox.client import ApiRefusal, Client

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
SIGNER = "cluster.x-k8s.io/kube-apiserver-client-kubelet-tpm"
_GROUP = "rbac.authorization.k8s.io"
RBAC = f"/apis/{_GROUP}/v1"


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def csr_object(
    name: str, *, node: str = "a", key: ec.EllipticCurvePrivateKey | None = None, **spec: JsonValue
) -> JsonMap:
    subject = [(NameOID.ORGANIZATION_NAME, "system:nodes"), (NameOID.COMMON_NAME, f"system:node:{node}")]
    names = x509.Name([x509.NameAttribute(*each) for each in subject])
    key = key or ec.generate_private_key(ec.SECP256R1())
    signed = x509.CertificateSigningRequestBuilder(names).sign(key, hashes.SHA256())
    request = encoded(signed.public_bytes(serialization.Encoding.PEM))
    usages: JsonValue = ["digital signature", "client auth"]
    return {"metadata": {"name": name}, "spec": {"request": request, "signerName": SIGNER, "usages": usages, **spec}}


def condition(kind: str, status: str = "True", reason: str = "Test") -> JsonMap:
    return {"type": kind, "status": status, "reason": reason, "message": "by a test"}


def bind(admin: Client, name: str, role: str, kind: str, subject: str) -> None:
    """Bind a ClusterRole to a User or Group."""
    reference: JsonMap = {"apiGroup": _GROUP, "kind": "ClusterRole", "name": role}
    subjects: JsonValue = [{"apiGroup": _GROUP, "kind": kind, "name": subject}]
    admin.create(
        f"{RBAC}/clusterrolebindings", {"metadata": {"name": name}, "roleRef": reference, "subjects": subjects}
    )


def grant(admin: Client, name: str, kind: str, subject: str, *rules: tuple[str, ...]) -> None:
    """Let a User or Group do this: verb, API group, resource, and the only name."""
    made: list[JsonValue] = [
        {"verbs": [verb], "apiGroups": [group], "resources": [resource], **({"resourceNames": [*only]} if only else {})}
        for verb, group, resource, *only in rules
    ]
    admin.create(f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": made})
    bind(admin, name, name, kind, subject)


def refusal(call: Callable[[], object]) -> ApiRefusal:
    """Make the call, which must be refused."""
    try:
        call()
    except ApiRefusal as refused:
        return refused
    raise AssertionError("the server did not refuse")
