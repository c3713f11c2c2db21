"""An attacker with a stolen bootstrap token: what the API server lets it read and submit.

Uses only the token, the cluster's CA and what the token may read. An attack that succeeds is an outcome like any other.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nodeattest_cli.demo.node_client import DemoFailure
from nodeattest_controller.model.objects import condition, items, text
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.binding import Binding, cluster_pin
from nodeattest_providers.csr import build_csr
from nodeattest_providers.key_types import PrivateKey
from nodeattest_providers.names import ANNOTATION_CHALLENGE, ClusterPin, EvidenceBlock, SignerName
from nodeattest_sandbox.client import Client

__all__ = ["Attacker", "CsrOutcome"]

T = TypeVar("T")

_REQUESTS: Final = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
_ANSWER_TIMEOUT: Final = 30.0
"""Seconds to wait for the controller; a request that waits for its Machine takes some 15."""
_POLL: Final = 0.05
"""Seconds."""
_ISSUED: Final = "Issued"


@dataclass(frozen=True, slots=True)
class CsrOutcome:
    """The controller's answer to one request."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Attacker:
    """A stolen token and its uses."""

    client: Client
    """Authenticates with the token."""
    token: str = field(repr=False)
    ca_pem: bytes
    """The cluster's CA, which everybody gets from the cluster-info ConfigMap."""

    @property
    def username(self) -> str:
        """As the API server names the token's holder."""
        return f"system:bootstrap:{self.token[:6]}"

    @property
    def pin(self) -> ClusterPin:
        """The pin of the cluster's CA."""
        ca = x509.load_pem_x509_certificate(self.ca_pem)
        return cluster_pin(ca.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))

    def binding(self, block: EvidenceBlock, signer: SignerName, csr_der: bytes) -> Binding:
        """Bind a request as an honest node does."""
        return Binding(block, self.pin, signer, hashlib.sha256(csr_der).digest())

    def submit(self, name: str, request: bytes, signer: str) -> JsonObject:
        """Create a CertificateSigningRequest."""
        body: JsonObject = {
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"name": name},
            "spec": {
                "request": base64.b64encode(request).decode(),
                "signerName": signer,
                "usages": ["digital signature", "client auth"],
            },
        }
        return self.client.create(_REQUESTS, body)

    def observed(self) -> Sequence[JsonObject]:
        """List every request, as every token may."""
        return self.client.list(_REQUESTS)

    def own_names(self) -> set[str]:
        """Name the requests that this token filed."""
        return {text(csr, "metadata", "name") for csr in self._own()}

    def outcome(self, name: str) -> CsrOutcome:
        """Wait for the answer to a request."""
        return self._await(name, _outcome, "answer")

    def outcome_of_new_request(self, known: set[str]) -> CsrOutcome:
        """Wait for the answer to the newest request of this token that is not among the known ones."""
        fresh = [csr for csr in self._own() if text(csr, "metadata", "name") not in known]
        decided = [found for csr in fresh if (found := _outcome(csr)) is not None]
        if decided:
            return decided[-1]
        if not fresh:
            raise DemoFailure("the attacker's agent filed no request at all")
        return self.outcome(text(fresh[-1], "metadata", "name"))

    def challenge(self, name: str) -> str:
        """Wait for the challenge on a request."""
        return self._await(
            name, lambda csr: text(csr, "metadata", "annotations", ANNOTATION_CHALLENGE) or None, "challenge"
        )

    def _own(self) -> list[JsonObject]:
        own = [csr for csr in self.observed() if text(csr, "spec", "username") == self.username]
        return sorted(own, key=lambda csr: text(csr, "metadata", "creationTimestamp"))

    def _await(self, name: str, find: Callable[[JsonObject], T | None], what: str) -> T:
        end = time.monotonic() + _ANSWER_TIMEOUT
        while time.monotonic() < end:
            found = find(self.client.get(f"{_REQUESTS}/{name}"))
            if found is not None:
                return found
            time.sleep(_POLL)
        raise DemoFailure(f"the attacker's request {name} got no {what} in {_ANSWER_TIMEOUT:.0f} s")


def new_request(node: str, provider_id: str) -> tuple[PrivateKey, bytes]:
    """Make a fresh key and a PKCS#10 request for any name."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key, build_csr(key, node, provider_id)


def _outcome(csr: JsonObject) -> CsrOutcome | None:
    conditions = items(csr, "status", "conditions")
    if text(csr, "status", "certificate"):
        return CsrOutcome(_ISSUED, "the attacker got a certificate")
    for kind in ("Denied", "Failed"):
        found = condition(conditions, kind)
        if found is not None:
            return CsrOutcome(str(found.get("reason", "")), str(found.get("message", "")))
    return None
