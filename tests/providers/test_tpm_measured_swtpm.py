"""Measured boot with software TPMs: extended as firmware would, quoted, explained by the log that the node reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tpm_machines import Exchange, by_allow_list, exchange
from tpm_tss import connected, extend_with
from tpm_world import facts_of, request_of, verify

from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.tpm.attestor import DEFAULT_EVENT_LOG, TpmAttestor
from nodeattest_providers.tpm.protocol import MAX_EVENT_LOG
from nodeattest_providers.verifier_interface import AttestedNode
from nodeattest_sandbox.firmware import NO_ACTION, Measurement, boot, crypto_agile_log, sha1_log, typical_boot
from nodeattest_sandbox.swtpm import SoftwareTpm

pytestmark = pytest.mark.swtpm

BOOT = typical_boot()
PCRS: JsonValue = {"selection": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 14]}


@pytest.fixture
def booted(tpm_folder: Path) -> SoftwareTpm:
    """A TPM that was just powered on and measured a boot; the test stops it."""
    tpm = SoftwareTpm.create(tpm_folder, name="measured").start()
    boot(tpm.tcti, BOOT)
    return tpm


def join(tpm: SoftwareTpm, log: Path, **settings: JsonValue) -> Exchange:
    with TpmAttestor({"tcti": tpm.tcti, "eventLog": str(log)}) as attestor:
        trusted = by_allow_list(attestor.endorsement_fingerprint())
        return exchange(attestor, facts_of({**trusted, "pcrs": PCRS, "eventLog": "Require", **settings}))


def verify_joined(joined: Exchange) -> AttestedNode:
    return verify(request_of(joined.answer), joined.facts)


def test_a_node_joins_with_the_log_of_its_boot_and_is_refused_once_its_boot_is_another(
    booted: SoftwareTpm, tmp_path: Path
) -> None:
    log = tmp_path / "binary_bios_measurements"
    log.write_bytes(crypto_agile_log((Measurement(0, NO_ACTION, b"StartupLocality\0\0"), *BOOT)))
    with booted as tpm:
        joined = join(tpm, log)
        node = verify_joined(joined)
        assert node.boot is not None
        assert node.boot.bank == "sha256"
        assert set(node.boot.pcrs) == {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 14}
        with connected(tpm.tcti) as esys:
            extend_with(esys, 4)
        with pytest.raises(Denied) as denied:
            verify_joined(join(tpm, log))
    assert denied.value.reason is Reason.EVENT_LOG_MISMATCH
    assert denied.value.got.startswith("PCR 4 ")


SPOILT: list[tuple[str, Callable[[], bytes], Reason]] = [
    ("an event dropped", lambda: crypto_agile_log(BOOT[:-1]), Reason.EVENT_LOG_MISMATCH),
    ("an event added", lambda: crypto_agile_log((*BOOT, Measurement(9, 13, b"initrd"))), Reason.EVENT_LOG_MISMATCH),
    ("another kernel's log", lambda: crypto_agile_log(typical_boot("init=/bin/sh")), Reason.EVENT_LOG_MISMATCH),
    ("cut short", lambda: crypto_agile_log(BOOT)[:-3], Reason.EVENT_LOG_MALFORMED),
    ("the SHA-1 form", lambda: sha1_log(BOOT), Reason.EVENT_LOG_BANK_MISSING),
]


@pytest.mark.parametrize(("write", "reason"), [row[1:] for row in SPOILT], ids=[row[0] for row in SPOILT])
def test_a_spoilt_log_of_a_real_boot_is_denied(
    booted: SoftwareTpm, tmp_path: Path, write: Callable[[], bytes], reason: Reason
) -> None:
    log = tmp_path / "log"
    log.write_bytes(write())
    with booted as tpm, pytest.raises(Denied) as denied:
        verify_joined(join(tpm, log))
    assert denied.value.reason is reason


def test_a_log_is_not_read_unless_the_challenge_asks(real_tpm: SoftwareTpm, tmp_path: Path) -> None:
    joined = join(real_tpm, tmp_path / "absent", eventLog="Ignore", pcrs={})
    assert joined.answer.event_log is None
    assert verify_joined(joined).checks


def test_a_log_that_is_asked_for_and_cannot_be_had_is_unavailable_and_says_so(
    real_tpm: SoftwareTpm, tmp_path: Path
) -> None:
    empty, large = tmp_path / "empty", tmp_path / "large"
    empty.touch()
    large.write_bytes(bytes(MAX_EVENT_LOG + 1))
    for path, words in (
        (tmp_path / "absent", "No such file"),
        (tmp_path, "Is a directory"),
        (empty, "is empty"),
        (large, "more than 131072 bytes"),
    ):
        with pytest.raises(Unavailable, match=words) as unavailable:
            join(real_tpm, path)
        assert unavailable.value.reason is Reason.PLATFORM_UNAVAILABLE
        assert "securityfs" in unavailable.value.remedy


def test_the_policys_change_between_the_rounds_starts_a_new_first_request(booted: SoftwareTpm, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(crypto_agile_log(BOOT))
    with booted as tpm:
        asked, unasked = join(tpm, log), join(tpm, log, eventLog="Ignore")
    settings = {True: asked.facts.settings, False: unasked.facts.settings}
    for joined, now, reason in (
        (asked, False, Reason.EVIDENCE_MALFORMED),
        (unasked, True, Reason.EVENT_LOG_MISSING),
    ):
        with pytest.raises(Denied) as denied:
            verify_joined(replace(joined, facts=replace(joined.facts, settings=settings[now])))
        assert denied.value.reason is reason
        assert "new first request" in denied.value.remedy


def test_the_kernels_own_log_is_the_default() -> None:
    assert DEFAULT_EVENT_LOG == "/sys/kernel/security/tpm0/binary_bios_measurements"
