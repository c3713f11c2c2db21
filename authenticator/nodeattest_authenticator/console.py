"""Standard error of a command, which kubelet and systemd log: one line for each message."""

from __future__ import annotations

import sys

from nodeattest_authenticator.errors import Failure, Fate

__all__ = ["report", "tell"]


def tell(message: str) -> None:
    """Write one line."""
    sys.stderr.write(f"kubelet-authenticator: {message}\n")


def report(failure: Failure) -> int:
    """Write why there is no result; returns the exit code: 2 for a wrong call or configuration, else 1."""
    tell(str(failure))
    return 2 if failure.fate is Fate.USAGE else 1
