"""Files that may be replaced while in use: change detection by stat, and messages about certificate files."""

from __future__ import annotations

import ssl
from pathlib import Path

__all__ = ["Stamp", "describe_error", "no_password", "stamp"]

Stamp = tuple[int, int, int]
"""Time of the last change, inode and size of a file."""


def no_password() -> str:
    """Keep OpenSSL from asking the terminal for the password of an encrypted key."""
    return ""


def stamp(path: Path) -> Stamp | None:
    """Identify a file's content by stat; None if the file cannot be read."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def describe_error(error: Exception) -> str:
    """Describe what was found in place of a certificate and its key, without quoting it."""
    if isinstance(error, ssl.SSLError):
        return "something else, or the key of another certificate"
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else type(error).__name__
