"""Two versions of the TPM protocol: which key, labels and pins each has, and that neither is taken for the other."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import pytest
from other_agent import STRANGER, strangers_answer, strangers_first
from tpm_machines import attestor_of, by_allow_list, exchange, filed, filed_nothing, read
from tpm_tss import tss
from tpm_world import (
    AK_PREFIXES,
    SoftTpm,
    binding_of,
    challenge_of,
    facts_of,
    ledger,
    parsed,
    published,
    request_of,
    sound_round,
    verify,
)

from nodeattest_providers.binding import length_prefix
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.names import ANNOTATION_SUPPORTED_VERSIONS, ProviderName
from nodeattest_providers.tpm.attestor import TpmAttestor
from nodeattest_providers.tpm.key_templates import AK_POLICIES
from nodeattest_providers.tpm.protocol import VERSIONS, Challenge, FirstEvidence, proof, qualifying_data
from nodeattest_providers.verifier_interface import Facts, NodeRequest
from nodeattest_sandbox.swtpm import SoftwareTpm

OTHER_NAME = "000b" + "0" * 64
BOTH = pytest.mark.parametrize("version", VERSIONS)


def refusal(request: NodeRequest, facts: Facts) -> Denied:
    with pytest.raises(Denied) as denied:
        verify(request, facts)
    return denied.value


# Keys


def test_the_mark_of_version_2_is_the_hash_of_a_label_and_nothing_else() -> None:
    label = b"nodeattest/v2/attestation-key-policy"
    assert AK_POLICIES[2] == hashlib.sha256(length_prefix(label)).digest()
    assert AK_POLICIES[1] == b""


@pytest.mark.parametrize(("version", "other"), [(1, 2), (2, 1)])
def test_each_versions_key_is_none_of_the_other(version: int, other: int) -> None:
    tpm = SoftTpm(ak_prefix=AK_PREFIXES[other], version=version)
    denied = refusal(request_of(tpm.first(), version=version), facts_of(tpm.settings))
    assert denied.reason is Reason.ATTESTATION_KEY_NOT_ALLOWED
    assert denied.checks[-1].name == "attestation key: authPolicy"


# Formulas


@BOTH
def test_each_versions_own_answer_is_sound_and_pins_its_own_key(version: int) -> None:
    sound = sound_round(SoftTpm.of_version(version))
    assert sound.challenge.version == version
    pin = {1: "ak", 2: "akV2"}[version]
    tpm = sound.tpm
    assert sound.verify().fingerprints == {"ek": tpm.fingerprint, pin: parsed(tpm.ak_public).name.hex()}


def test_labels_and_binding_of_another_version_prove_nothing() -> None:
    sound = sound_round()
    uid, sha256 = sound.first.uid, sound.first.csr.sha256
    tpm, bound = ProviderName("tpm"), binding_of(sound.first)
    own, older = bound.digest_for(tpm, 2), bound.digest_for(tpm, 1)

    def answered(binding: bytes, version: int) -> tuple[bytes, bytes]:
        mac = proof(sound.secret, uid, sha256, binding, version=version)
        return mac, qualifying_data(sound.challenge.nonce, uid, binding, version=version)

    right, by_label, by_binding = answered(own, 2), answered(own, 1), answered(older, 2)
    rows = (
        (by_label[0], right[1], Reason.PROOF_INVALID),
        (right[0], by_label[1], Reason.QUOTE_NOT_BOUND),
        (by_binding[0], right[1], Reason.PROOF_INVALID),
        (right[0], by_binding[1], Reason.QUOTE_NOT_BOUND),
        (*by_label, Reason.CHALLENGE_UNKNOWN),
    )
    for mac, extra, reason in rows:
        second = sound.second(mac=mac, parts=replace(sound.parts, extra=extra))
        with pytest.raises(Denied) as denied:
            sound.verify(second)
        assert denied.value.reason is reason
    assert sound.verify(sound.second(mac=right[0], parts=replace(sound.parts, extra=right[1])))


def test_the_bindings_of_versions_and_providers_differ() -> None:
    bound = binding_of(filed_nothing())
    names = [ProviderName(name) for name in ("tpm", "gcp")]
    assert {bound.digest_for(name, 1) for name in names} == {bound.digest}
    assert len({bound.digest_for(name, version) for name in names for version in (1, 2, 3)}) == 5


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
def test_both_requests_have_one_version(first: int, second: int) -> None:
    sound = sound_round(SoftTpm.of_version(first))
    denied = refusal(request_of(sound.second(), version=second), sound.facts)
    assert denied.reason is Reason.FIRST_REQUEST_MISMATCH


# Policy


@BOTH
def test_a_policy_can_forbid_version_1_and_says_what_is_left(version: int) -> None:
    tpm = SoftTpm.of_version(version)
    for minimum, allowed in ((1, True), (2, version == 2)):
        settings = {**tpm.settings, "minimumVersion": minimum}
        request = request_of(tpm.first(), version=version)
        if allowed:
            assert challenge_of(request, facts_of(settings))
            continue
        denied = refusal(request, facts_of(settings))
        assert denied.reason is Reason.EVIDENCE_VERSION_UNSUPPORTED
        assert denied.annotations == {ANNOTATION_SUPPORTED_VERSIONS: "tpm/v2"}


def test_a_minimum_that_is_raised_between_the_two_requests_holds() -> None:
    sound = sound_round(SoftTpm.of_version(1))
    with pytest.raises(Denied) as denied:
        sound.verify(settings={**sound.tpm.settings, "minimumVersion": 2})
    assert denied.value.reason is Reason.EVIDENCE_VERSION_UNSUPPORTED


@pytest.mark.parametrize("minimum", [0, 3, -1, True, False, "2", 1.5, None, []])
def test_a_minimum_that_is_no_version_is_refused(minimum: object) -> None:
    tpm = SoftTpm()
    settings = {**tpm.settings, "minimumVersion": minimum}
    denied = refusal(request_of(tpm.first()), facts_of(settings))  # pyright: ignore[reportArgumentType] - as read
    assert denied.reason is Reason.POLICY_INVALID
    assert denied.expected == "spec.tpm.minimumVersion: 1 or 2"


# Pins


def names_of(tpm: SoftTpm) -> dict[str, str]:
    """The pins that this TPM leaves: its agent's version by version."""
    return {"ek": tpm.fingerprint, {1: "ak", 2: "akV2"}[tpm.version]: parsed(tpm.ak_public).name.hex()}


