"""Kubelet's own serving requests, as kubelet files them with its node's client certificate."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from uuid import uuid4

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from filing_requests import Filed
from world import CSRS, World

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, text_at

KUBELET_SERVING = "kubernetes.io/kubelet-serving"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubelet:
    """What a kubelet asks for."""

    node: str
    dns_names: Sequence[str] = ()
    ip_addresses: Sequence[str] = ()
    extra: Sequence[x509.GeneralName] = ()
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    def pem(self) -> bytes:
        """Write the request as kubelet does."""
        subject = [(NameOID.ORGANIZATION_NAME, "system:nodes"), (NameOID.COMMON_NAME, f"system:node:{self.node}")]
        names: list[x509.GeneralName] = [x509.DNSName(name) for name in self.dns_names]
        names += [x509.IPAddress(ip_address(address)) for address in self.ip_addresses]
        builder = x509.CertificateSigningRequestBuilder(
            x509.Name([x509.NameAttribute(kind, value) for kind, value in subject])
        )
        san = x509.SubjectAlternativeName([*names, *self.extra])
        signed = builder.add_extension(san, critical=False).sign(self.key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)


def kubelet_asks(world: World, kubelet: Kubelet, *, asks_as: str = "", **spec: JsonValue) -> Filed:
    """File the request as the node, or as an administrator."""
    body: JsonMap = {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": f"csr-{uuid4().hex[:12]}"},
        "spec": {
            "signerName": KUBELET_SERVING,
            "usages": ["digital signature", "server auth"],
            "request": base64.b64encode(kubelet.pem()).decode(),
            **spec,
        },
    }
    user = (
        world.workload.client_kubeconfig(asks_as, ["system:masters"])
        if asks_as
        else world.workload.client_kubeconfig(f"system:node:{kubelet.node}", ["system:nodes"])
    )
    return Filed(world, text_at(world.workload.client(user).create(CSRS, body), "metadata", "name"))


def register_node(world: World, name: str, provider_id: str | None = None) -> JsonMap:
    """Make the Node object; without a provider ID where it is empty."""
    provider_id = f"sandbox://{name}" if provider_id is None else provider_id
    spec: JsonMap = {"providerID": provider_id} if provider_id else {}
    body: JsonMap = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec}
    return world.workload_admin.create("/api/v1/nodes", body)
