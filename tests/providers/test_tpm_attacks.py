"""What an attacker with a TPM of its own, or with root, tries; each meets the rule that stops it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tpm_machines import Exchange, attestor_of, by_allow_list, by_certificate, exchange, filed, filed_nothing
from tpm_tss import P384, activate, connected, imported_key, primary, quote, sign, tss
from tpm_world import CSR, binding_of, challenge_of, digest_of, facts_of, parsed, request_of, verify

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.node_interface import FirstRequestRef
from nodeattest_providers.tpm.key_templates import AK_TEMPLATE
from nodeattest_providers.tpm.make_credential import make_credential
from nodeattest_providers.tpm.protocol import (
    Challenge,
    FirstEvidence,
    SecondEvidence,
    proof,
    qualifying_data,
)
from nodeattest_providers.tpm.signature import parse_signature, signature_is_valid
from nodeattest_sandbox.swtpm import SoftwareTpm

pytestmark = pytest.mark.swtpm


@pytest.fixture(scope="module")
def recorded(real_tpm: SoftwareTpm) -> Exchange:
    with attestor_of(real_tpm) as attestor:
        return exchange(attestor, by_certificate(real_tpm, attestor.endorsement_fingerprint()))


# Attacks


def spoilt(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_the_recorded_answer_is_sound(recorded: Exchange) -> None:
    assert verify(request_of(recorded.answer), recorded.facts).checks


def test_no_bit_of_a_genuine_answer_can_be_changed(recorded: Exchange) -> None:
    answer = recorded.answer
    for field in ("quote", "signature", "mac"):
        data = getattr(answer, field)
        for at in range(len(data)):
            with pytest.raises(Denied):
                verify(request_of(replace(answer, **{field: spoilt(data, at)})), recorded.facts)


@pytest.mark.parametrize(
    ("field", "at", "reason"),
    [
        ("quote", 0, Reason.QUOTE_MALFORMED),
        ("quote", 5, Reason.QUOTE_MALFORMED),
        ("quote", 20, Reason.ATTESTATION_KEY_NOT_ALLOWED),
        ("quote", 50, Reason.QUOTE_NOT_BOUND),
        ("quote", 80, Reason.QUOTE_SIGNATURE_INVALID),
        ("quote", -1, Reason.QUOTE_SIGNATURE_INVALID),
        ("signature", 0, Reason.QUOTE_MALFORMED),
        ("signature", 20, Reason.QUOTE_SIGNATURE_INVALID),
        ("mac", 0, Reason.PROOF_INVALID),
    ],
)
def test_a_genuine_answer_with_one_bit_changed_is_denied(
    recorded: Exchange, field: str, at: int, reason: Reason
) -> None:
    data = getattr(recorded.answer, field)
    bad = replace(recorded.answer, **{field: spoilt(data, at % len(data))})
    with pytest.raises(Denied) as denied:
        verify(request_of(bad), recorded.facts)
    assert denied.value.reason is reason


def test_an_observed_answer_does_not_serve_another_request(recorded: Exchange) -> None:
    stolen = request_of(recorded.answer, csr=replace(CSR, der=b"the thief's key", spki=b"the thief's key"))
    with pytest.raises(Denied) as denied:
        verify(stolen, recorded.facts)
    assert denied.value.reason is Reason.FIRST_REQUEST_MISMATCH
    own_first = replace(recorded.first, csr=stolen.csr, uid="uid-of-the-thief", name="csr-of-the-thief")
    ref = replace(recorded.answer.first, uid=own_first.uid, name=own_first.name)
    again = request_of(replace(recorded.answer, first=ref), csr=stolen.csr)
    with pytest.raises(Denied) as denied:
        verify(again, replace(recorded.facts, first_request=own_first))
    assert denied.value.reason is Reason.CHALLENGE_UNKNOWN


def test_another_genuine_tpm_is_denied_at_once(real_tpm: SoftwareTpm, other_real_tpm: SoftwareTpm) -> None:
    facts = by_certificate(real_tpm, real_tpm.endorsement_fingerprint())
    with attestor_of(other_real_tpm) as attestor, pytest.raises(Denied) as denied:
        verify(filed(attestor.attest(binding_of(filed_nothing()))), facts)
    assert denied.value.reason is Reason.ENDORSEMENT_KEY_UNTRUSTED


def test_another_tpm_that_copies_the_victims_keys_cannot_answer(
    recorded: Exchange, other_real_tpm: SoftwareTpm
) -> None:
    """The thief copies the victim's first evidence into its own request, and quotes with its own TPM."""
    challenge = Challenge.parse(challenge_of(recorded.first, recorded.facts).challenge)
    extra = qualifying_data(challenge.nonce, recorded.first.uid, digest_of(recorded.first))
    with connected(other_real_tpm.tcti) as esys, primary(esys, AK_TEMPLATE) as ak:
        attest, signature = quote(esys, ak, challenge.pcrs.marshal(), extra)
    guessed = proof(bytes(32), recorded.first.uid, CSR.sha256, digest_of(recorded.first))
    for mac, reason in ((guessed, Reason.PROOF_INVALID), (recorded.answer.mac, Reason.ATTESTATION_KEY_NOT_ALLOWED)):
        forged = replace(recorded.answer, quote=attest, signature=signature, mac=mac)
        with pytest.raises(Denied) as denied:
            verify(request_of(forged), recorded.facts)
        assert denied.value.reason is reason


