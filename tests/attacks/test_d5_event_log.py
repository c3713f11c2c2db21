"""D5, event logs: the quote is genuine each time, and the log beside it is not the boot's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import pytest
from catalogue import Row, attacks, evaluated
from firmware import (
    NO_ACTION,
    SEPARATOR,
    Measurement,
    crypto_agile_log,
    event,
    header,
    separators,
    sha1_log,
)
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
    registers,
    verify_log,
)

from nodeattest_providers.node_interface import JsonValue

Boot = tuple[Measurement, ...]
Case = Callable[[], object]

IMA: Final = (*BOOT, Measurement(10, 13, b"measured by the running system"))
MOVED: Final = tuple(Measurement(9, one.kind, one.data, one.measured) if one.pcr == 4 else one for one in BOOT)
ENDLESS: Final = event(BOOT[0])[: -4 - len(BOOT[0].data)] + b"\xff\xff\0\0"


def locality(number: int) -> Measurement:
    return Measurement(0, NO_ACTION, b"StartupLocality\0" + bytes((number,)))


def logged(log: bytes | None, booted: Boot = BOOT, *selection: int) -> Case:
    """A log beside the quote of a boot."""
    return lambda: verify_log(log, registers(booted), selection=selection or SELECTION)


def unasked() -> object:
    settings: Mapping[str, JsonValue] = {**TPM.settings, "pcrs": {"selection": [*SELECTION]}}
    return verify_log(crypto_agile_log(BOOT), settings=settings)


BOOT_GUARD = (Measurement(0, 0x00000007, bytes(4)), *BOOT)
CLOSED_OTHERWISE = tuple(replace(one, kind=0x0D) if one.kind == SEPARATOR and one.pcr == 0 else one for one in BOOT)

CASES: Mapping[str, Case] = {
    "D5-160": logged(crypto_agile_log(BOOT), DIFFERENT),
    "D5-161": logged(crypto_agile_log(WITHOUT_LOADER)),
    "D5-162": logged(crypto_agile_log(DIFFERENT)),
    "D5-163": logged(SAID_OTHERWISE),
    "D5-164": logged(header()),
    "D5-165": logged(crypto_agile_log(BOOT[::-1])),
    "D5-166": logged(crypto_agile_log(RELABELLED)),
    "D5-167": logged(crypto_agile_log(MOVED)),
    "D5-168": logged(crypto_agile_log((locality(3), *BOOT))),
    "D5-169": logged(crypto_agile_log(OPEN), OPEN),
    "D5-170": logged(crypto_agile_log(FAILED), FAILED),
    "D5-171": logged(crypto_agile_log((*BOOT, *separators())), (*BOOT, *separators())),
    "D5-172": logged(crypto_agile_log(BOOT), IMA, 0, 10),
    "D5-173": logged(sha1_log(BOOT)),
    "D5-174": logged(crypto_agile_log(BOOT, ("sha1",))),
    "D5-175": logged(crypto_agile_log(BOOT)[:-1]),
    "D5-176": logged(crypto_agile_log(BOOT) + bytes(4)),
    "D5-177": logged(header() + event(BOOT[0]) + event(BOOT[1], ("sha1",))),
    "D5-178": logged(header() + event(BOOT[0], ("sha256", "sha256"))),
    "D5-179": logged(crypto_agile_log((*BOOT, Measurement(24, 4, bytes(4))))),
    "D5-180": logged(crypto_agile_log((locality(0), locality(3), *BOOT))),
    "D5-181": logged(header() + ENDLESS),
    "D5-182": logged(None),
    "D5-183": unasked,
    "D5-198": logged(crypto_agile_log(BOOT_GUARD), BOOT_GUARD),
    "D5-199": logged(crypto_agile_log(CLOSED_OTHERWISE), CLOSED_OTHERWISE),
}


@pytest.mark.parametrize(("row", "case"), attacks(CASES))
def test_a_log_that_is_not_the_boots_gets_no_node(row: Row, case: Case) -> None:
    assert verify_log(crypto_agile_log(BOOT))
    assert evaluated(case, row) == row.expected
