"""Entry point of every call that the fast path does not answer.

``credential`` runs without argparse; ``commands.cli`` runs every other command. A failure is one line of log.
Exit codes: 0 success, 1 refused or failed, 2 invalid command line or configuration.
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
    """Run a command and end the process. Return an exit code only after a failure, or if stdout is a closed pipe."""
    gc.disable()  # saves 5 ms of CPU in a process of 200 ms
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
    """End the process at once: files and devices are closed, and the interpreter's shutdown costs 20 ms of CPU."""
    with contextlib.suppress(OSError):  # a closed pipe, which the interpreter reports at its own exit
        sys.stdout.flush()
        os._exit(status)
    return status
