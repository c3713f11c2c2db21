"""Several proofs at once: all of them, over one request, of one machine, or nothing; and the node that makes them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from composite_world import (
    SIGNER,
    Exchange,
    OneStep,
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
from oci_world import OracleCloud, metadata_service
from tpm_world import SoftTpm
from worlds import CSR, FACTS, PIN, answering, denied_for, published
from worlds import SECRET as ATTESTOR_SECRET
from worlds import filed as stored

from nodeattest_providers.canonical_json import dumps
from nodeattest_providers.challenge.verifier import ChallengeSigner
from nodeattest_providers.composite.attestor import CompositeAttestor
from nodeattest_providers.composite.protocol import PROVIDER, CompositeChallenge
from nodeattest_providers.composite.verifier import CompositeSigner
from nodeattest_providers.errors import ChallengeRequired, Denied, Reason, Unavailable
from nodeattest_providers.identifiers import (
    ANNOTATION_SUPPORTED_VERSIONS,
    ProviderName,
    evidence_block,
)
from nodeattest_providers.node_interface import Binding, Evidence, JsonObject, JsonValue, PublishedChallenge
from nodeattest_providers.oci.protocol import OciEvidence
from nodeattest_providers.verifier_interface import Facts, LedgerFacts, NodeRequest


@pytest.fixture(scope="module")
def sound() -> Exchange:
    return sound_exchange()


def refused(request: NodeRequest, facts: Facts, signer: CompositeSigner | None = None) -> Denied:
    with pytest.raises(Denied) as denied:
        verify(request, facts, signer)
    return denied.value


# Tampering: good evidence, one thing spoilt, one reason

Spoil = Callable[[Exchange], JsonObject]


def of_the_whole(sound: Exchange) -> bytes:
    """The binding with the composite's own evidence block."""
    return part_binding(sound.first, PROVIDER)


def quoted_over(binding: Callable[[Exchange], bytes]) -> Spoil:
    return lambda sound: sound.answer(tpm=sound.tpm_answer(binding=binding(sound)))


def mac_over(binding: Callable[[Exchange], bytes]) -> Spoil:
    return lambda sound: sound.answer(challenge=sound.secret_answer(binding=binding(sound)))


OTHER_FIRST: JsonObject = {"first": {"name": "other", "uid": "uid-1"}}