UNRESTRICTED = AK_TEMPLATE[:4] + (0x00040472).to_bytes(4, "big") + AK_TEMPLATE[8:]


def test_an_unrestricted_key_activates_and_forges_quotes_and_is_denied(real_tpm: SoftwareTpm) -> None:
    with connected(real_tpm.tcti) as esys, primary(esys, P384.creation()) as ek, primary(esys, UNRESTRICTED) as ak:
        credential = make_credential(parsed(ek.public), parsed(ak.public).name, bytes(range(32)), random=bytes)
        assert activate(esys, ek, ak, credential.blob, credential.secret) == bytes(range(32))
        forged = b"\xffTCG\x80\x18 and whatever the attacker likes"
        assert signature_is_valid(parsed(ak.public), parse_signature(sign(esys, ak, forged)), forged)
        evidence = FirstEvidence(ek_public=ek.public, ak_public=ak.public)
    with pytest.raises(Denied) as denied:
        verify(request_of(evidence), facts_of(by_allow_list(parsed(evidence.ek_public).fingerprint)))
    assert denied.value.reason is Reason.ATTESTATION_KEY_NOT_ALLOWED
    assert denied.value.got == "0x00040472"


def test_a_restricted_key_signs_no_forged_quote(real_tpm: SoftwareTpm) -> None:
    with (
        connected(real_tpm.tcti) as esys,
        primary(esys, AK_TEMPLATE) as ak,
        pytest.raises(tss.TSS2_Exception) as refused,
    ):
        sign(esys, ak, b"\xffTCG\x80\x18 and whatever the attacker likes")
    assert refused.value.error & 0xFF == 0xA0  # TPM_RC_TICKET


def test_an_imported_key_activates_and_is_denied(real_tpm: SoftwareTpm) -> None:
    with connected(real_tpm.tcti) as esys, imported_key(esys) as (ak, _), primary(esys, P384.creation()) as ek:
        credential = make_credential(parsed(ek.public), parsed(ak.public).name, bytes(range(32)), random=bytes)
        assert activate(esys, ek, ak, credential.blob, credential.secret) == bytes(range(32))
        evidence = FirstEvidence(ek_public=ek.public, ak_public=ak.public)
    with pytest.raises(Denied) as denied:
        verify(request_of(evidence), facts_of(by_allow_list(parsed(evidence.ek_public).fingerprint)))
    assert denied.value.reason is Reason.ATTESTATION_KEY_NOT_ALLOWED


def test_an_attestation_key_of_the_owner_hierarchy_is_denied_by_its_qualified_name(real_tpm: SoftwareTpm) -> None:
    owner = tss.ESYS_TR.OWNER
    with (
        connected(real_tpm.tcti) as esys,
        primary(esys, P384.creation()) as ek,
        primary(esys, AK_TEMPLATE, owner) as ak,
    ):
        facts = facts_of(by_allow_list(parsed(ek.public).fingerprint))
        first = request_of(FirstEvidence(ek_public=ek.public, ak_public=ak.public))
        challenge = Challenge.parse(challenge_of(first, facts).challenge)
        secret = activate(esys, ek, ak, challenge.blob, challenge.secret)
        binding = digest_of(first)
        extra = qualifying_data(challenge.nonce, first.uid, binding)
        attest, signature = quote(esys, ak, challenge.pcrs.marshal(), extra)
    answer = SecondEvidence(
        first=FirstRequestRef(name=first.name, uid=first.uid),
        mac=proof(secret, first.uid, CSR.sha256, binding),
        quote=attest,
        signature=signature,
        pcrs=(bytes(32), bytes(32)),
    )
    with pytest.raises(Denied) as denied:
        verify(request_of(answer), replace(facts, first_request=first))
    assert denied.value.reason is Reason.ATTESTATION_KEY_NOT_ALLOWED
    assert denied.value.checks[-1].name == "qualified signer"
