"""The demo's attacks: what each tries, and the Reason for which it must be refused.

An attacker uses only a stolen token, the cluster's CA, and what the token may read. An attack that succeeds is an
outcome like any other. All other attacks are in docs/threat-model.md.
"""

from __future__ import annotations

import base64
import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nodeattest_demo.forged_tpm import ForgedTpm
from nodeattest_demo.machines import AttestorSettings, Children, ClaimedIdentity, DemoFailure, DemoMachine
from nodeattest_demo.world import World, run_join
from nodeattest_parsing.objects import condition, items, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers import envelope, pem
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import (
    ANNOTATION_CHALLENGE,
    ClusterPin,
    EvidenceBlock,
    ProviderName,
    SignerName,
    evidence_block,
)
from nodeattest_providers.keys import PrivateKey
from nodeattest_providers.node_interface import Binding, Evidence, FirstRequestRef, cluster_pin
from nodeattest_providers.node_interface import JsonObject as EvidenceData
from nodeattest_providers.pkcs10 import build_csr
from nodeattest_providers.tpm.protocol import VERSION, Challenge, SecondEvidence, qualifying_data
from nodeattest_sandbox.client import Client

T = TypeVar("T")

_REQUESTS: Final = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
_ANSWER_TIMEOUT: Final = 30.0
"""Seconds to wait for the controller; a request that waits for its Machine takes some 15."""
_POLL: Final = 0.05
_SECOND_PHASE: Final = 2
_NUMBERS = count(1)


@dataclass(frozen=True, slots=True)
class CsrOutcome:
    """The controller's answer to one request."""

    reason: str
    """Of the request's condition; ``Issued`` if the attacker got a certificate."""
    message: str


