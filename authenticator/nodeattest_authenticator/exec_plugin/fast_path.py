"""The warm path: a cached credential reaches stdout with ``os`` and ``time`` imported and nothing else.

Promises: no byte of a credential is printed unless the directory and the file are ours alone, the file is whole, it was
made for this very ``KUBERNETES_EXEC_INFO`` and this very configuration file, and its renewal moment lies ahead.
Leaves everything else (issue, renewal, every explanation) to ``cold``. This module is also the one home of the cache
file's header and of reading private files, because ``storage`` and ``cache`` may import it, never the other way round.

The file: one header line, then for each exec info the info's bytes and the ready answer's bytes, then the PEM record.
``from __future__ import annotations`` is absent on purpose: it is an import.

Sources: client-go plugin/pkg/client/auth/exec/exec.go.
"""

import os
import time

__all__ = [
    "CREDENTIAL_FILE",
    "DEFAULT_CACHE_DIR",
    "DEFAULT_CONFIG",
    "FAILURE_FILE",
    "FAILURE_MAGIC",
    "MAGIC",
    "SKEW",
    "UnsafeFileError",
    "config_identity",
    "credential_arguments",
    "is_time_valid",
    "lookup",
    "open_directory",
    "parse_header",
    "read_private",
    "run",
]

DEFAULT_CACHE_DIR = "/var/lib/kubelet-authenticator"
DEFAULT_CONFIG = "/etc/kubernetes/kubelet-authenticator.json"
CREDENTIAL_FILE = "credential"
FAILURE_FILE = "failure"
MAGIC = b"kubelet-authenticator/1"
FAILURE_MAGIC = b"kubelet-authenticator-failure/1"
SKEW = 300
"""Seconds by which a certificate may begin in the future: the clocks of node and signer differ (in-tree backdating)."""

_READ_LIMIT = 1 << 20  # bytes; a credential of a dozen kilobytes is a large one
_FIXED_FIELDS = 6
_TYPE_MASK, _DIRECTORY, _REGULAR = 0o170000, 0o040000, 0o100000  # <sys/stat.h>; the stat module is one more import


class UnsafeFileError(Exception):
    """A directory or file that somebody else may have written or read; the message says what is wrong with it."""


def run(argv: list[str]) -> int | None:
    """Answer from the cache, or repeat the remembered refusal: the exit code. None: the slow path must handle it."""
    arguments, info = credential_arguments(argv), os.environb.get(b"KUBERNETES_EXEC_INFO")
    if arguments is None or info is None:
        return None
    found = lookup(*arguments, info, time.time())
    if found is None:
        return None
    status, text = found
    _write(1 if status == 0 else 2, text)
    return status


def credential_arguments(argv: list[str]) -> tuple[str, str] | None:
    """Tell (cache directory, configuration file) of a plain ``credential`` call; None for everything else."""
    words = argv[1:]
    if words and words[0] == "credential":
        words = words[1:]
    elif words and not words[0].startswith(("--cache-dir", "--config")):
        return None
    found = {"--cache-dir": DEFAULT_CACHE_DIR, "--config": DEFAULT_CONFIG}
    while words:
        name, equals, value = words.pop(0).partition("=")
        if name not in found or not (equals or words):
            return None
        found[name] = value if equals else words.pop(0)
    return found["--cache-dir"], found["--config"]


def lookup(cache_dir: str, config: str, info: bytes, now: float) -> tuple[int, bytes] | None:
    """Find what the cache holds for this call, exit status and text; None if the slow path must handle the call."""
    try:
        directory = open_directory(cache_dir)
        try:
            return _found(directory, config_identity(config), info, now)
        finally:
            os.close(directory)
    except (OSError, ValueError, UnsafeFileError):
        return None


def _found(directory: int, identity: bytes, info: bytes, now: float) -> tuple[int, bytes] | None:
    try:
        data = read_private(directory, CREDENTIAL_FILE)
    except FileNotFoundError:
        return _remembered_refusal(directory, identity, now)
    (not_before, renew_at, not_after), made_for, pairs, _ = parse_header(data)
    if now >= not_after:
        return _remembered_refusal(directory, identity, now)
    if made_for != identity or now >= renew_at or not is_time_valid(not_before, not_after, now):
        return None
    for start, middle, end in pairs:
        if data[start:middle] == info:
            return 0, data[middle:end]
    return None


def _remembered_refusal(directory: int, identity: bytes, now: float) -> tuple[int, bytes] | None:
    # Without a certificate client-go runs the plugin for each request: the answer must be cheap and cause no request.
    head, _, message = read_private(directory, FAILURE_FILE).partition(b"\n")
    magic, until, made_for, _ = head.split(b" ")
    if magic != FAILURE_MAGIC or made_for != identity or not now < int(until) <= now + 3600:
        return None
    return 1, message.partition(b"\n")[0] + b" (next attempt in %d s)\n" % (int(until) - now + 1)


def parse_header(data: bytes) -> tuple[tuple[int, int, int], bytes, list[tuple[int, int, int]], int]:
    """Split the header: (notBefore, renewal, notAfter), configuration identity, spans of the pairs, start of the PEM.

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
    """Tell whether a certificate's times (seconds since the epoch) admit it now, ``SKEW`` tolerated at its begin."""
    return not_before - SKEW <= now < not_after


def config_identity(path: str) -> bytes:
    """Name the configuration file's present content without reading it; another content has another identity."""
    info = os.stat(path)  # noqa: PTH116 - pathlib is an import
    return b"%d.%d.%d.%d" % (info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size)


def open_directory(path: str) -> int:
    """Open a directory that only this user can enter; raises ``UnsafeFileError`` for any other."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:
        raise UnsafeFileError(f"{path} is a symbolic link or no directory") from None
    return _checked(descriptor, path, _DIRECTORY, 0o700)


def read_private(directory: int | None, name: str) -> bytes:
    """Read a file that only this user can read and write; raises ``UnsafeFileError`` otherwise."""
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


def _write(descriptor: int, text: bytes) -> None:
    while text:
        text = text[os.write(descriptor, text) :]
