"""D5: several proofs at once, with one left out, of another machine, or of another request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import pytest
from catalogue import Row, attacks, evaluated
from composite_world import (
    CHALLENGE,
    TPM,
    Exchange,
    OneStep,
    facts_for,
    filed,
    first_of,
    part_binding,
    parts_of,
    signer_of,
    signer_of_parts,
    sound_exchange,
    verify,
)
from tpm_world import SoftTpm
from tpm_world import verify as verify_tpm

from nodeattest_providers.composite.protocol import PROVIDER, VERSION
from nodeattest_providers.composite.verifier import CompositeSigner
from nodeattest_providers.identifiers import ProviderID, ProviderName, Purpose, signer_for
from nodeattest_providers.node_interface import Evidence, JsonObject, SecretBytes
from nodeattest_providers.verifier_interface import LedgerFacts

Case = Callable[[Exchange], object]
ALONE: Final = signer_for(TPM, Purpose.CLIENT)


@pytest.fixture(scope="module")
def sound() -> Exchange:
    return sound_exchange()


def answered(sound: Exchange, signer: CompositeSigner | None = None, **facts: Any) -> object:
    """Answer soundly, before another signer or beside other facts."""
    return verify(filed(sound.answer(), second=True), replace(sound.facts, **facts), signer)


def answering(**parts: Callable[[Exchange], JsonObject]) -> Case:
    """Answer with some parts replaced."""
    return lambda sound: verify(
        filed(sound.answer(**{name: make(sound) for name, make in parts.items()}), second=True), sound.facts
    )


def over_the_binding_alone(sound: Exchange, part: ProviderName) -> bytes:
    """The binding of a request to the part's own signer."""
    return part_binding(sound.first, part, signer_for(part, Purpose.CLIENT))


def replaced(sound: Exchange) -> object:
    data: JsonObject = {"phase": 1, "parts": parts_of(challenge={"phase": 1}, contoso={})}
    return verify(filed(data), replace(sound.facts, first_request=None))


def at_the_signer_of_one(sound: Exchange) -> object:
    first = replace(sound.first, signer_name=ALONE, evidence=Evidence(TPM, VERSION, sound.tpm.first().to_json()))
    second = replace(filed({}, second=True), signer_name=ALONE, evidence=Evidence(TPM, VERSION, sound.tpm_answer()))
    return verify_tpm(second, replace(sound.facts, settings=sound.tpm.settings, first_request=first))


def after_other_parts(sound: Exchange) -> object:
    other: JsonObject = {"phase": 1, "parts": parts_of(challenge={"phase": 1}, contoso={})}
    return answered(sound, first_request=replace(sound.first, evidence=Evidence(PROVIDER, VERSION, other)))


def of_another_machine(sound: Exchange) -> object:
    other = OneStep("challenge")
    other.provider_id = ProviderID("metal://rack-9/9")
    return answered(sound, signer_of(OneStep("tpm"), other))


def with_a_newer_part(sound: Exchange) -> object:
    newer: JsonObject = {"v": 2, "data": sound.tpm.first().to_json()}
    parts: JsonObject = {**parts_of(challenge={"phase": 1}), "tpm": newer}
    return verify(filed({"phase": 1, "parts": parts}), facts_for(sound.tpm))


OF_AWS: Final = LedgerFacts(fingerprints={"tpm.ek": "sha256:pinned", "aws.instance": "i-1"}, provider="aws")
CASES: Final[Mapping[str, Case]] = {
    "D5-184": replaced,
    "D5-185": answering(contoso=lambda _: {}),
    "D5-186": lambda sound: verify(filed(first_of(SoftTpm())), facts_for(sound.tpm)),
    "D5-187": answering(challenge=lambda sound: sound.secret_answer(SecretBytes(bytes(32)))),
    "D5-188": answering(tpm=lambda sound: sound.tpm_answer(binding=over_the_binding_alone(sound, TPM))),
    "D5-189": answering(challenge=lambda sound: sound.secret_answer(binding=over_the_binding_alone(sound, CHALLENGE))),
    "D5-190": at_the_signer_of_one,
    "D5-191": after_other_parts,
    "D5-192": answering(insecure=lambda _: {}),
    "D5-193": answering(challenge=lambda _: {"phase": 1}),
    "D5-194": answering(composite=lambda sound: sound.answer()),
    "D5-195": lambda sound: answered(sound, signer_of_parts(tpm="node-7", challenge="node-8")),
    "D5-196": lambda sound: answered(sound, ledger=OF_AWS),
    "D5-210": with_a_newer_part,
    "D5-220": lambda sound: answered(
        sound, signer_of(OneStep("tpm", machine="m-7"), OneStep("challenge", machine="m-8"))
    ),
    "D5-234": of_another_machine,
}


def test_what_the_attacks_spoil_is_accepted(sound: Exchange) -> None:
    attested = verify(filed(sound.answer(), second=True), sound.facts)
    assert {kind.partition(".")[0] for kind in attested.fingerprints} == {TPM, CHALLENGE}


@pytest.mark.parametrize(("row", "case"), attacks(CASES))
def test_one_proof_of_two_or_two_of_two_machines_get_no_node(sound: Exchange, row: Row, case: Case) -> None:
    assert evaluated(lambda: case(sound), row) == row.expected
