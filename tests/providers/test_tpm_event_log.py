"""Event logs: read, replayed and held to a quote."""

from __future__ import annotations

import hashlib

import pytest
from firmware import NO_ACTION, Measurement, crypto_agile_log, event, header, sha1_log, typical_boot
from tpm_boots import BOOT as MEASURED_BOOT
from tpm_boots import SELECTION, TPM, answer, registers, settings_of, verify_log
from tpm_world import facts_of
from worlds import denied_for

from nodeattest_providers import envelope
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.node_interface import Evidence, JsonValue
from nodeattest_providers.pkcs10 import build_csr
from nodeattest_providers.tpm.boot_state import MAX_EVENTS, NO_PCR, parse_event_log, replay
from nodeattest_providers.tpm.protocol import MAX_EVENT_LOG, PROVIDER, parse_evidence
from nodeattest_providers.tpm.structures import Alg

BOOT = typical_boot()
HEADER_ALGORITHMS = 32 + 16 + 4 + 4 + 4
"""Offset of the Spec ID event's first algorithm: event header, signature, class, version, count."""


def startup(locality: int, *, pcr: int = 0, tail: bytes = b"") -> Measurement:
    return Measurement(pcr, NO_ACTION, b"StartupLocality\0" + bytes((locality,)) + tail)


def by_hand(pcr: int, algorithm: str, start: bytes) -> bytes:
    """Replay as TPM 2.0 Library Part 1 says it: new value = H(old value, digest)."""
    value = start
    for one in BOOT:
        if one.pcr == pcr:
            value = hashlib.new(algorithm, value + one.digest(algorithm)).digest()
    return value


@pytest.mark.parametrize(("bank", "algorithm"), [(Alg.SHA1, "sha1"), (Alg.SHA256, "sha256"), (Alg.SHA384, "sha384")])
def test_a_crypto_agile_log_replays_every_bank_that_it_has(bank: Alg, algorithm: str) -> None:
    log = parse_event_log(crypto_agile_log(BOOT, ("sha1", "sha256", "sha384")))
    size = hashlib.new(algorithm).digest_size
    assert log.crypto_agile
    assert log.sizes[bank] == size
    assert len(log.events) == len(BOOT) + 1
    assert replay(log, bank) == {pcr: by_hand(pcr, algorithm, bytes(size)) for pcr in range(9)}


@pytest.mark.parametrize("name", [b"Spec ID Event00\0", b"Spec ID Event02\0"])
def test_a_header_of_tpm_1_2_is_an_event_of_the_sha_1_form(name: bytes) -> None:
    log = parse_event_log(sha1_log((Measurement(0, NO_ACTION, name + bytes(12)), *BOOT)))
    assert not log.crypto_agile
    assert replay(log, Alg.SHA1)[0] == by_hand(0, "sha1", bytes(20))


@pytest.mark.parametrize("locality", [0, 3, 4])
def test_pcr_0_begins_with_the_locality_of_the_tpms_start(locality: int) -> None:
    log = parse_event_log(crypto_agile_log((startup(locality), *BOOT)))
    assert log.locality == locality
    assert replay(log, Alg.SHA256)[0] == by_hand(0, "sha256", bytes(31) + bytes((locality,)))
    assert replay(log, Alg.SHA256)[7] == by_hand(7, "sha256", bytes(32))


def test_an_event_without_action_extends_nothing_wherever_it_stands() -> None:
    said = (Measurement(3, NO_ACTION, b"x"), Measurement(NO_PCR, NO_ACTION, b"y"))
    plain, with_said = parse_event_log(crypto_agile_log(BOOT)), parse_event_log(crypto_agile_log((*BOOT, *said)))
    assert replay(with_said, Alg.SHA256) == replay(plain, Alg.SHA256)


def test_the_header_may_list_banks_that_are_off_and_the_first_event_says_which_are_on() -> None:
    banks = ("sha1", "sha256", "sha384")
    raw = header(banks) + b"".join(event(one, ("sha256",)) for one in BOOT)
    log = parse_event_log(raw)
    assert dict(log.sizes) == {Alg.SHA256: 32}
    assert replay(log, Alg.SHA256)[4] == by_hand(4, "sha256", bytes(32))
    with pytest.raises(Denied, match="1 digests an event"):
        parse_event_log(raw + event(BOOT[0], ("sha256", "sha384")))
    with pytest.raises(Denied, match="each of the log's algorithms"):
        parse_event_log(raw + event(BOOT[0], ("sha384",)))