@dataclass(frozen=True, slots=True)
class Attacker:
    """A stolen token and its uses."""

    client: Client
    """Authenticates with the token."""
    token: str = field(repr=False)
    ca_pem: bytes
    """The cluster's CA, which everybody gets from the cluster-info ConfigMap."""

    @classmethod
    def with_token_of(cls, world: World, machine: DemoMachine) -> Attacker:
        """Make an attacker with a machine's token."""
        client = world.workload.client(world.workload.token_kubeconfig(machine.token))
        return cls(client=client, token=machine.token, ca_pem=world.workload.ca_certificate.read_bytes())

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

    def own(self) -> list[JsonObject]:
        """List the requests that this token filed, the oldest first."""
        username = f"system:bootstrap:{self.token[:6]}"
        own = [csr for csr in self.observed() if text(csr, "spec", "username") == username]
        return sorted(own, key=lambda csr: text(csr, "metadata", "creationTimestamp"))

    def outcome(self, name: str) -> CsrOutcome:
        """Wait for the answer to a request."""
        return self._await(name, _outcome, "answer")

    def challenge(self, name: str) -> str:
        """Wait for the challenge on a request."""
        return self._await(
            name, lambda csr: text(csr, "metadata", "annotations", ANNOTATION_CHALLENGE) or None, "challenge"
        )

    def _await(self, name: str, find: Callable[[JsonObject], T | None], what: str) -> T:
        end = time.monotonic() + _ANSWER_TIMEOUT
        while time.monotonic() < end:
            found = find(self.client.get(f"{_REQUESTS}/{name}"))
            if found is not None:
                return found
            time.sleep(_POLL)
        raise DemoFailure(f"the attacker's request {name} got no {what} in {_ANSWER_TIMEOUT:.0f} s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The clusters, the machines and the stolen tokens."""

    world: World
    children: Children
    agent: Path
    directory: Path
    attacker: Attacker
    """With the victim's token, stolen from its bootstrap data before it booted."""
    insider: Attacker
    """With the token and the files of the member."""
    victim: DemoMachine
    """Has not booted yet."""
    member: DemoMachine
    """Has joined, and was broken into."""
    unregistered: AttestorSettings
    """An attacker's own machine: a genuine TPM that is not registered, or an instance of the cloud."""

    def join(
        self, attestor: AttestorSettings, *, identity: ClaimedIdentity | None = None, by: Attacker | None = None
    ) -> CsrOutcome:
        """Join with the agent, as the victim by default; the API server tells the outcome."""
        attacker, root = by or self.attacker, self.directory / new_name()
        known = {text(csr, "metadata", "name") for csr in attacker.own()}
        run_join(
            self.world,
            self.children,
            self.agent,
            root,
            identity=identity or self.victim.identity,
            attestor=attestor,
            token=attacker.token,
        )
        fresh = [csr for csr in attacker.own() if text(csr, "metadata", "name") not in known]
        decided = [outcome for csr in fresh if (outcome := _outcome(csr)) is not None]
        if decided:
            return decided[-1]
        if not fresh:
            raise DemoFailure("the attacker's agent filed no request at all")
        return attacker.outcome(text(fresh[-1], "metadata", "name"))

    def submit(self, request: bytes, signer: SignerName, *, by: Attacker | None = None) -> CsrOutcome:
        """Submit a request's bytes and wait for the outcome."""
        attacker, name = by or self.attacker, new_name()
        attacker.submit(name, request, signer)
        return attacker.outcome(name)

    def observed_evidence(self) -> Evidence:
        """Read the member's evidence from its request; first requests, which ask for a challenge, do not count."""
        for csr in self.attacker.observed():
            try:
                node, evidence = envelope.decode(base64.b64decode(text(csr, "spec", "request")))
            except Denied:
                continue
            is_proof = evidence.data.get("phase", _SECOND_PHASE) == _SECOND_PHASE
            if node.node_name == self.member.identity.node and is_proof:
                return evidence
        raise DemoFailure(f"no proof of {self.member.identity.node} can be observed")


def new_request(node: str, provider_id: str) -> tuple[PrivateKey, bytes]:
    """Make a fresh key and a PKCS#10 request for any name."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key, build_csr(key, node, provider_id)


def new_name() -> str:
    """Make a name for a request or a folder."""
    return f"attack-{next(_NUMBERS)}"


def _outcome(csr: JsonObject) -> CsrOutcome | None:
    conditions = items(csr, "status", "conditions")
    if text(csr, "status", "certificate"):
        return CsrOutcome("Issued", "the attacker got a certificate")
    for kind in ("Denied", "Failed"):
        found = condition(conditions, kind)
        if found is not None:
            return CsrOutcome(str(found.get("reason", "")), str(found.get("message", "")))
    return None


# Attacks

_INSECURE: Final = AttestorSettings(provider=ProviderName("insecure"))


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack and the Reasons that may refuse it."""

    name: str
    run: Callable[[Scene], CsrOutcome]
    expected: tuple[Reason, ...]


def attacks_for(provider: str) -> Sequence[Attack]:
    """Return the attacks for a provider."""
    return (*_COMMON, *_ATTACKS[provider])


# Attackers against every provider


def _without_evidence(scene: Scene) -> CsrOutcome:
    """File a plain PKCS#10 request, as kubeadm's TLS bootstrap files it."""
    _, csr_der = new_request(scene.victim.identity.node, scene.victim.identity.provider_id)
    return scene.submit(pem.encode([(envelope.LABEL_CSR, csr_der)]), scene.victim.attestor.signer)


def _other_token(scene: Scene) -> CsrOutcome:
    """Show all that the victim has to show, and ask with the token of another machine."""
    return scene.join(scene.victim.attestor, by=scene.insider)


def _other_name(scene: Scene) -> CsrOutcome:
    """Be an enrolled machine, honest in everything but its name."""
    identity = ClaimedIdentity(node=scene.victim.identity.node, provider_id=scene.member.identity.provider_id)
    return scene.join(scene.member.attestor, identity=identity, by=scene.insider)


def _second_key(scene: Scene) -> CsrOutcome:
    """Be a machine that has joined, and bring another key."""
    return scene.join(scene.member.attestor, identity=scene.member.identity, by=scene.insider)


def _replay(scene: Scene) -> CsrOutcome:
    """Put another node's proof, read where everybody may read it, around a key of the attacker's own."""
    identity = scene.member.identity
    _, csr_der = new_request(identity.node, identity.provider_id)
    request = envelope.encode(csr_der, scene.observed_evidence())
    return scene.submit(request, scene.member.attestor.signer, by=scene.insider)


def _unregistered(scene: Scene) -> CsrOutcome:
    """Show a genuine device, instance or secret that is not this Machine's."""
    return scene.join(scene.unregistered)


def _members(scene: Scene) -> CsrOutcome:
    """Show a compromised node's device, instance or secret for another Machine's identity."""
    return scene.join(scene.member.attestor)


# Attackers against TPMs


def _forged_tpm(scene: Scene) -> CsrOutcome:
    """Show the public endorsement key of the victim's TPM, and make everything else in software."""
    provider, signer = scene.victim.attestor.provider, scene.victim.attestor.signer
    if scene.victim.tpm is None:
        raise DemoFailure("the victim has no TPM to forge")
    key = scene.victim.tpm.endorsement_certificate("ecc-p384").public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey):
        raise DemoFailure("the victim's TPM has no endorsement key to forge for")
    forged = ForgedTpm(key)
    _, csr_der = new_request(scene.victim.identity.node, scene.victim.identity.provider_id)

    def envelope_of(data: EvidenceData) -> bytes:
        return envelope.encode(csr_der, Evidence(provider, VERSION, data))

    first_name = new_name()
    first = scene.attacker.submit(first_name, envelope_of(forged.first().to_json()), signer)
    ref = FirstRequestRef(name=first_name, uid=text(first, "metadata", "uid"))
    challenge = Challenge.parse(scene.attacker.challenge(first_name))
    binding = scene.attacker.binding(evidence_block(provider, VERSION), signer, csr_der)
    quote, signed, pcrs = forged.quote(challenge, qualifying_data(challenge.nonce, ref.uid, binding.digest))
    guess = os.urandom(32)  # the proof needs the secret, which only the TPM can decrypt
    second = SecondEvidence(first=ref, mac=guess, quote=quote, signature=signed, pcrs=pcrs)
    return scene.submit(envelope_of(second.to_json()), signer)


