"""Several proofs at once: all of them, over one request, of one machine, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from composite_world import (
    CHALLENGE,
    SECRET,
    SIGNER,
    TPM,
    Exchange,
    OneStep,
    challenge_of,
    composite,
    facts_for,
    filed,
    first_of,
    part_binding,
    parts_of,
    signer_of,
    sound_exchange,
    verify,
)
from tpm_world import NOW, SoftTpm
from tpm_world import verify as verify_tpm

from nodeattest_providers import canonical_json
from nodeattest_providers.challenge.protocol import fingerprint
from nodeattest_providers.challenge.verifier import SecretChallengeSigner
from nodeattest_providers.composite.protocol import PROVIDER, VERSION, CompositeChallenge
from nodeattest_providers.composite.verifier import CompositeSigner
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.names import ANNOTATION_SUPPORTED_VERSIONS, ProviderID, ProviderName, Purpose, signer_for
from nodeattest_providers.node_interface import Evidence, FirstRequestRef, JsonObject, JsonValue, SecretBytes
from nodeattest_providers.platform import Platform
from nodeattest_providers.tpm.verifier import TpmSigner
from nodeattest_providers.verifier_interface import Facts, LedgerFacts, NodeRequest

OTHER_SECRET = SecretBytes(bytes(32))
ALONE = signer_for(TPM, Purpose.CLIENT)


@pytest.fixture(scope="module")
def sound() -> Exchange:
    return sound_exchange()


def refused(request: NodeRequest, facts: Facts, signer: CompositeSigner | None = None) -> Denied:
    with pytest.raises(Denied) as denied:
        verify(request, facts, signer)
    return denied.value


def test_a_machine_with_both_proofs_is_attested_with_the_pins_of_each(sound: Exchange) -> None:
    attested = verify(filed(sound.answer(), second=True), sound.facts)
    assert attested.provider == PROVIDER
    assert attested.fingerprints["tpm.ek"] == sound.tpm.fingerprint
    assert attested.fingerprints["challenge.secret"] == fingerprint(SECRET)
    assert set(attested.fingerprints) == {"tpm.ek", "tpm.ak", "challenge.secret"}
    assert attested.boot is not None
    assert attested.first_request == sound.ref
    names = [check.name for check in attested.checks]
    assert {"tpm: quote signature", "challenge: challenge answered", "one node name"} <= set(names)


def test_the_challenges_are_published_side_by_side(sound: Exchange) -> None:
    required = challenge_of(sound.first, sound.facts)
    assert set(canonical_json.loads(required.challenge.encode())) == {"challenge", "tpm"}
    assert required.annotations
    assert composite().first_request(sound.first) is None
    assert composite().first_request(filed(sound.answer(), second=True)) == sound.ref


# Tampering: good evidence, one thing spoilt, one reason

Spoil = Callable[[Exchange], JsonObject]


def without(part: str) -> Spoil:
    def spoil(sound: Exchange) -> JsonObject:
        answer = sound.answer()
        parts = answer["parts"]
        assert isinstance(parts, dict)
        return {
            **answer,
            "parts": {name: value for name, value in parts.items() if name != part} | parts_of(contoso={}),
        }

    return spoil


def alone(part: ProviderName) -> Callable[[Exchange], bytes]:
    """The binding of a request to the part's own signer, of the same node."""
    return lambda sound: part_binding(sound.first, part, signer_for(part, Purpose.CLIENT))


def of_the_whole(sound: Exchange) -> bytes:
    """The binding with the composite's own evidence block."""
    return part_binding(sound.first, PROVIDER)


def of_the_other(part: ProviderName) -> Callable[[Exchange], bytes]:
    """The binding with another part's evidence block."""
    return lambda sound: part_binding(sound.first, part)


def quoted_over(binding: Callable[[Exchange], bytes]) -> Spoil:
    return lambda sound: sound.answer(tpm=sound.tpm_answer(binding=binding(sound)))


