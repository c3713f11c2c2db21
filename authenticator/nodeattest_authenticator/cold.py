"""The cold path's door: what the warm path could not answer is run here, and every failure becomes one line.

The only module that reads the environment, the host name and the real clock.
Exit codes: 0 done; 1 refused or failed; 2 called wrongly.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys

from nodeattest_authenticator.clock import Clock, chance
from nodeattest_authenticator.errors import Failure, Fate
from nodeattest_authenticator.warm import credential_arguments

__all__ = ["main", "report", "tell"]


def main(argv: list[str]) -> int:
    """Run a command, then end the process; a code is returned for refusals, and when stdout is a closed pipe."""
    gc.disable()  # Two hundred milliseconds of life make no garbage worth collecting: 5 ms of CPU.
    arguments = credential_arguments(argv)
    if arguments is None:
        from nodeattest_authenticator.cli import main as cli_main  # noqa: PLC0415 - argparse is not for the exec path

        return _leave(cli_main(argv))
    try:
        answer = _credential(*arguments)
    except Failure as failure:
        return report(failure)
    sys.stdout.buffer.write(answer)
    return _leave(0)


def tell(message: str) -> None:
    """Say something on stderr, which kubelet logs."""
    sys.stderr.write(f"kubelet-authenticator: {message}\n")


def report(failure: Failure) -> int:
    """Say why there is no result; returns the exit code."""
    tell(str(failure))
    return 2 if failure.fate is Fate.USAGE else 1


def _leave(status: int) -> int:
    """End the process at once: by now every file and device is closed, and good order costs 20 ms of CPU."""
    with contextlib.suppress(OSError):  # a closed pipe; the interpreter says so in its own way
        sys.stdout.flush()
        os._exit(status)
    return status


def _credential(cache_dir: str, config: str) -> bytes:
    from nodeattest_authenticator import watchdog  # noqa: PLC0415 - cli needs this module's other names only
    from nodeattest_authenticator.agent import Agent  # noqa: PLC0415 - the same
    from nodeattest_authenticator.answer import credential  # noqa: PLC0415 - the same

    agent = Agent.open(config, cache_dir, hostname=os.uname().nodename, clock=Clock(), chance=chance, tell=tell)
    with agent.storage:
        watchdog.start(agent.settings.timeout_seconds)
        try:
            return credential(agent, os.environb.get(b"KUBERNETES_EXEC_INFO"))
        finally:
            watchdog.stop()
