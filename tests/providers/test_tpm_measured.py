"""The event log beside the quote: what a policy that requires it accepts, and every way in which a log fails."""

from __future__ import annotations

from dataclasses import replace

import pytest
from counted_calls import calls
from hypothesis import given
from hypothesis import strategies as st
from tpm_boots import (
    BOOT,
    DIFFERENT,
    FAILED,
    OPEN,
    RELABELLED,
    SAID_OTHERWISE,
    SELECTION,
    TPM,
    WITHOUT_LOADER,
    answer,
    registers,
    settings_of,
    verify_log,
)
from tpm_world import challenge_of, facts_of, request_of, verify

from nodeattest_providers import canonical_json, envelope
from nodeattest_providers.csr import build_csr
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.node_interface import Evidence, JsonObject, JsonValue
from nodeattest_providers.tpm.protocol import MAX_EVENT_LOG, PROVIDER, Challenge, parse_evidence
from nodeattest_sandbox.firmware import (
    NO_ACTION,
    SEPARATOR,
    Measurement,
    crypto_agile_log,
    event,
    header,
    separators,
    sha1_log,
)


def test_a_log_that_explains_every_quoted_register_is_accepted() -> None:
    assert verify_log(crypto_agile_log(BOOT)) == [
        "event log present",
        "event log structure",
        "event log bank",
        "event log replays PCR 0",
        "event log closes PCR 0",
        "event log replays PCR 4",
        "event log closes PCR 4",
        "event log replays PCR 7",
        "event log closes PCR 7",
        "event log replays PCR 14",
        "event log replays PCR 17",
    ]


@pytest.mark.parametrize("locality", [3, 4])
def test_a_start_from_another_locality_is_explained_by_its_event(locality: int) -> None:
    told = (Measurement(0, NO_ACTION, b"StartupLocality\0" + bytes((locality,))), *BOOT)
    assert verify_log(crypto_agile_log(told), registers(BOOT, locality=locality))


@pytest.mark.parametrize("algorithm", ["sha256", "sha384"])
def test_the_bank_of_the_policy_is_replayed(algorithm: str) -> None:
    log = crypto_agile_log(BOOT, ("sha1", "sha256", "sha384"))
    assert verify_log(log, registers(BOOT, algorithm=algorithm), settings=settings_of(bank=algorithm))


TAMPERED: list[tuple[str, bytes | None, tuple[Measurement, ...], Reason, str]] = [
    ("no log", None, BOOT, Reason.EVENT_LOG_MISSING, "none"),
    ("a log cut short", crypto_agile_log(BOOT)[:-7], BOOT, Reason.EVENT_LOG_MALFORMED, ""),
    ("trailing bytes", crypto_agile_log(BOOT) + b"\0\0", BOOT, Reason.EVENT_LOG_MALFORMED, ""),
    ("the last event of PCR 4 dropped", crypto_agile_log(WITHOUT_LOADER), BOOT, Reason.EVENT_LOG_MISMATCH, "PCR 4 "),
    ("only the header", header(), BOOT, Reason.EVENT_LOG_MISMATCH, "PCR 0 "),
    ("an event more", crypto_agile_log(DIFFERENT), BOOT, Reason.EVENT_LOG_MISMATCH, "PCR 4 "),
    ("another boot with the good boot's log", crypto_agile_log(BOOT), DIFFERENT, Reason.EVENT_LOG_MISMATCH, "PCR 4 "),
    ("a digest changed", SAID_OTHERWISE, BOOT, Reason.EVENT_LOG_MISMATCH, "PCR 0 "),
    ("events in another order", crypto_agile_log(BOOT[::-1]), BOOT, Reason.EVENT_LOG_MISMATCH, "PCR 0 "),
    ("an event said to extend nothing", crypto_agile_log(RELABELLED), BOOT, Reason.EVENT_LOG_MISMATCH, "PCR 4 "),
    ("an event for another PCR", header() + event(BOOT[0]) * 2, BOOT, Reason.EVENT_LOG_MISMATCH, "PCR 0 "),
    ("no digest of the algorithm", header() + event(BOOT[0], ("sha1",)), BOOT, Reason.EVENT_LOG_BANK_MISSING, "0x0004"),
    ("only SHA-1, crypto-agile", crypto_agile_log(BOOT, ("sha1",)), BOOT, Reason.EVENT_LOG_BANK_MISSING, "0x0004"),
    ("the SHA-1 form", sha1_log(BOOT), BOOT, Reason.EVENT_LOG_BANK_MISSING, "the SHA-1 form"),
    ("PCR 24", crypto_agile_log((*BOOT, Measurement(24, 4, b""))), BOOT, Reason.EVENT_LOG_MALFORMED, "24"),
    ("PCR 0 never closed", crypto_agile_log(OPEN), OPEN, Reason.EVENT_LOG_MISMATCH, "0"),
    ("nothing measured, as after a reset of the TPM alone", header(), (), Reason.EVENT_LOG_MISMATCH, "0"),
    ("PCR 7 closed with an error", crypto_agile_log(FAILED), FAILED, Reason.EVENT_LOG_MISMATCH, "0"),
    ("closed twice", crypto_agile_log((*BOOT, *separators())), (*BOOT, *separators()), Reason.EVENT_LOG_MISMATCH, "2"),
]  # fmt: skip


