"""Layout of the credential file and of the failure file, and what binds both to a configuration file.

The credential file: one header line, then for each exec info the info's bytes and the ready response's bytes, then the
PEM record. The failure file: one header line, then the line that the fast path repeats.
Imports ``os`` only, for the fast path: ``from __future__ import annotations`` is absent on purpose.
"""

import os

CREDENTIAL_FILE = "credential"
FAILURE_FILE = "failure"
MAGIC = b"kubelet-authenticator/1"
FAILURE_MAGIC = b"kubelet-authenticator-failure/1"
MAX_CLOCK_SKEW = 300
"""Seconds by which a certificate may begin in the future: the clocks of node and signer differ (in-tree backdating)."""

_FIXED_FIELDS = 6


def parse_header(data: bytes) -> tuple[tuple[int, int, int], bytes, list[tuple[int, int, int]], int]:
    """Split the header: (notBefore, renewal, notAfter), config fingerprint, spans of the pairs, start of the PEM.

    Raises ValueError for another format, and for a file that is not whole.
    """
    head, newline, _ = data.partition(b"\n")
    fields = head.split(b" ")
    if fields[0] != MAGIC or len(fields) < _FIXED_FIELDS or not newline or int(fields[1]) != len(data):
        raise ValueError("not a whole credential file of this version")
    lengths = [int(field) for field in fields[_FIXED_FIELDS:]]
    if len(lengths) % 2 or min(lengths, default=0) < 0 or sum(lengths) > len(data):
        raise ValueError("the lengths in the header do not fit")
    position = len(head) + 1
    pairs: list[tuple[int, int, int]] = []
    for index in range(0, len(lengths), 2):
        middle = position + lengths[index]
        pairs.append((position, middle, middle + lengths[index + 1]))
        position = middle + lengths[index + 1]
    return (int(fields[2]), int(fields[3]), int(fields[4])), fields[5], pairs, position


def is_time_valid(not_before: int, not_after: int, now: float) -> bool:
    """Return whether a certificate is valid now by its times (seconds since the epoch), the clock skew tolerated."""
    return not_before - MAX_CLOCK_SKEW <= now < not_after


def fingerprint_of_config(path: str) -> bytes:
    """Identify the configuration file's present content without reading it; other content has another fingerprint."""
    info = os.stat(path)
    return b"%d.%d.%d.%d" % (info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size)
