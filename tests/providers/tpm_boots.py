"""A node with a measured boot in software, every byte of it a test's to choose: registers, log, quote, verdict."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from firmware import NO_ACTION, SEPARATOR, Measurement, crypto_agile_log, typical_boot
from tpm_world import SoftTpm, answer_to, challenge_of, facts_of, request_of, verify

from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.tpm.protocol import Challenge
from nodeattest_providers.verifier_interface import Facts, NodeRequest

BOOT = typical_boot()
SELECTION: tuple[int, ...] = (0, 4, 7, 14, 17)
"""Firmware, boot loader and secure boot; 14 is untouched, 17 is of the dynamic launch that never was."""
TPM = SoftTpm()


def registers(measurements: tuple[Measurement, ...], *, algorithm: str = "sha256") -> dict[int, bytes]:
    """Say what a TPM holds after a boot: Part 1, initial values and extends."""
    size = hashlib.new(algorithm).digest_size
    values = {pcr: (b"\xff" if 17 <= pcr <= 22 else b"\0") * size for pcr in range(24)}
    for one in measurements:
        if one.kind != NO_ACTION:
            values[one.pcr] = hashlib.new(algorithm, values[one.pcr] + one.digest(algorithm)).digest()
    return values


def settings_of(selection: tuple[int, ...] = SELECTION, **changes: JsonValue) -> dict[str, JsonValue]:
    pcrs: dict[str, JsonValue] = {"selection": [*selection]}
    return {**TPM.settings, "eventLog": "Require", "pcrs": pcrs | changes}


def answer(
    facts: Facts, held: Mapping[int, bytes], log: bytes | None, selection: tuple[int, ...] = SELECTION
) -> tuple[NodeRequest, NodeRequest]:
    """Make both requests of a node whose TPM holds these values."""
    first = request_of(TPM.first())
    challenge = Challenge.parse(challenge_of(first, facts).challenge)
    evidence = answer_to(first, facts, challenge, TPM, values=tuple(held[pcr] for pcr in selection))
    return first, request_of(replace(evidence, event_log=log))


def verify_log(
    log: bytes | None,
    held: Mapping[int, bytes] | None = None,
    *,
    settings: Mapping[str, JsonValue] | None = None,
    selection: tuple[int, ...] = SELECTION,
) -> list[str]:
    """Let the verifier check an answer; returns the names of the checks about the log."""
    facts = facts_of(settings or settings_of(selection))
    first, second = answer(facts, held or registers(BOOT), log, selection)
    done = verify(second, replace(facts, first_request=first)).checks
    return [check.name for check in done if check.name.startswith("event log")]


RELABELLED = tuple(replace(one, kind=NO_ACTION) if one.kind == SEPARATOR and one.pcr == 4 else one for one in BOOT)
"""The separator of PCR 4 is said to extend nothing."""
FAILED = tuple(replace(one, data=b"\1\0\0\0") if one.kind == SEPARATOR and one.pcr == 7 else one for one in BOOT)
"""Firmware that closes PCR 7 by telling of an error."""
DIFFERENT = (Measurement(4, 0x80000003, b"", b"another boot loader"), *BOOT)
WITHOUT_LOADER = tuple(one for one in BOOT if one.measured != b"the boot loader's image")
SAID_OTHERWISE = crypto_agile_log(BOOT).replace(BOOT[1].digest("sha256"), BOOT[2].digest("sha256"))
OPEN = tuple(one for one in BOOT if one.kind != SEPARATOR or one.pcr != 0)
