"""Standard error of a command, which kubelet and systemd log: one line for each message."""

from __future__ import annotations

import sys

from nodeattest_authenticator.errors import AgentError, FailureKind
from nodeattest_parsing.printable import visible

__all__ = ["log", "report"]


def log(message: str) -> None:
    """Write one line; characters that cannot be seen are escaped, for parts of messages come from servers."""
    sys.stderr.write(f"kubelet-authenticator: {visible(message)}\n")


def report(failure: AgentError) -> int:
    """Write why there is no result; returns the exit code: 2 for a wrong call or configuration, else 1."""
    log(str(failure))
    return 2 if failure.kind is FailureKind.USAGE else 1
