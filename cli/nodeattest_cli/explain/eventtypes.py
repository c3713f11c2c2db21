"""Event types of firmware's logs by name, and what the data of the well-known ones says, in a few words.

Promises: any bytes give one line of visible ASCII, bounded; nothing here decides anything.
Leaves to others: whether data is what was measured (``eventlog``).
Source: TCG PC Client Platform Firmware Profile 1.05, "Event Types" and "UEFI_VARIABLE_DATA".
"""

from __future__ import annotations

from typing import Final

from nodeattest_providers.identifiers import printable

__all__ = ["describe", "event_type_name", "is_hashed"]

_NO_ACTION: Final = 0x00000003
_SEPARATOR: Final = 0x00000004
_S_CRTM_VERSION: Final = 0x00000008
_TYPES: Final = {
    0x00000000: "EV_PREBOOT_CERT",
    0x00000001: "EV_POST_CODE",
    0x00000002: "EV_UNUSED",
    _NO_ACTION: "EV_NO_ACTION",
    _SEPARATOR: "EV_SEPARATOR",
    0x00000005: "EV_ACTION",
    0x00000006: "EV_EVENT_TAG",
    0x00000007: "EV_S_CRTM_CONTENTS",
    _S_CRTM_VERSION: "EV_S_CRTM_VERSION",
    0x00000009: "EV_CPU_MICROCODE",
    0x0000000A: "EV_PLATFORM_CONFIG_FLAGS",
    0x0000000B: "EV_TABLE_OF_DEVICES",
    0x0000000C: "EV_COMPACT_HASH",
    0x0000000D: "EV_IPL",
    0x0000000E: "EV_IPL_PARTITION_DATA",
    0x0000000F: "EV_NONHOST_CODE",
    0x00000010: "EV_NONHOST_CONFIG",
    0x00000011: "EV_NONHOST_INFO",
    0x00000012: "EV_OMIT_BOOT_DEVICE_EVENTS",
    0x00000013: "EV_POST_CODE2",
    0x80000001: "EV_EFI_VARIABLE_DRIVER_CONFIG",
    0x80000002: "EV_EFI_VARIABLE_BOOT",
    0x80000003: "EV_EFI_BOOT_SERVICES_APPLICATION",
    0x80000004: "EV_EFI_BOOT_SERVICES_DRIVER",
    0x80000005: "EV_EFI_RUNTIME_SERVICES_DRIVER",
    0x80000006: "EV_EFI_GPT_EVENT",
    0x80000007: "EV_EFI_ACTION",
    0x80000008: "EV_EFI_PLATFORM_FIRMWARE_BLOB",
    0x80000009: "EV_EFI_HANDOFF_TABLES",
    0x8000000A: "EV_EFI_PLATFORM_FIRMWARE_BLOB2",
    0x8000000B: "EV_EFI_HANDOFF_TABLES2",
    0x8000000C: "EV_EFI_VARIABLE_BOOT2",
    0x8000000D: "EV_EFI_GPT_EVENT2",
    0x80000010: "EV_EFI_HCRTM_EVENT",
    0x800000E0: "EV_EFI_VARIABLE_AUTHORITY",
    0x800000E1: "EV_EFI_SPDM_FIRMWARE_BLOB",
    0x800000E2: "EV_EFI_SPDM_FIRMWARE_CONFIG",
}
_VARIABLES: Final = frozenset({0x80000001, 0x80000002, 0x8000000C, 0x800000E0})
_TEXTS: Final = frozenset({0x00000001, 0x00000005, 0x0000000D, 0x00000012, 0x80000007})
_HASHED: Final = frozenset(
    {_SEPARATOR, 0x00000005, _S_CRTM_VERSION, 0x00000012, 0x80000006, 0x80000007, 0x8000000D} | _VARIABLES
)
"""Types whose digest the profile defines as that of the event data."""
_SEPARATORS: Final = {bytes(4): "done", b"\xff" * 4: "done", b"\1\0\0\0": "the firmware failed"}
_VARIABLE_HEADER: Final = 16 + 8 + 8
"""Bytes of GUID, name length and data length."""
_SIGNATURE: Final = 16
"""Bytes that tell kinds of EV_NO_ACTION apart."""
_SMALL: Final = 4
"""Bytes of a variable that are shown: those of switches."""


def event_type_name(kind: int) -> str:
    """Name an event type."""
    return _TYPES.get(kind, f"0x{kind:08x}")


def is_hashed(kind: int) -> bool:
    """Return whether the digest of such an event is that of its data."""
    return kind in _HASHED


def describe(kind: int, data: bytes) -> str:
    """Say what an event's data says."""
    if kind == _SEPARATOR:
        return _SEPARATORS.get(data, f"another, of {len(data)} bytes")
    if kind in _TEXTS:
        return printable(data.rstrip(b"\0").decode("latin-1"))
    if kind in _VARIABLES:
        return _variable(data)
    if kind == _S_CRTM_VERSION:
        return printable(data.decode("utf-16-le", "replace").rstrip("\0"))
    if kind == _NO_ACTION:
        locality = f", {data[_SIGNATURE]}" if data.startswith(b"StartupLocality\0") and len(data) > _SIGNATURE else ""
        return printable(data[:_SIGNATURE].rstrip(b"\0").decode("latin-1")) + locality
    return f"{len(data)} bytes"


def _variable(data: bytes) -> str:
    """Read UEFI_VARIABLE_DATA, as far as it is one: the name, and the value of a switch."""
    name_end = _VARIABLE_HEADER + 2 * int.from_bytes(data[16:24], "little")
    size = int.from_bytes(data[24:32], "little")
    if len(data) < _VARIABLE_HEADER or name_end + size != len(data):
        return f"{len(data)} bytes"
    name = printable(data[_VARIABLE_HEADER:name_end].decode("utf-16-le", "replace"))
    return f"{name} = {data[name_end:].hex()}" if 0 < size <= _SMALL else f"{name}, {size} bytes"