def test_algorithms_that_nobody_here_knows_are_skipped_by_their_size() -> None:
    """A vendor's algorithm beside SHA-256 must not make a log unreadable."""
    unknown = (0x7ABC).to_bytes(2, "little")
    raw = header(("sha1", "sha256")).replace(b"\x04\x00\x14\x00", unknown + b"\x14\x00")
    raw += b"".join(event(one).replace(b"\x04\x00" + one.digest("sha1"), unknown + one.digest("sha1")) for one in BOOT)
    log = parse_event_log(raw)
    assert dict(log.sizes) == {0x7ABC: 20, Alg.SHA256: 32}
    assert replay(log, Alg.SHA256)[4] == by_hand(4, "sha256", bytes(32))


def patched(at: int, new: bytes) -> bytes:
    raw = crypto_agile_log(BOOT)
    return raw[:at] + new + raw[at + len(new) :]


AFTER_HEADER = len(header())
DEFECTS: list[tuple[str, bytes, str]] = [
    ("nothing", b"", "more bytes"),
    ("trailing zeros of a firmware's area", crypto_agile_log(BOOT) + bytes(64), "digests an event"),
    ("too large", crypto_agile_log(BOOT) + bytes(MAX_EVENT_LOG), "at most 131072 bytes"),
    ("too many events", sha1_log([Measurement(0, 1, b"")] * (MAX_EVENTS + 1)), "at most 2048 events"),
    ("event data beyond the log", patched(AFTER_HEADER + 12 + 22 + 34, b"\xff\0\xff\0"), "bytes of event data"),
    ("an event without digests", patched(AFTER_HEADER + 8, b"\0"), "2 digests an event"),
    ("an event with one digest more", patched(AFTER_HEADER + 8, b"\3"), "2 digests an event"),
    ("an algorithm twice", header() + event(BOOT[0], ("sha256", "sha256")), "each of the log's algorithms"),
    ("another algorithm", header() + event(BOOT[0], ("sha1", "sha384")), "each of the log's algorithms"),
    ("PCR 24", crypto_agile_log((*BOOT, Measurement(24, 4, b""))), "a PCR from 0 to 23"),
    ("PCR 24 in the SHA-1 form", sha1_log((Measurement(24, 4, b""),)), "a PCR from 0 to 23"),
    ("locality 1", crypto_agile_log((startup(1),)), "0, 3 or 4"),
    ("two localities", crypto_agile_log((startup(3), startup(3))), "one StartupLocality"),
    ("a locality after PCR 0 was extended", crypto_agile_log((*BOOT, startup(3))), "before PCR 0"),
    ("a locality of PCR 1", crypto_agile_log((startup(3, pcr=1),)), "one StartupLocality"),
    ("a longer locality", crypto_agile_log((startup(3, tail=b"\0"),)), "one StartupLocality"),
    ("no algorithm", patched(HEADER_ALGORITHMS - 4, b"\0"), "1 to 16 algorithms"),
    ("17 algorithms", patched(HEADER_ALGORITHMS - 4, b"\x11"), "1 to 16 algorithms"),
    ("SHA-256 of 20 bytes", patched(HEADER_ALGORITHMS + 6, b"\x14"), "with its digest's size"),
    ("SHA-1 twice", patched(HEADER_ALGORITHMS + 4, b"\4\0\x14\0"), "each algorithm once"),
    ("a digest of 65 bytes", patched(HEADER_ALGORITHMS, b"\xbc\x7a\x41\0"), "with its digest's size"),
    ("version 2.1", patched(HEADER_ALGORITHMS - 8, b"\1"), "version 2.0"),
    ("an uintn of 16 bytes", patched(HEADER_ALGORITHMS - 5, b"\4"), "uintnSize"),
    ("vendor information beyond the event", patched(HEADER_ALGORITHMS + 8, b"\1"), "more bytes"),
    ("a Spec ID event of PCR 1", patched(0, b"\1"), "PCR 0 and a digest of zeros"),
    ("a Spec ID event with a digest", patched(8, b"\1"), "PCR 0 and a digest of zeros"),
]