_COMMON: Final = (
    Attack("stolen token, no evidence", _without_evidence, (Reason.ENVELOPE_MALFORMED,)),
    Attack("stolen token, the insecure signer", lambda scene: scene.join(_INSECURE), (Reason.ATTESTOR_NOT_AUTHORIZED,)),
    Attack("another machine's token", _other_token, (Reason.TOKEN_NOT_THIS_MACHINES,)),
    Attack("enrolled machine, another node's name", _other_name, (Reason.NODE_NAME_MISMATCH,)),
    # The first request has another key, or: a secret that served a first join serves no second key.
    Attack(
        "replay of another node's proof with a new key", _replay, (Reason.FIRST_REQUEST_MISMATCH, Reason.SECRET_USED)
    ),
)
_ATTACKS: Final[Mapping[str, Sequence[Attack]]] = MappingProxyType(
    {
        "tpm": (
            Attack("genuine TPM that nobody registered", _unregistered, (Reason.ENDORSEMENT_KEY_UNTRUSTED,)),
            Attack("another machine's TPM", _members, (Reason.ENDORSEMENT_KEY_UNTRUSTED,)),
            Attack("forged TPM: software key and quote", _forged_tpm, (Reason.PROOF_INVALID,)),
        ),
        "challenge": (
            Attack("a secret of the attacker's own", _unregistered, (Reason.PROOF_INVALID,)),
            Attack("another machine's secret", _members, (Reason.PROOF_INVALID,)),
            Attack("a joined machine's secret, a second key", _second_key, (Reason.SECRET_USED,)),
        ),
    }
)
"""By provider, besides those of ``_COMMON``."""
