"""The attestation key's authPolicy marks it as ours, so that no other agent on the machine can answer for it."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from other_agent import OTHERS_TEMPLATE, STRANGER, strangers_first
from tpm_machines import attestor_of, by_allow_list, read
from tpm_tss import P384, activate, connected, primary, tss
from tpm_world import (
    AK_PREFIX,
    UNMARKED_PREFIX,
    SoftTpm,
    ak_prefix,
    challenge_of,
    facts_of,
    parsed,
    request_of,
    verify,
)

from nodeattest_providers.binding import length_prefix
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.tpm.key_templates import AK_POLICY
from nodeattest_providers.tpm.protocol import Challenge, FirstEvidence
from nodeattest_providers.tpm.structures import sized
from nodeattest_providers.verifier_interface import Facts, NodeRequest
from nodeattest_sandbox.swtpm import SoftwareTpm


def refusal(request: NodeRequest, facts: Facts) -> Denied:
    with pytest.raises(Denied) as denied:
        verify(request, facts)
    return denied.value


def test_the_mark_is_the_hash_of_a_label_and_nothing_else() -> None:
    assert hashlib.sha256(length_prefix(b"nodeattest/v1/attestation-key-policy")).digest() == AK_POLICY


@pytest.mark.parametrize("policy", [b"", bytes(32), AK_POLICY[:-1] + b"\x00", AK_POLICY[:20]])
def test_a_key_without_the_mark_is_denied(policy: bytes) -> None:
    tpm = SoftTpm(ak_prefix=ak_prefix(policy=sized(policy).hex()))
    denied = refusal(request_of(tpm.first()), facts_of(tpm.settings))
    assert denied.reason is Reason.ATTESTATION_KEY_NOT_ALLOWED
    assert denied.checks[-1].name == "attestation key: authPolicy"


@pytest.mark.swtpm
def test_the_agent_makes_a_key_with_the_mark(real_tpm: SoftwareTpm) -> None:
    with attestor_of(real_tpm) as attestor:
        evidence = read(attestor.attest(request_of(SoftTpm().first()).binding(next(iter(facts_of({}).cluster.pins)))))
    assert isinstance(evidence, FirstEvidence)
    assert parsed(evidence.ak_public).policy == AK_POLICY


@pytest.mark.swtpm
def test_another_agents_key_of_the_same_shape_is_denied(real_tpm: SoftwareTpm) -> None:
    facts = facts_of(by_allow_list(real_tpm.endorsement_fingerprint()))
    denied = refusal(strangers_first(real_tpm), facts)
    assert denied.reason is Reason.ATTESTATION_KEY_NOT_ALLOWED
    assert (denied.expected, denied.got) == (AK_POLICY.hex(), "none")


@pytest.mark.swtpm
def test_the_mark_written_into_another_agents_public_area_makes_a_key_that_no_tpm_has(real_tpm: SoftwareTpm) -> None:
    facts = facts_of(by_allow_list(real_tpm.endorsement_fingerprint()))
    evidence = read(strangers_first(real_tpm).evidence)
    assert isinstance(evidence, FirstEvidence)
    marked = AK_PREFIX + evidence.ak_public[len(UNMARKED_PREFIX) :]
    claimed = request_of(replace(evidence, ak_public=marked), csr=STRANGER)
    challenge = Challenge.parse(challenge_of(claimed, facts).challenge)
    with (
        connected(real_tpm.tcti) as esys,
        primary(esys, P384.creation()) as ek,
        primary(esys, OTHERS_TEMPLATE) as ak,
        pytest.raises(tss.TSS2_Exception, match="integrity"),
    ):
        activate(esys, ek, ak, challenge.blob, challenge.secret)