def mac_over(binding: Callable[[Exchange], bytes]) -> Spoil:
    return lambda sound: sound.answer(challenge=sound.secret_answer(binding=binding(sound)))


OTHER_FIRST: JsonObject = {"first": {"name": "other", "uid": "uid-1"}}


def newer_part(sound: Exchange) -> JsonObject:
    newer: JsonObject = {"challenge": {"v": 2, "data": {}}}
    return {"parts": parts_of(tpm=sound.tpm_answer()) | newer}


ANSWERS: Mapping[str, tuple[Spoil, Reason]] = {
    "another TPM's quote": (lambda s: s.answer(tpm=s.tpm_answer(SoftTpm())), Reason.ATTESTATION_KEY_NOT_ALLOWED),
    "another machine's secret": (lambda s: s.answer(challenge=s.secret_answer(OTHER_SECRET)), Reason.PROOF_INVALID),
    "a quote for plain tpm": (quoted_over(alone(TPM)), Reason.CHALLENGE_UNKNOWN),
    "a quote for the whole": (quoted_over(of_the_whole), Reason.CHALLENGE_UNKNOWN),
    "a quote for another part": (quoted_over(of_the_other(CHALLENGE)), Reason.CHALLENGE_UNKNOWN),
    "a MAC for plain challenge": (mac_over(alone(CHALLENGE)), Reason.PROOF_INVALID),
    "a MAC for the whole": (mac_over(of_the_whole), Reason.PROOF_INVALID),
    "a MAC for another part": (mac_over(of_the_other(TPM)), Reason.PROOF_INVALID),
    "no TPM": (without("tpm"), Reason.PROOF_MISSING),
    "no secret": (without("challenge"), Reason.PROOF_MISSING),
    "one part more": (lambda s: s.answer(contoso={}), Reason.PROOF_MISSING),
    "a first phase inside": (lambda s: s.answer(challenge={"phase": 1}), Reason.PROOF_MISSING),
    "the other part's evidence": (lambda s: s.answer(challenge=s.tpm_answer()), Reason.EVIDENCE_MALFORMED),
    "insecure for a part": (lambda s: s.answer(insecure={}), Reason.EVIDENCE_MALFORMED),
    "itself for a part": (lambda s: s.answer(composite=s.answer()), Reason.EVIDENCE_MALFORMED),
    "another first request": (
        lambda s: s.answer() | OTHER_FIRST,
        Reason.FIRST_REQUEST_MISMATCH,
    ),
    "another first request in a part": (
        lambda s: s.answer(challenge=s.secret_answer() | OTHER_FIRST),
        Reason.FIRST_REQUEST_MISMATCH,
    ),
    "a newer version of a part": (
        lambda s: s.answer() | newer_part(s),
        Reason.EVIDENCE_MALFORMED,
    ),
}


@pytest.mark.parametrize("row", ANSWERS)
def test_an_answer_spoilt_in_one_part_is_denied(sound: Exchange, row: str) -> None:
    spoil, reason = ANSWERS[row]
    assert refused(filed(spoil(sound), second=True), sound.facts).reason is reason


ODD_NAME: JsonObject = {"../t": {"v": 1, "data": {}}}


