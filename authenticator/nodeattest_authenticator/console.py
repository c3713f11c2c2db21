"""Output of the commands. kubelet and systemd log standard error, so each message is one line.

Each kind of wait is logged at once and then once a minute, regardless of how often its text changes.
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
    """Write one line to standard error. Escape invisible characters, because parts of messages come from servers."""
    sys.stderr.write(visible_lines(f"kubelet-authenticator: {message}"))


def show(*lines: str) -> None:
    """Write lines to standard output, with invisible characters escaped."""
    sys.stdout.write(visible_lines(*lines))


def document(written: str) -> None:
    """Write a text of several lines to standard output."""
    show(*written.split("\n"))


def moment(seconds: int) -> str:
    """Format epoch seconds as RFC 3339 in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def report(failure: AgentError) -> int:
    """Log a failure and return the exit code: 2 for an invalid command line or configuration, else 1."""
    log(str(failure))
    return 2 if failure.kind is FailureKind.USAGE else 1


def reporting(clock: Clock, *, log: Callable[[str], None] = log) -> Clock:
    """Return a clock that logs each wait, for a command that a person or a systemd unit runs."""
    due: dict[str, float] = {}

    def report(kind: str, what: str, until: float) -> None:
        now = clock.monotonic()
        if now < due.get(kind, now):
            return
        due[kind] = now + _MINUTE
        log(f"waiting until {moment(int(until))} for {what}")

    return replace(clock, on_wait=report)