@pytest.mark.parametrize(("raw", "words"), [row[1:] for row in DEFECTS], ids=[row[0] for row in DEFECTS])
def test_a_defective_log_is_denied(raw: bytes, words: str) -> None:
    with denied_for(Reason.EVENT_LOG_MALFORMED) as denied:
        parse_event_log(raw)
    assert words in denied.value.expected
    assert denied.value.remedy


def test_a_log_that_explains_every_quoted_register_is_accepted() -> None:
    assert verify_log(crypto_agile_log(MEASURED_BOOT)) == [
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


@pytest.mark.parametrize("pcr", [10, 14, 16, 17, 22, 23])
def test_a_register_that_the_log_does_not_mention_must_be_as_the_reset_left_it(pcr: int) -> None:
    measured_later = (*MEASURED_BOOT, Measurement(pcr, 13, b"by the running system"))
    assert verify_log(crypto_agile_log(MEASURED_BOOT), selection=(0, pcr))
    with denied_for(Reason.EVENT_LOG_MISMATCH) as denied:
        verify_log(crypto_agile_log(MEASURED_BOOT), registers(measured_later), selection=(0, pcr))
    assert denied.value.got.startswith(f"PCR {pcr} ")


def test_a_firmware_register_that_nothing_was_measured_into_needs_a_value_that_the_policy_lists() -> None:
    unused = tuple(one for one in MEASURED_BOOT if one.pcr != 4)
    log, held = crypto_agile_log(unused), registers(unused)
    with pytest.raises(Denied) as denied:
        verify_log(log, held, selection=(0, 4))
    assert (denied.value.reason, denied.value.got) == (Reason.EVENT_LOG_MISMATCH, "0")
    settings = settings_of((0, 4), values={"4": ["00" * 32]})
    assert "event log replays PCR 4" in verify_log(log, held, settings=settings, selection=(0, 4))


def test_a_register_that_the_log_mentions_must_replay_even_where_its_value_is_listed() -> None:
    held = registers((*MEASURED_BOOT, Measurement(4, 13, b"by the running system")))
    allowed: dict[str, JsonValue] = {"4": [held[4].hex()]}
    with denied_for(Reason.EVENT_LOG_MISMATCH):
        verify_log(
            crypto_agile_log(MEASURED_BOOT), held, settings=settings_of((0, 4), values=allowed), selection=(0, 4)
        )


@pytest.mark.parametrize("wanted", [{}, {"eventLog": "Ignore"}])
def test_without_the_policys_wish_no_log_is_asked_for_and_none_is_taken(wanted: dict[str, JsonValue]) -> None:
    settings: dict[str, JsonValue] = {**TPM.settings, "pcrs": {"selection": [*SELECTION]}, **wanted}
    assert verify_log(None, settings=settings) == ["event log not asked for"]
    with denied_for(Reason.EVIDENCE_MALFORMED):
        verify_log(crypto_agile_log(MEASURED_BOOT), settings=settings)


def test_the_largest_log_fits_an_envelope_and_a_larger_one_is_malformed_evidence() -> None:
    facts = facts_of(settings_of())
    _, second = answer(facts, registers(MEASURED_BOOT), bytes(MAX_EVENT_LOG))
    csr = build_csr(TPM.ak, "n" * 253, "metal://" + "x" * 1000)  # pyright: ignore[reportArgumentType] - an ECDSA key
    assert envelope.decode(envelope.encode(csr, second.evidence))[1] == second.evidence
    _, larger = answer(facts, registers(MEASURED_BOOT), bytes(MAX_EVENT_LOG + 1))
    for wrong in (larger.evidence.data, {**second.evidence.data, "eventLog": ""}):
        with denied_for(Reason.EVIDENCE_MALFORMED):
            parse_evidence(wrong)


def test_no_event_data_enters_a_message_or_a_record() -> None:
    secret = b"kernel command line with a password"
    booted = (*MEASURED_BOOT, Measurement(8, 13, secret))
    for log in (crypto_agile_log(booted), crypto_agile_log(booted) + b"\0", sha1_log(booted)):
        with pytest.raises(Denied) as denied:
            verify_log(log, registers(MEASURED_BOOT), selection=(0, 8))
        said = f"{denied.value} {denied.value.checks} {Evidence(PROVIDER, 1, {})}"
        assert secret.decode() not in said
        assert secret.hex() not in said