def first_requests(tpm: SoftTpm) -> Mapping[str, tuple[JsonObject, Reason]]:
    whole = parts_of(tpm=tpm.first().to_json(), challenge={"phase": 1})
    return {
        "one part": ({"phase": 1, "parts": parts_of(tpm=tpm.first().to_json())}, Reason.EVIDENCE_MALFORMED),
        "no parts": ({"phase": 1, "parts": {}}, Reason.EVIDENCE_MALFORMED),
        "no phase": ({"parts": whole}, Reason.EVIDENCE_MALFORMED),
        "true for phase 1": ({"phase": True, "parts": whole}, Reason.EVIDENCE_MALFORMED),
        "phase 3": ({"phase": 3, "parts": whole}, Reason.EVIDENCE_MALFORMED),
        "a field more": ({"phase": 1, "parts": whole, "x": 1}, Reason.EVIDENCE_MALFORMED),
        "parts in an array": ({"phase": 1, "parts": [whole]}, Reason.EVIDENCE_MALFORMED),
        "a part that is no object": ({"phase": 1, "parts": {**whole, "tpm": 1}}, Reason.EVIDENCE_MALFORMED),
        "data that is no object": (
            {"phase": 1, "parts": {**whole, "tpm": {"v": 1, "data": []}}},
            Reason.EVIDENCE_MALFORMED,
        ),
        "a name that is none": ({"phase": 1, "parts": whole | ODD_NAME}, Reason.EVIDENCE_MALFORMED),
        "null for a part": ({"phase": 1, "parts": {**whole, "null": {"v": 1, "data": {}}}}, Reason.EVIDENCE_MALFORMED),
        "five parts": (
            {"phase": 1, "parts": {**whole, **parts_of(a={}, b={}, c={})}},
            Reason.EVIDENCE_MALFORMED,
        ),
        "other parts": ({"phase": 1, "parts": parts_of(tpm=tpm.first().to_json(), aws={})}, Reason.PROOF_MISSING),
        "another TPM": (first_of(SoftTpm()), Reason.ENDORSEMENT_KEY_UNTRUSTED),
    }  # fmt: skip


@pytest.mark.parametrize("row", first_requests(SoftTpm()))
def test_a_first_request_spoilt_in_one_thing_is_denied(row: str) -> None:
    tpm = SoftTpm()
    data, reason = first_requests(tpm)[row]
    assert refused(filed(data), facts_for(tpm)).reason is reason


def test_what_breaks_in_a_part_is_told_under_its_name(sound: Exchange) -> None:
    denied = refused(filed(sound.answer(challenge=sound.secret_answer(OTHER_SECRET)), second=True), sound.facts)
    assert denied.checks[-1].name == "challenge: challenge answered"
    assert not denied.checks[-1].passed
    assert denied.expected.startswith("challenge: ")


# Neither way


def test_a_composites_proof_is_none_for_one_provider_alone(sound: Exchange) -> None:
    first, second = (
        replace(request, signer_name=ALONE, evidence=Evidence(TPM, VERSION, data))
        for request, data in (
            (sound.first, sound.tpm.first().to_json()),
            (filed(sound.answer(), second=True), sound.tpm_answer()),
        )
    )
    facts = replace(sound.facts, settings=sound.tpm.settings, first_request=first)
    with pytest.raises(Denied) as denied:
        verify_tpm(second, facts, TpmSigner())
    assert denied.value.reason is Reason.CHALLENGE_UNKNOWN
    with pytest.raises(Denied) as other:
        verify_tpm(filed(sound.answer(), second=True), facts, TpmSigner())
    assert other.value.reason is Reason.PROVIDER_MISMATCH


def test_plain_evidence_at_the_composite_is_denied(sound: Exchange) -> None:
    request = replace(sound.first, evidence=Evidence(TPM, VERSION, sound.tpm.first().to_json()))
    assert refused(request, sound.facts).reason is Reason.PROVIDER_MISMATCH


def test_a_second_request_whose_first_had_other_parts_is_denied(sound: Exchange) -> None:
    other: JsonObject = {"phase": 1, "parts": parts_of(tpm=sound.tpm.first().to_json(), aws={})}
    facts = replace(sound.facts, first_request=replace(sound.first, evidence=Evidence(PROVIDER, VERSION, other)))
    assert refused(filed(sound.answer(), second=True), facts).reason is Reason.FIRST_REQUEST_MISMATCH


def test_an_answer_is_none_to_a_first_request_with_other_evidence_in_it(sound: Exchange) -> None:
    swapped = replace(sound.first, request=b"another envelope of the same parts")
    facts = replace(sound.facts, first_request=swapped)
    assert refused(filed(sound.answer(), second=True), facts).reason in {Reason.CHALLENGE_UNKNOWN, Reason.PROOF_INVALID}


