"""What a command prints. kubelet and systemd log its standard error: one line for each message.

A kind of wait is one line at once and then one a minute, whatever a server writes into it; systemd shows the line
as the unit's status, too.
Source: sd_notify(3); systemd.service(5), ``NotifyAccess=``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from nodeattest_authenticator.errors import AgentError, FailureKind
from nodeattest_discovery.node.clock import Clock
from nodeattest_parsing.values import visible, visible_lines

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


def reporting(clock: Clock, *, log: Callable[[str], None], notify_socket: str | None) -> Clock:
    """Return a clock that reports each wait; ``notify_socket`` is systemd's, None where there is none."""
    due: dict[str, float] = {}

    def report(kind: str, what: str, until: float) -> None:
        now = clock.monotonic()
        if now < due.get(kind, now):
            return
        due[kind] = now + _MINUTE
        message = f"waiting until {moment(int(until))} for {what}"
        log(message)
        notify_status(message, notify_socket)

    return replace(clock, on_wait=report)


def notify_status(text: str, notify_socket: str | None) -> None:
    """Let ``systemctl status`` show a line; empty: none. Does nothing where nobody listens."""
    if not notify_socket or notify_socket[0] not in "/@":
        return
    import socket

    address = "\0" + notify_socket[1:] if notify_socket[0] == "@" else notify_socket
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        # A line end would begin another variable.
        sender.sendto(f"STATUS={visible(text)}".encode(), address)
