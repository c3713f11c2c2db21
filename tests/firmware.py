"""A firmware in software: measures a boot into a TPM's PCRs, and writes the event log that goes with it.

Promises: the log in both forms of the PC Client Platform Firmware Profile, crypto-agile and SHA-1; ``boot`` extends a
TPM with exactly the digests that the log has. Nothing of it is secret or real.
Leaves to others: resetting the TPM's PCRs (a restart does).
Source: TCG PC Client Platform Firmware Profile 1.05, §10 "Event Logging"; TCG Algorithm Registry.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

ALGORITHMS: Final = {"sha1": 0x0004, "sha256": 0x000B, "sha384": 0x000C}
"""TPM_ALG_ID by hashlib's names."""
NO_ACTION: Final = 0x00000003
SEPARATOR: Final = 0x00000004
_LOGGED: Final = ("sha1", "sha256")
"""What firmware of today logs."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One event: what is said (``data``), and what is measured where that is something else."""

    pcr: int
    kind: int
    data: bytes
    measured: bytes | None = None

    def digest(self, algorithm: str) -> bytes:
        """Return what a bank is extended with; zeros for an event that extends nothing."""
        if self.kind == NO_ACTION:
            return bytes(hashlib.new(algorithm, usedforsecurity=False).digest_size)
        content = self.data if self.measured is None else self.measured
        return hashlib.new(algorithm, content, usedforsecurity=False).digest()


def separators() -> tuple[Measurement, ...]:
    """Close PCRs 0 to 7, as firmware does before it starts what it loaded."""
    return tuple(Measurement(pcr, SEPARATOR, bytes(4)) for pcr in range(8))


def typical_boot(kernel: str = "vmlinuz root=/dev/vda1 ro") -> tuple[Measurement, ...]:
    """Measure what a UEFI machine with secure boot measures, in short."""
    secure_boot = bytes.fromhex("61dfe48bca93d211aa0d00e098032b8c") + (10).to_bytes(8, "little")
    secure_boot += (1).to_bytes(8, "little") + "SecureBoot".encode("utf-16-le") + b"\x01"
    return (
        Measurement(0, 0x00000008, "1.2.3\0".encode("utf-16-le")),  # EV_S_CRTM_VERSION
        Measurement(0, 0x80000008, bytes(16), b"the firmware's volume"),  # EV_EFI_PLATFORM_FIRMWARE_BLOB
        Measurement(7, 0x80000001, secure_boot),  # EV_EFI_VARIABLE_DRIVER_CONFIG
        Measurement(1, 0x80000009, bytes(8), b"SMBIOS"),  # EV_EFI_HANDOFF_TABLES
        Measurement(4, 0x80000007, b"Calling EFI Application from Boot Option"),  # EV_EFI_ACTION
        *separators(),
        Measurement(5, 0x80000006, b"GPT", b"the partition table"),  # EV_EFI_GPT_EVENT
        Measurement(4, 0x80000003, bytes(32), b"the boot loader's image"),  # EV_EFI_BOOT_SERVICES_APPLICATION
        Measurement(8, 0x0000000D, b"kernel_cmdline: " + kernel.encode(), kernel.encode()),  # EV_IPL
        Measurement(5, 0x80000007, b"Exit Boot Services Invocation"),
        Measurement(5, 0x80000007, b"Exit Boot Services Returned with Success"),
    )


def crypto_agile_log(measurements: Sequence[Measurement], algorithms: Sequence[str] = _LOGGED) -> bytes:
    """Write the log of TPM 2.0: the Spec ID event in the SHA-1 form, then TCG_PCR_EVENT2."""
    return header(algorithms) + b"".join(event(one, algorithms) for one in measurements)


def header(algorithms: Sequence[str] = _LOGGED) -> bytes:
    """Write the Spec ID event."""
    sizes = b"".join(_little(ALGORITHMS[name], 2) + _little(hashlib.new(name).digest_size, 2) for name in algorithms)
    spec_id = b"Spec ID Event03\0" + _little(0, 4) + bytes((0, 2, 0, 2)) + _little(len(algorithms), 4) + sizes + b"\0"
    return _sha1_event(Measurement(0, NO_ACTION, spec_id))


def event(one: Measurement, algorithms: Sequence[str] = _LOGGED) -> bytes:
    """Write a TCG_PCR_EVENT2."""
    digests = b"".join(_little(ALGORITHMS[name], 2) + one.digest(name) for name in algorithms)
    return _little(one.pcr, 4) + _little(one.kind, 4) + _little(len(algorithms), 4) + digests + _data(one.data)


def sha1_log(measurements: Sequence[Measurement]) -> bytes:
    """Write the log of TPM 1.2, which some firmware keeps to this day."""
    return b"".join(_sha1_event(one) for one in measurements)


def _sha1_event(one: Measurement) -> bytes:
    return _little(one.pcr, 4) + _little(one.kind, 4) + one.digest("sha1") + _data(one.data)


def _data(data: bytes) -> bytes:
    return _little(len(data), 4) + data


def _little(value: int, octets: int) -> bytes:
    return value.to_bytes(octets, "little")


def boot(tcti: str, measurements: Sequence[Measurement], algorithm: str = "sha256") -> None:
    """Extend a running TPM's bank with the measurements, in order."""
    os.environ.setdefault("TSS2_LOG", "all+none")  # read by libtss2
    tss: Any = importlib.import_module("tpm2_pytss")  # it has no types, and is there only for development
    with tss.ESAPI(tcti) as esys:
        for one in measurements:
            if one.kind != NO_ACTION:
                digest = tss.TPMT_HA(
                    hashAlg=tss.TPM2_ALG(ALGORITHMS[algorithm]),
                    digest=tss.TPMU_HA(**{algorithm: one.digest(algorithm)}),
                )
                esys.pcr_extend(tss.ESYS_TR(one.pcr), tss.TPML_DIGEST_VALUES([digest]))