ANSWERS: Mapping[str, tuple[Spoil, Reason]] = {
    "a quote for the whole": (quoted_over(of_the_whole), Reason.CHALLENGE_UNKNOWN),
    "a MAC for the whole": (mac_over(of_the_whole), Reason.PROOF_INVALID),
    "the other part's evidence": (lambda s: s.answer(challenge=s.tpm_answer()), Reason.EVIDENCE_MALFORMED),
    "another first request": (
        lambda s: s.answer() | OTHER_FIRST,
        Reason.FIRST_REQUEST_MISMATCH,
    ),
    "another first request in a part": (
        lambda s: s.answer(challenge=s.secret_answer() | OTHER_FIRST),
        Reason.FIRST_REQUEST_MISMATCH,
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
        "a part that is no object": ({"phase": 1, "parts": {**whole, "tpm": 1}}, Reason.EVIDENCE_MALFORMED),
        "a name that is none": ({"phase": 1, "parts": whole | ODD_NAME}, Reason.EVIDENCE_MALFORMED),
        "another phase": ({"phase": 3, "parts": whole}, Reason.EVIDENCE_MALFORMED),
        "data that is no object": (
            {"phase": 1, "parts": {**whole, "tpm": {"v": 1, "data": []}}},
            Reason.EVIDENCE_MALFORMED,
        ),
        "null for a part": ({"phase": 1, "parts": {**whole, "null": {"v": 1, "data": {}}}}, Reason.EVIDENCE_MALFORMED),
        "five parts": (
            {"phase": 1, "parts": {**whole, **parts_of(a={}, b={}, c={})}},
            Reason.EVIDENCE_MALFORMED,
        ),
        "other parts": ({"phase": 1, "parts": parts_of(tpm=tpm.first().to_json(), aws={})}, Reason.PROOF_MISSING),
    }  # fmt: skip


@pytest.mark.parametrize("row", first_requests(SoftTpm()))
def test_a_first_request_spoilt_in_one_thing_is_denied(row: str) -> None:
    tpm = SoftTpm()
    data, reason = first_requests(tpm)[row]
    assert refused(filed(data), facts_for(tpm)).reason is reason


# Policy


def test_a_policy_that_does_not_say_which_proofs_lets_nobody_in() -> None:
    settings: Mapping[str, JsonValue] = {"allOf": ["tpm", "insecure"]}
    tpm = SoftTpm()
    assert refused(filed(first_of(tpm)), facts_for(tpm, settings)).reason is Reason.POLICY_INVALID
    with denied_for(Reason.POLICY_INVALID):
        composite().check_settings(settings)


def test_any_of_admits_exactly_one_of_its_alternatives() -> None:
    settings: Mapping[str, JsonValue] = {"anyOf": [{"allOf": ["tpm", "aws"]}, {"allOf": ["challenge", "tpm"]}]}
    composite().check_settings(settings)
    sound = sound_exchange(settings=settings)
    assert verify(filed(sound.answer(), second=True), sound.facts).provider == PROVIDER
    mixed: JsonObject = {"phase": 1, "parts": parts_of(aws={}, challenge={"phase": 1})}
    assert refused(filed(mixed), sound.facts).reason is Reason.PROOF_MISSING


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


def test_the_clock_on_record_is_the_tpms_and_is_held_against_no_other_part(sound: Exchange) -> None:
    request = filed(sound.answer(), second=True)
    attested = verify(request, sound.facts)
    assert attested.boot is not None
    assert (attested.boot.clock, attested.boot.reset_count) == (5_000, 3)
    replayed = LedgerFacts(fingerprints=attested.fingerprints, clock=5_000, reset_count=3, provider="composite")
    assert refused(request, replace(sound.facts, ledger=replayed)).reason is Reason.TPM_CLOCK_REVERSED
    older, tpm, other = replace(replayed, clock=4_999), OneStep("tpm"), OneStep("challenge")
    verify(request, replace(sound.facts, ledger=older), signer_of(tpm, other))
    assert [part.seen[-1][1].ledger.clock for part in (tpm, other)] == [4_999, None]


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


def test_the_name_that_any_part_proves_is_proven() -> None:
    request = filed(SECOND, second=True)
    same = signer_of(OneStep("moon", node_name="node-7"), OneStep("sun", node_name="node-7"))
    assert verify(request, PAIRED, same).proven_node_name == "node-7"
    one = signer_of(OneStep("moon", node_name="node-7"), OneStep("sun"))
    assert verify(request, PAIRED, one).proven_node_name == "node-7"


def test_a_part_that_proves_nothing_is_never_asked() -> None:
    moon, sun = OneStep("moon"), OneStep("sun")
    sun.secure = False
    assert (
        refused(filed(FIRST), replace(PAIRED, first_request=None), signer_of(moon, sun)).reason is Reason.POLICY_INVALID
    )
    with denied_for(Reason.POLICY_INVALID):
        signer_of(moon, sun).check_settings(PAIRED.settings)


class Telling(OneStep):
    tells_addresses = True

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


# The node


BINDING = Binding(evidence_block(PROVIDER, 1), PIN, SIGNER, hashlib.sha256(CSR).digest())


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Mapping[str, JsonValue]]:
    """A part of two steps and one of one step, whose metadata service is there."""
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    path.write_bytes(ATTESTOR_SECRET)
    with metadata_service(OracleCloud(tmp_path).launch("a")) as url:
        yield {"challenge": {"secretFile": str(path)}, "oci": {"metadataEndpoint": url}}


async def test_a_part_of_two_steps_and_one_of_one_step_attest_together(settings: Mapping[str, JsonValue]) -> None:
    attestor = CompositeAttestor(settings)
    facts = replace(FACTS, settings={"allOf": ["challenge", "oci"]})
    oci, first = OneStep("oci"), stored(attestor.attest(BINDING))
    signer = signer_of(oci, ChallengeSigner())
    with pytest.raises(ChallengeRequired) as required:
        await signer.verify_client_attestation_data(first, facts)
    assert set(CompositeChallenge.parse(required.value.challenge).texts) == {"challenge"}
    second = answering(first, attestor.attest(BINDING, published(first, required.value.challenge)))
    attested = await signer.verify_client_attestation_data(second, replace(facts, first_request=first))
    assert attested.provider == PROVIDER
    assert OciEvidence.parse(oci.seen[-1][0].evidence.data)


def attestor_challenge_of(text: str, csr: bytes = CSR) -> PublishedChallenge:
    return PublishedChallenge(name="csr-u-1", uid="u-1", csr_sha256=hashlib.sha256(csr).digest(), text=text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (dumps({"challenge": "x", "oci": "y"}).decode(), Reason.CHALLENGE_UNKNOWN),
        (dumps({"insecure": "x"}).decode(), Reason.EVIDENCE_MALFORMED),
        ('{ "challenge":"x"}', Reason.EVIDENCE_MALFORMED),
    ],
)
def test_a_challenge_of_other_parts_or_none_is_not_answered(
    settings: Mapping[str, JsonValue], text: str, reason: Reason
) -> None:
    with denied_for(reason):
        CompositeAttestor(settings).attest(BINDING, attestor_challenge_of(text))


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"aws": {}, "insecure": {}},
        {"aws": {}, "composite": {}},
        {"aws": {}, "nobody": {}},
        {"a": {}, "b": {}, "c": {}, "d": {}, "e": {}},
    ],
)
def test_settings_that_make_no_composite_are_denied(wrong: Mapping[str, JsonValue]) -> None:
    with pytest.raises(Denied):
        CompositeAttestor(wrong)
