"""Private files of the cache directory, and the layout of the two that the fast path reads.

Symbolic links, other users' files and files that other users can read are refused.
Credential file: one header line; for each exec info its bytes and the bytes of the answer; certificate and key in PEM.
Failure file: one header line, then the message that the fast path repeats. Both are bound to a configuration file.
Imports ``os`` only, without ``from __future__ import annotations``, to keep the fast path fast.
"""

import os

CREDENTIAL_FILE = "credential"
FAILURE_FILE = "failure"
MAGIC = b"kubelet-authenticator/1"
FAILURE_MAGIC = b"kubelet-authenticator-failure/1"
MAX_CLOCK_SKEW = 300
"""Seconds by which notBefore may lie in the future, because clocks differ (as much as in-tree signers backdate)."""

_FIXED_FIELDS = 6
_READ_LIMIT = 1 << 20  # bytes
_TYPE_MASK, _DIRECTORY, _REGULAR = 0o170000, 0o040000, 0o100000  # <sys/stat.h>; the stat module is one more import


class UnsafeFileError(Exception):
    """A directory or file that other users may read or write."""


def open_directory(path: str) -> int:
    """Open a directory that only this user can enter. Raises ``UnsafeFileError``."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:
        raise UnsafeFileError(f"{path} is a symbolic link or not a directory") from None
    return _checked(descriptor, path, _DIRECTORY, 0o700)


def read_private(directory: int | None, name: str) -> bytes:
    """Read a file that only this user can read and write. Raises ``UnsafeFileError``."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(name, flags, dir_fd=directory)
    except FileNotFoundError:
        raise
    except OSError as error:  # ELOOP for a symbolic link, ENXIO for a socket, EACCES for a foreign file
        raise UnsafeFileError(f"{name} cannot be opened as a plain file: {error.strerror}") from None
    descriptor = _checked(descriptor, name, _REGULAR, 0o600)
    try:
        chunks: list[bytes] = []
        room = _READ_LIMIT
        while chunk := os.read(descriptor, room):
            chunks.append(chunk)
            room -= len(chunk)
        if not room:
            raise UnsafeFileError(f"{name} is larger than {_READ_LIMIT} bytes")
        return b"".join(chunks)
    finally:
        os.close(descriptor)


def _checked(descriptor: int, name: str, kind: int, mode: int) -> int:
    info = os.fstat(descriptor)
    problem = ""
    if info.st_mode & _TYPE_MASK != kind:
        problem = "is not of the expected file type"
    elif info.st_uid != os.geteuid():
        problem = f"belongs to user {info.st_uid}, not to {os.geteuid()}"
    elif info.st_mode & 0o077:
        problem = f"has mode {info.st_mode & 0o7777:04o}, expected {mode:04o}"
    if problem:
        os.close(descriptor)
        raise UnsafeFileError(f"{name} {problem}")
    return descriptor


def parse_header(data: bytes) -> tuple[tuple[int, int, int], bytes, list[tuple[int, int, int]], int]:
    """Return (notBefore, renewal, notAfter), config fingerprint, spans of the answers, and the start of the PEM.

    Raises ValueError for another format and for an incomplete file.
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
    """Return whether a certificate is valid at ``now``, with tolerance for clock skew. Times are epoch seconds."""
    return not_before - MAX_CLOCK_SKEW <= now < not_after


def fingerprint_of_config(path: str) -> bytes:
    """Identify the content of the configuration file by its metadata, without reading it."""
    info = os.stat(path)
    return b"%d.%d.%d.%d" % (info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size)