@pytest.mark.parametrize(
    ("version", "others", "reason"),
    [
        (1, {}, None),
        (2, {}, None),
        (1, {"akV2": OTHER_NAME}, None),
        (2, {"ak": OTHER_NAME}, None),
        (1, {"ak": OTHER_NAME}, Reason.ATTESTATION_KEY_CHANGED),
        (2, {"akV2": OTHER_NAME}, Reason.ATTESTATION_KEY_CHANGED),
        (1, {"ek": "sha256:" + "0" * 64}, Reason.ENDORSEMENT_KEY_CHANGED),
        (2, {"ek": "sha256:" + "0" * 64}, Reason.ENDORSEMENT_KEY_CHANGED),
    ],
)
def test_each_version_is_compared_with_its_own_pin(
    version: int, others: Mapping[str, str], reason: Reason | None
) -> None:
    tpm = SoftTpm.of_version(version)
    facts = facts_of(tpm.settings, ledger=ledger(fingerprints={**names_of(tpm), **others}))
    request = request_of(tpm.first(), version=version)
    if reason is None:
        assert challenge_of(request, facts)
    else:
        assert refusal(request, facts).reason is reason


def test_a_machine_that_is_pinned_by_version_1_renews_by_version_2() -> None:
    tpm = SoftTpm()
    pins = ledger(fingerprints={"ek": tpm.fingerprint, "ak": OTHER_NAME})
    assert sound_round(tpm, ledger=pins).verify().fingerprints == names_of(tpm)


