"""A stored TPM join, both requests, with every object that it was judged by; made with a TPM in software."""

from __future__ import annotations

import base64
import copy
from dataclasses import dataclass, field
from functools import cached_property

from cryptography.hazmat.primitives.asymmetric import ec

from nodeattest_cli.explain.replay import CheckOutcome, Explanation
from nodeattest_demo.forged_tpm import ForgedTpm
from nodeattest_parsing.objects import mapping
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers import envelope
from nodeattest_providers.errors import Reason
from nodeattest_providers.node_interface import Evidence, FirstRequestRef
from nodeattest_providers.node_interface import JsonObject as EvidenceData
from nodeattest_providers.pkcs10 import build_csr
from nodeattest_providers.tpm.protocol import PROVIDER, VERSION, SecondEvidence
from nodeattest_providers.tpm.structures import parse_public
from nodeattest_sandbox.pki import ClusterPki

NODE, MACHINE, PROVIDER_ID = "worker-1", "blue-md-1", "metal://rack-1/1"
SIGNER = "cluster.x-k8s.io/kube-apiserver-client-kubelet-tpm"
EK_ANNOTATION = "cluster-x-k8s-io/tpm-endorsement-key"


def stored_csr(name: str, request: bytes, **spec: JsonValue) -> JsonObject:
    """Make the object as the API server keeps it."""
    filed: JsonObject = {
        "request": base64.b64encode(request).decode(),
        "signerName": SIGNER,
        "usages": ["digital signature", "client auth"],
        "username": "system:bootstrap:abcdef",
        "groups": ["system:bootstrappers", "system:authenticated"],
        **spec,
    }
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name, "uid": f"uid-of-{name}", "creationTimestamp": "2026-05-04T12:00:00Z"},
        "spec": filed,
        "status": {},
    }


@dataclass(frozen=True)
class Join:
    """A sound join."""

    pki: ClusterPki
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    tpm: ForgedTpm = field(default_factory=lambda: ForgedTpm(ec.generate_private_key(ec.SECP384R1()).public_key()))

    @cached_property
    def csr(self) -> bytes:
        """One request in DER: signing again would give other bytes."""
        return build_csr(self.key, NODE, PROVIDER_ID)

    @property
    def first(self) -> JsonObject:
        return stored_csr("first", self.envelope(self.tpm.first().to_json()))

    @property
    def second(self) -> JsonObject:
        """The answer; only the controller can tell whether it is right."""
        ref = FirstRequestRef(name="first", uid="uid-of-first")
        answer = SecondEvidence(first=ref, mac=MAC, quote=b"quote", signature=b"signature", pcrs=(bytes(32),))
        return stored_csr("second", self.envelope(answer.to_json()))

    def envelope(self, evidence: EvidenceData) -> bytes:
        return envelope.encode(self.csr, Evidence(PROVIDER, VERSION, evidence))

    @property
    def fingerprint(self) -> str:
        raw = self.tpm.first().ek_public
        return parse_public(raw, what="key", reason=Reason.ENDORSEMENT_KEY_MALFORMED).fingerprint

    def documents(self) -> list[JsonObject]:
        """Return what the request is judged by, but for the first request."""
        references: JsonObject = {
            "infrastructureRef": _reference("infrastructure", "DevMachine"),
            "bootstrap": {"configRef": _reference("bootstrap", "KubeadmConfig")},
        }
        status: JsonObject = {"bootstrapReady": True, "addresses": [{"type": "Hostname", "address": NODE}]}
        token: JsonObject = {"discovery": {"bootstrapToken": {"token": "abcdef.0123456789abcdef"}}}
        keys: JsonObject = {EK_ANNOTATION: self.fingerprint}
        return [
            made("cluster.x-k8s.io/v1beta1", "Cluster", "blue", uid="uid-of-blue"),
            made(
                "cluster.x-k8s.io/v1beta1",
                "Machine",
                MACHINE,
                uid="uid-of-machine",
                spec={"clusterName": "blue", "providerID": PROVIDER_ID, **references},
                status=status,
            ),
            made(
                "bootstrap.cluster.x-k8s.io/v1beta1",
                "KubeadmConfig",
                MACHINE,
                spec={"joinConfiguration": token},
                status={"ready": True},
            ),
            made("infrastructure.cluster.x-k8s.io/v1beta1", "DevMachine", MACHINE, annotations=keys),
            policy(authorizedAttestors=["tpm"]),
            authority(self.pki),
        ]


MAC = bytes(range(32))


def policy(**spec: JsonValue) -> JsonObject:
    return made("attestation.cluster.x-k8s.io/v1alpha1", "NodeAttestationPolicy", "blue", spec=spec)


def authority(pki: ClusterPki) -> JsonObject:
    """Make the Secret with the cluster's CA, without its key."""
    certificate = base64.b64encode(pki.ca_certificate.read_bytes()).decode()
    return made("v1", "Secret", "blue-ca", data={"tls.crt": certificate})


def made(
    api_version: str,
    kind: str,
    name: str,
    *,
    uid: str = "uid",
    annotations: JsonObject | None = None,
    **parts: JsonObject,
) -> JsonObject:
    meta: JsonObject = {"name": name, "namespace": "fleet", "uid": uid}
    if annotations:
        meta["annotations"] = annotations
    return {"apiVersion": api_version, "kind": kind, "metadata": meta, **parts}


def _reference(group: str, kind: str) -> JsonObject:
    return {"apiVersion": f"{group}.cluster.x-k8s.io/v1beta1", "kind": kind, "name": MACHINE}


def without(documents: list[JsonObject], kind: str) -> list[JsonObject]:
    return [document for document in documents if document["kind"] != kind]


def changed(documents: list[JsonObject], kind: str, *path: str, value: JsonValue) -> list[JsonObject]:
    """Copy the documents with one field of one kind set."""
    copies = copy.deepcopy(documents)
    target = next(document for document in copies if document["kind"] == kind)
    mapping(target, *path[:-1])[path[-1]] = value
    return copies


def outcome(explanation: Explanation, name: str) -> CheckOutcome:
    """Return how a check ended."""
    return next(step.outcome for step in explanation.steps if step.name == name)


def refusal(explanation: Explanation) -> tuple[str, str]:
    """Return name and reason of the first check that failed."""
    return next((step.name, step.reason) for step in explanation.steps if step.outcome is CheckOutcome.FAILED)
