"""Joining with a software TPM, step by step as the agent and the controller do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from tpm_world import MACHINE, binding_of, challenge_of, facts_of, machine, published, request_of

from nodeattest_providers.node_interface import Attestor, Evidence, JsonValue
from nodeattest_providers.tpm.attestor import TpmAttestor
from nodeattest_providers.tpm.endorsement_key import MACHINE_ANNOTATION
from nodeattest_providers.tpm.protocol import FirstEvidence, SecondEvidence, parse_evidence
from nodeattest_providers.verifier_interface import Facts, NodeRequest
from nodeattest_sandbox.swtpm import SoftwareTpm


def attestor_of(tpm: SoftwareTpm, kind: str = "auto") -> TpmAttestor:
    return TpmAttestor({"tcti": tpm.tcti, "endorsementKey": kind})


def by_allow_list(fingerprint: str) -> dict[str, JsonValue]:
    return {"endorsementKeys": [{"providerID": MACHINE, "sha256": fingerprint}]}


def by_certificate(tpm: SoftwareTpm, fingerprint: str) -> Facts:
    bound = machine(annotations={MACHINE_ANNOTATION: fingerprint})
    return facts_of({"endorsementCAs": tpm.authority_pem}, machine=bound, verified_at=tpm_time(tpm))


def tpm_time(tpm: SoftwareTpm) -> datetime:
    """The TPM's certificate was made just now, by the real clock."""
    return tpm.endorsement_certificate().not_valid_before_utc


def filed(evidence: Evidence, **changes: object) -> NodeRequest:
    return request_of(read(evidence), **changes)


def read(evidence: Evidence) -> FirstEvidence | SecondEvidence:
    return parse_evidence(evidence.data)


@dataclass(frozen=True, slots=True)
class Exchange:
    """What crossed the wire in one honest join."""

    facts: Facts
    first: NodeRequest
    answer: SecondEvidence

    @property
    def second(self) -> NodeRequest:
        """The second request."""
        return request_of(self.answer)


def exchange(attestor: Attestor, facts: Facts) -> Exchange:
    first = filed(attestor.attest(binding_of(filed_nothing())))
    challenge = challenge_of(first, facts)
    answer = read(attestor.attest(binding_of(first), published(first, challenge)))
    assert isinstance(answer, SecondEvidence)
    return Exchange(replace(facts, first_request=first), first, answer)


def filed_nothing() -> NodeRequest:
    """A request of the right signer and CSR: all that a binding needs."""
    return request_of(FirstEvidence(ek_public=b"", ak_public=b""))