def test_a_register_may_have_measured_a_separators_bytes_under_another_type() -> None:
    """Boot Guard on Intel laptops measures 00000000 for an absent record of the FIT, before PCR 0 is closed."""
    booted = (Measurement(0, 0x00000007, bytes(4)), *BOOT)
    assert verify_log(crypto_agile_log(booted), registers(booted))


def test_a_register_is_not_closed_by_an_event_of_another_type() -> None:
    booted = tuple(replace(one, kind=0x0D) if one.kind == SEPARATOR and one.pcr == 0 else one for one in BOOT)
    with pytest.raises(Denied) as denied:
        verify_log(crypto_agile_log(booted), registers(booted))
    assert denied.value.got == "0"


@pytest.mark.parametrize(
    ("log", "booted", "reason", "got"), [row[1:] for row in TAMPERED], ids=[row[0] for row in TAMPERED]
)
def test_a_log_that_does_not_explain_the_quote_is_denied(
    log: bytes | None, booted: tuple[Measurement, ...], reason: Reason, got: str
) -> None:
    with pytest.raises(Denied) as denied:
        verify_log(log, registers(booted))
    assert denied.value.reason is reason
    assert denied.value.got.startswith(got)
    assert denied.value.remedy
    assert not denied.value.checks[-1].passed


def test_a_locality_that_the_tpm_did_not_start_from_is_denied() -> None:
    told = (Measurement(0, NO_ACTION, b"StartupLocality\0\3"), *BOOT)
    for log, held in ((told, registers(BOOT)), (BOOT, registers(BOOT, locality=3))):
        with pytest.raises(Denied) as denied:
            verify_log(crypto_agile_log(log), held)
        assert denied.value.reason is Reason.EVENT_LOG_MISMATCH
        assert denied.value.got.startswith("PCR 0 ")


@pytest.mark.parametrize("pcr", [10, 14, 16, 17, 22, 23])
def test_a_register_that_the_log_does_not_mention_must_be_as_the_reset_left_it(pcr: int) -> None:
    measured_later = (*BOOT, Measurement(pcr, 13, b"by the running system"))
    assert verify_log(crypto_agile_log(BOOT), selection=(0, pcr))
    with pytest.raises(Denied) as denied:
        verify_log(crypto_agile_log(BOOT), registers(measured_later), selection=(0, pcr))
    assert denied.value.reason is Reason.EVENT_LOG_MISMATCH
    assert denied.value.got.startswith(f"PCR {pcr} ")


def test_a_register_that_the_log_does_not_mention_may_have_a_value_that_the_policy_lists() -> None:
    held = registers((*BOOT, Measurement(11, 13, b"by the running system")))
    allowed: dict[str, JsonValue] = {"11": [held[11].hex()]}
    assert verify_log(crypto_agile_log(BOOT), held, settings=settings_of((0, 11), values=allowed), selection=(0, 11))


def test_a_firmware_register_that_nothing_was_measured_into_needs_a_value_that_the_policy_lists() -> None:
    unused = tuple(one for one in BOOT if one.pcr != 4)
    log, held = crypto_agile_log(unused), registers(unused)
    with pytest.raises(Denied) as denied:
        verify_log(log, held, selection=(0, 4))
    assert (denied.value.reason, denied.value.got) == (Reason.EVENT_LOG_MISMATCH, "0")
    settings = settings_of((0, 4), values={"4": ["00" * 32]})
    assert "event log replays PCR 4" in verify_log(log, held, settings=settings, selection=(0, 4))


def test_a_register_that_the_log_mentions_must_replay_even_where_its_value_is_listed() -> None:
    held = registers((*BOOT, Measurement(4, 13, b"by the running system")))
    allowed: dict[str, JsonValue] = {"4": [held[4].hex()]}
    with pytest.raises(Denied) as denied:
        verify_log(crypto_agile_log(BOOT), held, settings=settings_of((0, 4), values=allowed), selection=(0, 4))
    assert denied.value.reason is Reason.EVENT_LOG_MISMATCH


