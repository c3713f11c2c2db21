"""The cache directory and files in it that only this user can read and write.

Promises: nothing is read through a symbolic link, from another user's file, or from one that others could read.
Imports ``os`` only, for the fast path: ``from __future__ import annotations`` is absent on purpose.
"""

import os

_READ_LIMIT = 1 << 20  # bytes; a credential of a dozen kilobytes is a large one
_TYPE_MASK, _DIRECTORY, _REGULAR = 0o170000, 0o040000, 0o100000  # <sys/stat.h>; the stat module is one more import


class UnsafeFileError(Exception):
    """A directory or file that others may have written or read; the message says what is wrong with it."""


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
