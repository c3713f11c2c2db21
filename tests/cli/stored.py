"""A stored TPM join, both requests, with every object that it was judged by; made with a TPM in software."""

from __future__ import annotations

import base64
import copy
from dataclasses import dataclass, field
from functools import cached_property

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nodeattest_cli.explain.replay import CheckOutcome, Explanation
from nodeattest_controller.model.csr_request import parse_request
from nodeattest_demo.forged_tpm import ForgedTpm
from nodeattest_parsing.objects import mapping
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers import envelope
from nodeattest_providers.challenge_response import LABEL_NONCE, LABEL_SECRET, challenge_context, derive
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import ProviderID
from nodeattest_providers.node_interface import Evidence, FirstRequestRef, SecretBytes, cluster_pin
from nodeattest_providers.node_interface import JsonObject as EvidenceData
from nodeattest_providers.pkcs10 import build_csr
from nodeattest_providers.tpm.protocol import PROVIDER, VERSION, Challenge, SecondEvidence, proof, qualifying_data
from nodeattest_providers.tpm.structures import Alg, PcrSelection, parse_public
from nodeattest_providers.verifier_interface import ClusterFacts, Facts, MachineFacts
from nodeattest_sandbox.pki import ClusterPki

NODE, MACHINE, PROVIDER_ID = "worker-1", "blue-md-1", "metal://rack-1/1"
SIGNER = "cluster.x-k8s.io/kube-apiserver-client-kubelet-tpm"
MASTER = b"a master key that is only a test"
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
    """A sound join; ``documents`` may be changed before the replay."""

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

    def envelope(self, evidence: EvidenceData) -> bytes:
        return envelope.encode(self.csr, Evidence(PROVIDER, VERSION, evidence))

    @property
    def fingerprint(self) -> str:
        raw = self.tpm.first().ek_public
        return parse_public(raw, what="key", reason=Reason.ENDORSEMENT_KEY_MALFORMED).fingerprint

    def round(self, *, mac: bytes | None = None, log: bytes | None = None) -> tuple[JsonObject, JsonObject]:
        """Make both requests; the answer is right unless another MAC is given, or a log that does not fit the TPM."""
        ca = x509.load_pem_x509_certificate(self.pki.ca_certificate.read_bytes())
        pin = cluster_pin(ca.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
        stored = self.first
        first = parse_request(stored)
        facts = Facts(
            cluster=ClusterFacts(uid="uid-of-blue", pins=frozenset({pin})),
            machine=MachineFacts(uid="uid-of-machine", provider_id=ProviderID(PROVIDER_ID)),
            verified_at=first.created,
        )
        evidence = self.tpm.first()
        ek = parse_public(evidence.ek_public, what="ek", reason=Reason.ENDORSEMENT_KEY_MALFORMED)
        ak = parse_public(evidence.ak_public, what="ak", reason=Reason.ATTESTATION_KEY_NOT_ALLOWED)
        ctx, key = challenge_context(facts, first, ak.name, ek.spki_sha256), SecretBytes(MASTER)
        nonce = derive(LABEL_NONCE, key, ctx)
        binding = first.binding(pin).digest
        challenge = Challenge(
            uid=first.uid,
            spki_sha256=first.csr.spki_sha256,
            nonce=nonce,
            blob=b"blob",
            secret=b"secret",
            pcrs=PcrSelection(Alg.SHA256, (0, 7)),
            log=log is not None,
        )
        quote, signature, pcrs = self.tpm.quote(challenge, qualifying_data(nonce, first.uid, binding))
        secret = derive(LABEL_SECRET, key, ctx)
        right = proof(secret, first.uid, first.csr.sha256, binding)
        answer = SecondEvidence(
            first=FirstRequestRef(name=first.name, uid=first.uid),
            mac=right if mac is None else mac,
            quote=quote,
            signature=signature,
            pcrs=pcrs,
            event_log=log,
        )
        return stored, stored_csr("second", self.envelope(answer.to_json()))

    def documents(self) -> list[JsonObject]:
        """Return what the request is judged by, but for the first request."""
        return [
            _object("cluster.x-k8s.io/v1beta1", "Cluster", "blue", uid="uid-of-blue"),
            _object(
                "cluster.x-k8s.io/v1beta1",
                "Machine",
                MACHINE,
                uid="uid-of-machine",
                spec={
                    "clusterName": "blue",
                    "providerID": PROVIDER_ID,
                    "infrastructureRef": {
                        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1",
                        "kind": "DevMachine",
                        "name": MACHINE,
                    },
                    "bootstrap": {
                        "configRef": {
                            "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta1",
                            "kind": "KubeadmConfig",
                            "name": MACHINE,
                        }
                    },
                },
                status={"bootstrapReady": True, "addresses": [{"type": "Hostname", "address": NODE}]},
            ),
            _object(
                "bootstrap.cluster.x-k8s.io/v1beta1",
                "KubeadmConfig",
                MACHINE,
                spec={"joinConfiguration": {"discovery": {"bootstrapToken": {"token": "abcdef.0123456789abcdef"}}}},
                status={"ready": True},
            ),
            _object(
                "infrastructure.cluster.x-k8s.io/v1beta1",
                "DevMachine",
                MACHINE,
                annotations={EK_ANNOTATION: self.fingerprint},
            ),
            _object(
                "attestation.cluster.x-k8s.io/v1alpha1",
                "NodeAttestationPolicy",
                "blue",
                spec={"authorizedAttestors": ["tpm"]},
            ),
            _secret("blue-ca", {"tls.crt": self.pki.ca_certificate.read_bytes()}),
            _secret("node-attestation-challenge-keys", {"current": MASTER}),
        ]


def without(documents: list[JsonObject], kind: str) -> list[JsonObject]:
    return [document for document in documents if document["kind"] != kind]


def changed(documents: list[JsonObject], kind: str, *path: str, value: JsonValue) -> list[JsonObject]:
    """Copy the documents with one field of one kind set."""
    copies = copy.deepcopy(documents)
    target = next(document for document in copies if document["kind"] == kind)
    mapping(target, *path[:-1])[path[-1]] = value
    return copies


def _object(
    api_version: str,
    kind: str,
    name: str,
    *,
    uid: str = "uid",
    annotations: dict[str, JsonValue] | None = None,
    **parts: JsonValue,
) -> JsonObject:
    meta: JsonObject = {"name": name, "namespace": "fleet", "uid": uid}
    if annotations:
        meta["annotations"] = annotations
    return {"apiVersion": api_version, "kind": kind, "metadata": meta, **parts}


def _secret(name: str, data: dict[str, bytes]) -> JsonObject:
    encoded: JsonObject = {key: base64.b64encode(value).decode() for key, value in data.items()}
    return _object("v1", "Secret", name, data=encoded)


def outcome(explanation: Explanation, name: str) -> CheckOutcome:
    """Return how a check ended."""
    return next(step.outcome for step in explanation.steps if step.name == name)


def refusal(explanation: Explanation) -> tuple[str, str]:
    """Return name and reason of the first check that failed."""
    return next((step.name, step.reason) for step in explanation.steps if step.outcome is CheckOutcome.FAILED)
