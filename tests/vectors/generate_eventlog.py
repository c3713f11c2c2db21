"""Writes eventlog.json, the published vectors of event logs; running it and no diff is right.

Structures and replay are written out once more, from the Platform Firmware Profile and the wire format's page, and not
from the code under test.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
JSON = dict[str, object]
Row = tuple[int, int, bytes, bytes]
"""PCR, type, what is measured, event data."""

NUMBERS: Final = {"sha1": 4, "sha256": 11, "sha384": 12}
NO_ACTION: Final = 3
SEPARATORS: Final[list[Row]] = [(pcr, 4, bytes(4), bytes(4)) for pcr in range(8)]
BOOT: Final[list[Row]] = [
    (0, 8, b"version 7", b"version 7"),
    (0, 0x80000008, b"firmware volume", b"where it lies"),
    (7, 0x80000001, b"SecureBoot=1", b"SecureBoot=1"),
    *SEPARATORS,
    (4, 0x80000003, b"boot loader", b"device path"),
    (8, 13, b"root=/dev/vda1", b"kernel_cmdline: root=/dev/vda1"),
]
STARTUP: Final[Row] = (0, NO_ACTION, b"", b"StartupLocality\0\3")


def hashed(algorithm: str, row: Row) -> bytes:
    size = hashlib.new(algorithm).digest_size
    return bytes(size) if row[1] == NO_ACTION else hashlib.new(algorithm, row[2]).digest()


def old_event(row: Row) -> bytes:
    return struct.pack("<II20sI", row[0], row[1], hashed("sha1", row), len(row[3])) + row[3]


def new_event(row: Row, algorithms: list[str]) -> bytes:
    digests = b"".join(struct.pack("<H", NUMBERS[name]) + hashed(name, row) for name in algorithms)
    return struct.pack("<III", row[0], row[1], len(algorithms)) + digests + struct.pack("<I", len(row[3])) + row[3]


def spec_id(algorithms: list[str], *, vendor: bytes = b"") -> bytes:
    data = b"Spec ID Event03\0" + struct.pack("<IBBBBI", 0, 0, 2, 105, 2, len(algorithms))
    data += b"".join(struct.pack("<HH", NUMBERS[name], hashlib.new(name).digest_size) for name in algorithms)
    return old_event((0, NO_ACTION, b"", data + bytes((len(vendor),)) + vendor))


def agile(rows: list[Row], algorithms: list[str]) -> bytes:
    return spec_id(algorithms) + b"".join(new_event(row, algorithms) for row in rows)


def replayed(rows: list[Row], algorithm: str, *, locality: int = 0) -> dict[str, str]:
    size = hashlib.new(algorithm).digest_size
    values: dict[int, bytes] = {}
    for row in rows:
        if row[1] != NO_ACTION:
            start = values.get(row[0], bytes(size - 1) + bytes((locality if row[0] == 0 else 0,)))
            values[row[0]] = hashlib.new(algorithm, start + hashed(algorithm, row)).digest()
    return {str(pcr): values[pcr].hex() for pcr in sorted(values)}


def good(name: str, raw: bytes, rows: list[Row], algorithms: list[str], *, locality: int = 0) -> JSON:
    return {
        "name": name,
        "log": raw.hex(),
        "locality": locality,
        "replay": {one: replayed(rows, one, locality=locality) for one in algorithms},
    }


def logs() -> list[JSON]:
    both, three = ["sha1", "sha256"], ["sha1", "sha256", "sha384"]
    vendor = spec_id(["sha256"], vendor=b"vendor") + b"".join(new_event(row, ["sha256"]) for row in BOOT)
    return [
        good("crypto-agile", agile(BOOT, both), BOOT, both),
        good("crypto-agile with three algorithms", agile(BOOT, three), BOOT, three),
        good("started from locality 3", agile([STARTUP, *BOOT], both), BOOT, both, locality=3),
        good("vendor information", vendor, BOOT, ["sha256"]),
        good("the SHA-1 form", b"".join(map(old_event, BOOT)), BOOT, ["sha1"]),
    ]


def malformed() -> list[JSON]:
    both, whole = ["sha1", "sha256"], agile(BOOT, ["sha1", "sha256"])
    rows = {
        "empty": b"",
        "cut short": whole[:-1],
        "a byte more": whole + b"\0",
        "an algorithm missing in a later event": spec_id(both)
        + new_event(BOOT[0], both)
        + new_event(BOOT[1], ["sha256"]),
        "an algorithm twice in an event": spec_id(both) + new_event(BOOT[0], ["sha256", "sha256"]),
        "an algorithm that the header has not": spec_id(both) + new_event(BOOT[0], ["sha256", "sha384"]),
        "an algorithm twice in the header": spec_id(["sha256", "sha256"]),
        "no algorithm": spec_id([]),
        "PCR 24": agile([(24, 4, b"", b"")], both),
        "locality 2": agile([(0, NO_ACTION, b"", b"StartupLocality\0\2")], both),
        "locality twice": agile([STARTUP, STARTUP], both),
        "locality after PCR 0 was extended": agile([BOOT[0], STARTUP], both),
    }
    return [{"name": name, "log": raw.hex()} for name, raw in rows.items()]


def content() -> bytes:
    plain = json.loads((FOLDER / "tpm.json").read_text())["exchanges"][0]["challenge"]
    wished = json.dumps({**json.loads(plain), "log": True}, sort_keys=True, separators=(",", ":"))
    vectors: JSON = {
        "challenge": {"without": plain, "with": wished},
        "logs": logs(),
        "malformed": malformed(),
    }
    return (json.dumps(vectors, indent=2) + "\n").encode()


if __name__ == "__main__":
    (FOLDER / "eventlog.json").write_bytes(content())