# Policy


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"allOf": []},
        {"allOf": ["tpm"]},
        {"allOf": ["tpm", "tpm"]},
        {"allOf": ["tpm", "insecure"]},
        {"allOf": ["tpm", "null"]},
        {"allOf": ["tpm", "composite"]},
        {"allOf": ["tpm", "Challenge"]},
        {"allOf": ["tpm", 1]},
        {"allOf": "tpm"},
        {"allOf": ["a", "b", "c", "d", "e"]},
        {"anyOf": []},
        {"anyOf": ["tpm"]},
        {"anyOf": [{"allOf": ["tpm"]}]},
        {"anyOf": [{"allOf": ["tpm", "aws"], "x": 1}]},
        {"anyOf": [{"allOf": ["tpm", "aws"]}], "allOf": ["tpm", "challenge"]},
        {"allof": ["tpm", "challenge"]},
    ],
)
def test_a_policy_that_does_not_say_which_proofs_lets_nobody_in(settings: Mapping[str, JsonValue]) -> None:
    tpm = SoftTpm()
    assert refused(filed(first_of(tpm)), facts_for(tpm, settings)).reason is Reason.POLICY_INVALID
    with pytest.raises(Denied) as denied:
        composite().check_settings(settings)
    assert denied.value.reason is Reason.POLICY_INVALID


def test_any_of_admits_exactly_one_of_its_alternatives() -> None:
    settings: Mapping[str, JsonValue] = {"anyOf": [{"allOf": ["tpm", "aws"]}, {"allOf": ["challenge", "tpm"]}]}
    composite().check_settings(settings)
    sound = sound_exchange(settings=settings)
    assert verify(filed(sound.answer(), second=True), sound.facts).provider == PROVIDER
    mixed: JsonObject = {"phase": 1, "parts": parts_of(aws={}, challenge={"phase": 1})}
    assert refused(filed(mixed), sound.facts).reason is Reason.PROOF_MISSING


def test_the_composite_has_no_platform_of_its_own() -> None:
    with pytest.raises(Denied):
        CompositeSigner(platform=Platform(settings={"tpm": {}}))


# The ledger


def test_each_parts_pins_are_compared_with_its_own(sound: Exchange) -> None:
    attested = verify(filed(sound.answer(), second=True), sound.facts)
    pinned = replace(sound.facts, ledger=LedgerFacts(fingerprints=attested.fingerprints, provider="composite"))
    assert verify(filed(sound.answer(), second=True), pinned)
    for kind, reason in (
        ("tpm.ek", Reason.ENDORSEMENT_KEY_CHANGED),
        ("tpm.ak", Reason.ATTESTATION_KEY_CHANGED),
        ("challenge.secret", Reason.SECRET_MISSING),
    ):
        ledger = replace(pinned.ledger, fingerprints={**attested.fingerprints, kind: "sha256:other"})
        assert refused(filed(sound.answer(), second=True), replace(pinned, ledger=ledger)).reason is reason


@pytest.mark.parametrize("pin", ["tpm.ek", "gcp.ek", "ek"])
@pytest.mark.parametrize("last", ["tpm", "challenge", "aws"])
def test_pins_count_on_whoever_made_them_and_whoever_attested_last(sound: Exchange, pin: str, last: str) -> None:
    facts = replace(sound.facts, ledger=LedgerFacts(fingerprints={pin: "sha256:other"}, provider=last))
    assert refused(filed(sound.answer(), second=True), facts).reason is Reason.ENDORSEMENT_KEY_CHANGED


