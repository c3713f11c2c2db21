"""Ends a process that hangs past its deadline, for example in name resolution or in a TPM driver.

First SIGALRM raises ``AgentError``. If no Python code runs any more, faulthandler ends the process and prints the stack
without values.
"""

from __future__ import annotations

import faulthandler
import signal
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, NoReturn

from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind

_GRACE: Final = 2
"""Seconds after the deadline for each of the two steps."""
_STDERR: Final = 2


def start(seconds: int) -> None:
    """End this process soon after ``seconds``, unless ``stop`` is called first. Call it from the main thread."""
    signal.signal(signal.SIGALRM, _too_late)
    signal.alarm(seconds + _GRACE)
    faulthandler.dump_traceback_later(seconds + 2 * _GRACE, exit=True, file=_STDERR)


@contextmanager
def running(seconds: int) -> Generator[None]:
    """Run the watchdog during a block."""
    start(seconds)
    try:
        yield
    finally:
        stop()


def stop() -> None:
    """Stop the watchdog. Call it before a fork, which must not happen beside a second thread."""
    signal.alarm(0)
    faulthandler.cancel_dump_traceback_later()


def _too_late(_signal: int, _frame: object) -> NoReturn:
    raise AgentError(
        AgentReason.TIMEOUT,
        "the TPM, a metadata service or name resolution did not answer before the deadline",
        remedy="run kubelet-authenticator evidence to see which one hangs",
        kind=FailureKind.TEMPORARY,
    )
