"""Entry point of every call that the fast path does not answer.

Plain ``credential`` calls run without argparse, all others by ``commands.cli``. A failure becomes one line on standard
error. Exit codes: 0 done; 1 refused or failed; 2 wrong call or configuration.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys

from nodeattest_authenticator import console
from nodeattest_authenticator.errors import AgentError
from nodeattest_authenticator.exec_plugin.fast_path import credential_arguments


def main(argv: list[str]) -> int:
    """Run a command, then end the process; a code is returned for refusals, and when stdout is a closed pipe."""
    gc.disable()  # A process of 200 ms leaves no garbage worth collecting: 5 ms of CPU.
    arguments = credential_arguments(argv)
    if arguments is None:
        from nodeattest_authenticator.commands.cli import main as run_command

        return _leave(run_command(argv))
    from nodeattest_authenticator.exec_plugin import handle

    try:
        handle.run(*arguments)
    except AgentError as failure:
        return console.report(failure)
    return _leave(0)


def _leave(status: int) -> int:
    """End the process at once: every file and device is closed by now, and the interpreter's end costs 20 ms of CPU."""
    with contextlib.suppress(OSError):  # a closed pipe; the interpreter says so in its own way
        sys.stdout.flush()
        os._exit(status)
    return status
