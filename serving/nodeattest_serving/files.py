"""Files that may be replaced while in use: told apart unread, and what is wrong with a certificate in words."""

from __future__ import annotations

import ssl
from pathlib import Path

__all__ = ["Stamp", "no_password", "said", "stamp"]

Stamp = tuple[int, int, int]
"""Time of the last change, inode and size of a file."""


def no_password() -> str:
    """Keep OpenSSL from asking the terminal for the password of an encrypted key."""
    return ""


def stamp(path: Path) -> Stamp | None:
    """Tell one content of a file from another; None where it cannot be told."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def said(error: Exception) -> str:
    """Say what was found in the place of a certificate and its key."""
    if isinstance(error, ssl.SSLError):
        return "something else, or the key of another certificate"
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else type(error).__name__
