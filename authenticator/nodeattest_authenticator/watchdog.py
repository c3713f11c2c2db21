"""Ends a process that hangs: soon after its deadline, wherever it is stuck.

Every exchange over the network has a deadline, but name resolution and a TPM library that blocks in C have none. First
a signal raises ``AgentError``; where Python code no longer runs, a thread of faulthandler ends the process and shows
where it stood, without any values.
"""

from __future__ import annotations

import faulthandler
import signal
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, NoReturn

from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind

_GRACE: Final = 2
"""Seconds by which the deadline may be overrun, once for each of the two steps."""
_STDERR: Final = 2


def start(seconds: int) -> None:
    """End this process soon after ``seconds``, unless ``stop`` comes first. For the main thread of a short process."""
    signal.signal(signal.SIGALRM, _too_late)
    signal.alarm(seconds + _GRACE)
    faulthandler.dump_traceback_later(seconds + 2 * _GRACE, exit=True, file=_STDERR)


@contextmanager
def running(seconds: int) -> Generator[None]:
    """Keep the watchdog for the length of a block."""
    start(seconds)
    try:
        yield
    finally:
        stop()


def stop() -> None:
    """Let the process live; before a fork too, which must not find a second thread."""
    signal.alarm(0)
    faulthandler.cancel_dump_traceback_later()


def _too_late(_signal: int, _frame: object) -> NoReturn:
    raise AgentError(
        AgentReason.TIMEOUT,
        "something did not answer until the deadline, mostly the TPM, a metadata service or name resolution",
        remedy="see whether kubelet-authenticator evidence works",
        kind=FailureKind.TEMPORARY,
    )
