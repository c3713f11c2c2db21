"""Nodes that join and ask for serving certificates over plain HTTP, in two steps where their provider wants it."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from filing_requests import Filed
from polling import eventually
from world import CSRS, NAMESPACE, World

from nodeattest_providers import envelope, pkcs10, registry
from nodeattest_providers.identifiers import (
    ANNOTATION_CHALLENGE,
    ClusterPin,
    ProviderName,
    Purpose,
    SignerName,
    evidence_block,
    signer_for,
)
from nodeattest_providers.node_interface import Attestor, Binding, PublishedChallenge, cluster_pin
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at
from nodeattest_sandbox.client import Client

USAGES: Final = {Purpose.CLIENT: "client auth", Purpose.SERVING: "server auth"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked for; with names it is a serving certificate."""

    dns_names: Sequence[str] = ()
    ip_addresses: Sequence[str] = ()
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    by_token: bool = False
    usages: Sequence[str] = ()

    @property
    def purpose(self) -> Purpose:
        """What the certificate is for."""
        return Purpose.SERVING if self.dns_names or self.ip_addresses else Purpose.CLIENT


@dataclass(frozen=True, slots=True)
class Node:
    """A machine that can attest."""

    world: World
    name: str
    provider: ProviderName
    attestor: Attestor

    def file(self, asked: Asked) -> Filed:
        """File what is asked for and return the request that ends it: the second one where a challenge came."""
        world, signer = self.world, signer_for(self.provider, asked.purpose)
        der = pkcs10.build_csr(
            asked.key,
            self.name,
            f"sandbox://{self.name}",
            dns_names=asked.dns_names,
            ip_addresses=asked.ip_addresses,
        )
        block = evidence_block(self.provider, self.attestor.versions[0])
        binding = Binding(block, pin_of(world), signer, pkcs10.parse_csr(der, purpose=asked.purpose).sha256)
        client = self._client(asked)
        first = Filed(world, _create(client, asked, signer, envelope.encode(der, self.attestor.attest(binding))))
        if not self.attestor.two_step:
            return first
        text = eventually(
            lambda: first.annotation(ANNOTATION_CHALLENGE) or first.state(), what=f"the answer to {first.name}"
        )
        if first.state():
            return first
        published = PublishedChallenge(
            name=first.name,
            uid=text_at(first.read(), "metadata", "uid"),
            csr_sha256=binding.csr_sha256,
            text=text,
            spki_sha256=pkcs10.parse_csr(der, purpose=asked.purpose).spki_sha256,
        )
        answer = envelope.encode(der, self.attestor.attest(binding, published))
        return Filed(world, _create(client, asked, signer, answer))

    def join(self) -> Filed:
        """Get a client certificate by a bootstrap token."""
        filed = self.file(Asked(by_token=True))
        certificate_of(filed)
        return filed

    def _client(self, asked: Asked) -> Client:
        workload = self.world.workload
        if asked.by_token:
            return workload.client(workload.token_kubeconfig(self.world.token()))
        return workload.client(workload.client_kubeconfig(f"system:node:{self.name}", ["system:nodes"]))


def _create(client: Client, asked: Asked, signer: SignerName, request: bytes) -> str:
    body: JsonMap = {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": f"s-{uuid4().hex[:12]}"},
        "spec": {
            "signerName": signer,
            "usages": list(asked.usages) or ["digital signature", USAGES[asked.purpose]],
            "request": base64.b64encode(request).decode(),
        },
    }
    return text_at(client.create(CSRS, body), "metadata", "name")


def end_of(filed: Filed, *, seconds: float = 60.0) -> str:
    """Wait until a request is issued, denied or failed."""
    return eventually(lambda: filed.state().removeprefix("Approved"), seconds=seconds, what=f"the end of {filed.name}")


def certificate_of(filed: Filed) -> x509.Certificate:
    """Wait for a certificate; any other end fails."""
    ended = end_of(filed)
    assert ended == "issued", ended
    return x509.load_pem_x509_certificate(base64.b64decode(text_at(filed.read(), "status", "certificate")))


def enrol(world: World, name: str, *, addresses: Sequence[tuple[str, str]] = (), bootstrap_token: str = "") -> Node:
    """Make a Machine with a secret of its own, and what answers for it."""
    secret = secrets.token_hex(32).encode()
    world.machine(name, addresses=addresses, bootstrap_token=bootstrap_token)
    body: JsonMap = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{name}-attestation"},
        "data": {"secret": base64.b64encode(secret).decode()},
    }
    world.admin.create(f"/api/v1/namespaces/{NAMESPACE}/secrets", body)
    path = world.directory / f"{name}.secret"
    path.touch(mode=0o600)
    path.write_bytes(secret)
    provider = ProviderName("challenge")
    return Node(world, name, provider, registry.make_attestor(provider, {"secretFile": str(path)}))


def pin_of(world: World) -> ClusterPin:
    """Return the pin of the workload cluster's CA."""
    certificate = x509.load_pem_x509_certificate(world.workload.ca_certificate.read_bytes())
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    return cluster_pin(certificate.public_key().public_bytes(serialization.Encoding.DER, spki))