def test_a_log_that_replays_excuses_no_value_that_the_policy_does_not_list() -> None:
    allowed: dict[str, JsonValue] = {"4": ["00" * 32]}
    with pytest.raises(Denied) as denied:
        verify_log(crypto_agile_log(BOOT), settings=settings_of(values=allowed))
    assert denied.value.reason is Reason.PCR_VALUE_NOT_ALLOWED


@pytest.mark.parametrize("wanted", [{}, {"eventLog": "Ignore"}])
def test_without_the_policys_wish_no_log_is_asked_for_and_none_is_taken(wanted: dict[str, JsonValue]) -> None:
    settings: dict[str, JsonValue] = {**TPM.settings, "pcrs": {"selection": [*SELECTION]}, **wanted}
    assert verify_log(None, settings=settings) == ["event log not asked for"]
    with pytest.raises(Denied) as denied:
        verify_log(crypto_agile_log(BOOT), settings=settings)
    assert denied.value.reason is Reason.EVIDENCE_MALFORMED


def test_only_a_policy_that_requires_the_log_changes_the_challenge() -> None:
    first = request_of(TPM.first())
    texts = {
        wish: challenge_of(first, facts_of({**TPM.settings, "eventLog": wish})).challenge
        for wish in ("Ignore", "Require")
    }
    plain: JsonObject = canonical_json.loads(challenge_of(first, facts_of(TPM.settings)).challenge.encode())
    assert "log" not in canonical_json.loads(texts["Ignore"].encode())
    assert canonical_json.loads(texts["Require"].encode()).keys() - plain.keys() == {"log"}
    assert Challenge.parse(texts["Require"]).log
    assert not Challenge.parse(texts["Ignore"]).log


@pytest.mark.parametrize("value", [False, 1, None, "true", []])
def test_a_wish_for_the_log_has_one_spelling(value: JsonValue) -> None:
    first = request_of(TPM.first())
    wished = canonical_json.loads(
        challenge_of(first, facts_of({**TPM.settings, "eventLog": "Require"})).challenge.encode()
    )
    with pytest.raises(Denied) as denied:
        Challenge.parse(canonical_json.dumps({**wished, "log": value}).decode())
    assert denied.value.reason is Reason.EVIDENCE_MALFORMED


def test_the_largest_log_fits_an_envelope_and_a_larger_one_is_malformed_evidence() -> None:
    facts = facts_of(settings_of())
    _, second = answer(facts, registers(BOOT), bytes(MAX_EVENT_LOG))
    csr = build_csr(TPM.ak, "n" * 253, "metal://" + "x" * 1000)  # pyright: ignore[reportArgumentType] - an ECDSA key
    assert envelope.decode(envelope.encode(csr, second.evidence))[1] == second.evidence
    _, larger = answer(facts, registers(BOOT), bytes(MAX_EVENT_LOG + 1))
    for wrong in (larger.evidence.data, {**second.evidence.data, "eventLog": ""}):
        with pytest.raises(Denied) as denied:
            parse_evidence(wrong)
        assert denied.value.reason is Reason.EVIDENCE_MALFORMED


def test_what_was_quoted_is_there_for_the_ledger() -> None:
    facts = facts_of(settings_of())
    first, second = answer(facts, registers(BOOT), crypto_agile_log(BOOT))
    boot = verify(second, replace(facts, first_request=first)).boot
    assert boot is not None
    assert boot.bank == "sha256"
    assert boot.pcrs == {pcr: registers(BOOT)[pcr].hex() for pcr in SELECTION}


def test_no_event_data_enters_a_message_or_a_record() -> None:
    secret = b"kernel command line with a password"
    booted = (*BOOT, Measurement(8, 13, secret))
    for log in (crypto_agile_log(booted), crypto_agile_log(booted) + b"\0", sha1_log(booted)):
        with pytest.raises(Denied) as denied:
            verify_log(log, registers(BOOT), selection=(0, 8))
        said = f"{denied.value} {denied.value.checks} {Evidence(PROVIDER, 1, {})}"
        assert secret.decode() not in said
        assert secret.hex() not in said


@given(st.binary(max_size=200))
def test_any_log_gives_a_verdict(log: bytes) -> None:
    with pytest.raises(Denied) as denied:
        verify_log(log or b"\0")
    assert denied.value.reason in {Reason.EVENT_LOG_MALFORMED, Reason.EVENT_LOG_MISMATCH, Reason.EVENT_LOG_BANK_MISSING}


def test_the_worst_log_costs_little() -> None:
    worst = (Measurement(4, 4, bytes(4)),) * 1700  # 76 bytes each: as many as a log holds
    log = crypto_agile_log(worst)
    assert MAX_EVENT_LOG * 0.9 < len(log) <= MAX_EVENT_LOG

    def verified() -> None:
        with pytest.raises(Denied):
            verify_log(log)

    assert calls(verified) < 3 * len(worst)