def test_the_tpms_clock_goes_forward_here_too(sound: Exchange) -> None:
    attested = verify(filed(sound.answer(), second=True), sound.facts)
    assert attested.boot is not None
    ledger = LedgerFacts(clock=attested.boot.clock + 1, reset_count=attested.boot.reset_count)
    answer = filed(sound.answer(), second=True)
    assert refused(answer, replace(sound.facts, ledger=ledger)).reason is Reason.TPM_CLOCK_REVERSED


# Parts of one step, and parts that cannot be judged now


PAIR: Mapping[str, JsonValue] = {"allOf": ["moon", "sun"]}
FIRST: JsonObject = {"phase": 1, "parts": parts_of(moon={"n": 1}, sun={"n": 1})}
SECOND: JsonObject = {
    "phase": 2,
    "first": {"name": "csr-1", "uid": "uid-1"},
    "parts": parts_of(moon={"n": 2}, sun={"n": 2}),
}
MOON = ProviderName("moon")
PAIRED = facts_for(SoftTpm(), PAIR, first_request=filed(FIRST), sections={MOON: {"phase": "full"}})


def test_a_part_of_one_step_is_verified_early_and_again_at_the_end() -> None:
    moon, sun = OneStep("moon"), OneStep("sun")
    signer = signer_of(moon, sun)
    required = challenge_of(filed(FIRST), replace(PAIRED, first_request=None), signer)
    assert CompositeChallenge.parse(required.challenge).texts == {}
    attested = verify(filed(SECOND, second=True), PAIRED, signer)
    assert [request.evidence.data for request, _ in moon.seen] == [{"n": 1}, {"n": 2}]
    assert attested.fingerprints == {"moon.id": "of-moon", "sun.id": "of-sun"}


def test_a_part_sees_its_own_section_and_nothing_of_the_others() -> None:
    moon, sun = OneStep("moon"), OneStep("sun")
    ledger = LedgerFacts(fingerprints={"moon.id": "of-moon", "sun.id": "of-sun"})
    verify(filed(SECOND, second=True), replace(PAIRED, ledger=ledger), signer_of(moon, sun))
    [(request, facts)] = moon.seen
    assert (request.evidence.provider, request.signer_name) == (MOON, SIGNER)
    assert facts.settings == {"phase": "full"}
    assert facts.ledger.fingerprints == {"id": "of-moon"}
    assert facts.machine.attestation_secret is None
    assert facts.challenge_keys == ()
    assert facts.first_request is not None
    assert facts.first_request.evidence == Evidence(MOON, 1, {"n": 1})


def test_a_part_that_cannot_be_verified_now_does_not_hide_the_others_denial() -> None:
    silent = Unavailable(Reason.PLATFORM_UNAVAILABLE, "no answer", remedy="wait", retry_after=7.0)
    denial = Denied(Reason.PROOF_INVALID, expected="e", got="g", remedy="r")
    request = filed(SECOND, second=True)
    assert refused(request, PAIRED, signer_of(OneStep("moon", silent), OneStep("sun", denial))).reason is denial.reason
    with pytest.raises(Unavailable) as waits:
        verify(request, PAIRED, signer_of(OneStep("moon", silent), OneStep("sun")))
    assert (waits.value.reason, waits.value.retry_after) == (silent.reason, 7.0)
    assert "sun: looked" in [check.name for check in waits.value.checks]


def test_parts_that_prove_two_names_or_two_machines_are_denied() -> None:
    request = filed(SECOND, second=True)
    same = signer_of(OneStep("moon", node_name="node-7"), OneStep("sun", node_name="node-7"))
    assert verify(request, PAIRED, same).proven_node_name == "node-7"
    one = signer_of(OneStep("moon", node_name="node-7"), OneStep("sun"))
    assert verify(request, PAIRED, one).proven_node_name == "node-7"
    two = signer_of(OneStep("moon", node_name="node-7"), OneStep("sun", node_name="node-8"))
    assert refused(request, PAIRED, two).reason is Reason.NODE_NAME_MISMATCH
    elsewhere = OneStep("sun")
    elsewhere.provider_id = ProviderID("metal://other")
    assert refused(request, PAIRED, signer_of(OneStep("moon"), elsewhere)).reason is Reason.PLATFORM_INSTANCE_MISMATCH