def test_a_machine_that_is_pinned_by_version_2_alone_proves_nothing_by_version_1() -> None:
    tpm = SoftTpm.of_version(1)
    pins = ledger(fingerprints={"ek": tpm.fingerprint, "akV2": OTHER_NAME})
    denied = refusal(request_of(tpm.first(), version=1), facts_of(tpm.settings, ledger=pins))
    assert denied.reason is Reason.EVIDENCE_VERSION_UNSUPPORTED
    assert denied.annotations == {ANNOTATION_SUPPORTED_VERSIONS: "tpm/v2"}
    assert (denied.expected, denied.got) == ("tpm/v2", "tpm/v1")
    assert "upgrade this node's agent" in denied.remedy
    assert "machines reset" in denied.remedy


# With a software TPM


@pytest.mark.swtpm
def test_an_agent_makes_each_version_with_its_own_key_and_goes_back_and_forth(real_tpm: SoftwareTpm) -> None:
    with attestor_of(real_tpm) as attestor:
        facts = facts_of(by_allow_list(attestor.endorsement_fingerprint()))
        names = [set(verify_exchange(attestor, facts, version)) for version in (2, 1, 2, 1)]
    assert names == [{"ek", "akV2"}, {"ek", "ak"}, {"ek", "akV2"}, {"ek", "ak"}]


def verify_exchange(attestor: TpmAttestor, facts: Facts, version: int) -> Mapping[str, str]:
    joined = exchange(attestor if version == VERSIONS[0] else attestor.in_version(version), facts)
    return verify(joined.second, joined.facts).fingerprints


@pytest.mark.swtpm
def test_an_agent_answers_no_challenge_of_another_version(real_tpm: SoftwareTpm) -> None:
    with attestor_of(real_tpm) as attestor:
        facts = facts_of(by_allow_list(attestor.endorsement_fingerprint()))
        first = filed(attestor.attest(binding_of(filed_nothing())))
        own = published(first, challenge_of(first, facts))
        older = replace(Challenge.parse(own.text), version=1).to_text()
        with pytest.raises(Denied) as denied:
            attestor.attest(binding_of(first), replace(own, text=older))
        assert denied.value.reason is Reason.CHALLENGE_UNKNOWN
        assert denied.value.expected == "a challenge for evidence of version 2"


@pytest.mark.swtpm
def test_in_version_1_another_agents_key_of_the_same_shape_attests_before_the_first_join(real_tpm: SoftwareTpm) -> None:
    """The known limit of version 1 (threat model): nothing tells another agent's key from ours until one is pinned."""
    facts = facts_of(by_allow_list(real_tpm.endorsement_fingerprint()))
    first = strangers_first(real_tpm, version=1)
    node = verify(strangers_answer(real_tpm, first, facts), replace(facts, first_request=first))
    assert node.first_request is not None
    assert first.csr == STRANGER


@pytest.mark.swtpm
def test_in_version_2_another_agents_key_of_the_same_shape_is_denied(real_tpm: SoftwareTpm) -> None:
    facts = facts_of(by_allow_list(real_tpm.endorsement_fingerprint()))
    denied = refusal(strangers_first(real_tpm, version=2), facts)
    assert denied.reason is Reason.ATTESTATION_KEY_NOT_ALLOWED
    assert (denied.expected, denied.got) == (AK_POLICIES[2].hex(), "none")


@pytest.mark.swtpm
def test_the_mark_written_into_another_agents_public_area_makes_a_key_that_no_tpm_has(real_tpm: SoftwareTpm) -> None:
    facts = facts_of(by_allow_list(real_tpm.endorsement_fingerprint()))
    first = strangers_first(real_tpm, version=2)
    evidence = read(first.evidence)
    assert isinstance(evidence, FirstEvidence)
    marked = AK_PREFIXES[2] + evidence.ak_public[len(AK_PREFIXES[1]) :]
    claimed = request_of(replace(evidence, ak_public=marked), csr=STRANGER)
    with pytest.raises(tss.TSS2_Exception, match="integrity"):
        strangers_answer(real_tpm, claimed, facts)
