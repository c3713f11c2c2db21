"""D5: several proofs at once, one left out or of another machine or request; event logs beside genuine quotes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import firmware
import pytest
import tpm_boots
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
from nodeattest_providers.node_interface import Evidence, JsonObject, JsonValue, SecretBytes
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


# Event logs: the quote is genuine each time, and the log beside it is not the boot's


Boot = tuple[firmware.Measurement, ...]
LogCase = Callable[[], object]

IMA: Final = (*tpm_boots.BOOT, firmware.Measurement(10, 13, b"measured by the running system"))
MOVED: Final = tuple(
    firmware.Measurement(9, one.kind, one.data, one.measured) if one.pcr == 4 else one for one in tpm_boots.BOOT
)
ENDLESS: Final = firmware.event(tpm_boots.BOOT[0])[: -4 - len(tpm_boots.BOOT[0].data)] + b"\xff\xff\0\0"


def locality(number: int) -> firmware.Measurement:
    return firmware.Measurement(0, firmware.NO_ACTION, b"StartupLocality\0" + bytes((number,)))


def logged(log: bytes | None, booted: Boot = tpm_boots.BOOT, *selection: int) -> LogCase:
    """A log beside the quote of a boot."""
    return lambda: tpm_boots.verify_log(log, tpm_boots.registers(booted), selection=selection or tpm_boots.SELECTION)


def unasked() -> object:
    settings: Mapping[str, JsonValue] = {**tpm_boots.TPM.settings, "pcrs": {"selection": [*tpm_boots.SELECTION]}}
    return tpm_boots.verify_log(firmware.crypto_agile_log(tpm_boots.BOOT), settings=settings)


BOOT_GUARD = (firmware.Measurement(0, 0x00000007, bytes(4)), *tpm_boots.BOOT)
CLOSED_OTHERWISE = tuple(
    replace(one, kind=0x0D) if one.kind == firmware.SEPARATOR and one.pcr == 0 else one for one in tpm_boots.BOOT
)

LOG_CASES: Mapping[str, LogCase] = {
    "D5-160": logged(firmware.crypto_agile_log(tpm_boots.BOOT), tpm_boots.DIFFERENT),
    "D5-161": logged(firmware.crypto_agile_log(tpm_boots.WITHOUT_LOADER)),
    "D5-162": logged(firmware.crypto_agile_log(tpm_boots.DIFFERENT)),
    "D5-163": logged(tpm_boots.SAID_OTHERWISE),
    "D5-164": logged(firmware.header()),
    "D5-165": logged(firmware.crypto_agile_log(tpm_boots.BOOT[::-1])),
    "D5-166": logged(firmware.crypto_agile_log(tpm_boots.RELABELLED)),
    "D5-167": logged(firmware.crypto_agile_log(MOVED)),
    "D5-168": logged(firmware.crypto_agile_log((locality(3), *tpm_boots.BOOT))),
    "D5-169": logged(firmware.crypto_agile_log(tpm_boots.OPEN), tpm_boots.OPEN),
    "D5-170": logged(firmware.crypto_agile_log(tpm_boots.FAILED), tpm_boots.FAILED),
    "D5-171": logged(
        firmware.crypto_agile_log((*tpm_boots.BOOT, *firmware.separators())), (*tpm_boots.BOOT, *firmware.separators())
    ),
    "D5-172": logged(firmware.crypto_agile_log(tpm_boots.BOOT), IMA, 0, 10),
    "D5-173": logged(firmware.sha1_log(tpm_boots.BOOT)),
    "D5-174": logged(firmware.crypto_agile_log(tpm_boots.BOOT, ("sha1",))),
    "D5-175": logged(firmware.crypto_agile_log(tpm_boots.BOOT)[:-1]),
    "D5-176": logged(firmware.crypto_agile_log(tpm_boots.BOOT) + bytes(4)),
    "D5-177": logged(
        firmware.header() + firmware.event(tpm_boots.BOOT[0]) + firmware.event(tpm_boots.BOOT[1], ("sha1",))
    ),
    "D5-178": logged(firmware.header() + firmware.event(tpm_boots.BOOT[0], ("sha256", "sha256"))),
    "D5-179": logged(firmware.crypto_agile_log((*tpm_boots.BOOT, firmware.Measurement(24, 4, bytes(4))))),
    "D5-180": logged(firmware.crypto_agile_log((locality(0), locality(3), *tpm_boots.BOOT))),
    "D5-181": logged(firmware.header() + ENDLESS),
    "D5-182": logged(None),
    "D5-183": unasked,
    "D5-198": logged(firmware.crypto_agile_log(BOOT_GUARD), BOOT_GUARD),
    "D5-199": logged(firmware.crypto_agile_log(CLOSED_OTHERWISE), CLOSED_OTHERWISE),
}


@pytest.mark.parametrize(("row", "case"), attacks(LOG_CASES))
def test_a_log_that_is_not_the_boots_gets_no_node(row: Row, case: LogCase) -> None:
    assert tpm_boots.verify_log(firmware.crypto_agile_log(tpm_boots.BOOT))
    assert evaluated(case, row) == row.expected