def test_parts_that_prove_two_machine_names_are_denied() -> None:
    request = filed(SECOND, second=True)
    signer = signer_of(OneStep("moon", machine="m-7"), OneStep("sun"))
    assert signer.machine_name(request, verify(request, PAIRED, signer)) == "m-7"
    agreeing = signer_of(OneStep("moon", machine="m-7"), OneStep("sun", machine="m-7"))
    assert agreeing.machine_name(request, verify(request, PAIRED, agreeing)) == "m-7"
    two = signer_of(OneStep("moon", machine="m-7"), OneStep("sun", machine="m-8"))
    assert refused(request, PAIRED, two).reason is Reason.EVIDENCE_FOR_OTHER_MACHINE


def test_a_part_that_speaks_for_another_provider_is_denied() -> None:
    moon, sun = OneStep("moon"), OneStep("sun")
    signer = signer_of(moon, sun)
    moon.provider = ProviderName("sun")
    assert refused(filed(SECOND, second=True), PAIRED, signer).reason is Reason.PLATFORM_INSTANCE_MISMATCH


def test_an_answer_is_nobodys_first_request() -> None:
    facts = replace(PAIRED, first_request=filed(SECOND))
    signer = signer_of(OneStep("moon"), OneStep("sun"))
    assert refused(filed(SECOND, second=True), facts, signer).reason is Reason.FIRST_REQUEST_MISMATCH


def test_a_part_that_proves_nothing_is_never_asked() -> None:
    moon, sun = OneStep("moon"), OneStep("sun")
    sun.secure = False
    assert (
        refused(filed(FIRST), replace(PAIRED, first_request=None), signer_of(moon, sun)).reason is Reason.POLICY_INVALID
    )


class Telling(OneStep):
    async def addresses(self, facts: Facts) -> tuple[tuple[str, str], ...]:
        self.seen.append((filed(FIRST), facts))
        return (("InternalIP", "10.0.0.1"),)


async def test_addresses_are_those_of_the_part_that_attested_this_machine() -> None:
    silent = signer_of(OneStep("moon"), OneStep("sun"))
    assert await silent.addresses(PAIRED) is None
    sun = Telling("sun")
    assert await signer_of(OneStep("moon"), sun).addresses(PAIRED) == (("InternalIP", "10.0.0.1"),)
    moon = Telling("moon")
    ledger = LedgerFacts(fingerprints={"sun.id": "x"})
    await signer_of(moon, sun).addresses(replace(PAIRED, ledger=ledger))
    assert not moon.seen
    assert sun.seen[-1][1].ledger.fingerprints == {"id": "x"}


def test_the_first_request_of_a_two_step_part_is_that_of_its_own_provider(sound: Exchange) -> None:
    signer = signer_of(TpmSigner(), SecretChallengeSigner())
    assert verify(filed(sound.answer(), second=True), sound.facts, signer).first_request == FirstRequestRef(
        name="csr-1", uid="uid-1"
    )
    assert sound.facts.verified_at == NOW
    assert CHALLENGE in sound.texts


# Versions


def test_a_parts_refusal_of_its_version_names_no_version_of_the_composite() -> None:
    moon = OneStep("moon")
    moon.versions = (2,)
    moon.verdict = Denied(
        Reason.EVIDENCE_VERSION_UNSUPPORTED,
        expected="moon/v2",
        got="moon/v1",
        remedy="r",
        annotations={ANNOTATION_SUPPORTED_VERSIONS: "moon/v2"},
    )
    denied = refused(filed(SECOND, second=True), PAIRED, signer_of(moon, OneStep("sun")))
    assert denied.reason is Reason.EVIDENCE_VERSION_UNSUPPORTED
    assert not denied.annotations
