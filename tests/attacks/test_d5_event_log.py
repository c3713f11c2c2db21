"""D5, event logs: the quote is genuine each time, and the log beside it is not the boot's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import firmware
import pytest
import tpm_boots
from catalogue import Row, attacks, evaluated

from nodeattest_providers.node_interface import JsonValue

Boot = tuple[firmware.Measurement, ...]
Case = Callable[[], object]

IMA: Final = (*tpm_boots.BOOT, firmware.Measurement(10, 13, b"measured by the running system"))
MOVED: Final = tuple(
    firmware.Measurement(9, one.kind, one.data, one.measured) if one.pcr == 4 else one for one in tpm_boots.BOOT
)
ENDLESS: Final = firmware.event(tpm_boots.BOOT[0])[: -4 - len(tpm_boots.BOOT[0].data)] + b"\xff\xff\0\0"


def locality(number: int) -> firmware.Measurement:
    return firmware.Measurement(0, firmware.NO_ACTION, b"StartupLocality\0" + bytes((number,)))


def logged(log: bytes | None, booted: Boot = tpm_boots.BOOT, *selection: int) -> Case:
    """A log beside the quote of a boot."""
    return lambda: tpm_boots.verify_log(log, tpm_boots.registers(booted), selection=selection or tpm_boots.SELECTION)


def unasked() -> object:
    settings: Mapping[str, JsonValue] = {**tpm_boots.TPM.settings, "pcrs": {"selection": [*tpm_boots.SELECTION]}}
    return tpm_boots.verify_log(firmware.crypto_agile_log(tpm_boots.BOOT), settings=settings)


BOOT_GUARD = (firmware.Measurement(0, 0x00000007, bytes(4)), *tpm_boots.BOOT)
CLOSED_OTHERWISE = tuple(
    replace(one, kind=0x0D) if one.kind == firmware.SEPARATOR and one.pcr == 0 else one for one in tpm_boots.BOOT
)

CASES: Mapping[str, Case] = {
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


@pytest.mark.parametrize(("row", "case"), attacks(CASES))
def test_a_log_that_is_not_the_boots_gets_no_node(row: Row, case: Case) -> None:
    assert tpm_boots.verify_log(firmware.crypto_agile_log(tpm_boots.BOOT))
    assert evaluated(case, row) == row.expected
