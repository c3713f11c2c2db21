"""What a command prints. kubelet and systemd log its standard error: one line for each message.

A kind of wait is one line at once and then one a minute, whatever a server writes into it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from nodeattest_authenticator.errors import AgentError, FailureKind
from nodeattest_discovery.node.clock import Clock
from nodeattest_parsing.values import visible_lines

_MINUTE: Final = 60.0


def log(message: str) -> None:
    """Write one line; characters that cannot be seen are escaped, for parts of messages come from servers."""
    sys.stderr.write(visible_lines(f"kubelet-authenticator: {message}"))


def show(*lines: str) -> None:
    """Write each as one line of standard output; characters that cannot be seen are escaped."""
    sys.stdout.write(visible_lines(*lines))


def document(written: str) -> None:
    """Write JSON, or what else has its own lines, to standard output."""
    show(*written.split("\n"))


def moment(seconds: int) -> str:
    """Write a moment as RFC 3339 in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def report(failure: AgentError) -> int:
    """Write why there is no result; returns the exit code: 2 for a wrong call or configuration, else 1."""
    log(str(failure))
    return 2 if failure.kind is FailureKind.USAGE else 1


def reporting(clock: Clock, *, log: Callable[[str], None]) -> Clock:
    """Return a clock that reports each wait."""
    due: dict[str, float] = {}

    def report(kind: str, what: str, until: float) -> None:
        now = clock.monotonic()
        if now < due.get(kind, now):
            return
        due[kind] = now + _MINUTE
        log(f"waiting until {moment(int(until))} for {what}")

    return replace(clock, on_wait=report)
