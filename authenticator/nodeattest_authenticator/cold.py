"""The cold path's door: what the warm path could not answer is run here, and every failure becomes one line.

The only module that reads the environment, the host name and the real clock.
Exit codes: 0 done; 1 refused or failed; 2 called wrongly.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import NoReturn

from nodeattest_authenticator.clock import Clock, chance
from nodeattest_authenticator.errors import Failure, Fate
from nodeattest_authenticator.warm import credential_arguments

__all__ = ["main", "report", "tell"]


def main(argv: list[str]) -> int:
    """Run a command; returns the exit code, or ends the process once a credential is written."""
    gc.disable()  # Two hundred milliseconds of life make no garbage worth collecting: 5 ms of CPU.
    arguments = credential_arguments(argv)
    if arguments is None:
        from nodeattest_authenticator.cli import main as cli_main  # noqa: PLC0415 - argparse is not for the exec path

        return cli_main(argv)
    try:
        _credential(*arguments)
    except Failure as failure:
        return report(failure)


def tell(message: str) -> None:
    """Say something on stderr, which kubelet logs."""
    sys.stderr.write(f"kubelet-authenticator: {message}\n")


def report(failure: Failure) -> int:
    """Say why there is no result; returns the exit code."""
    tell(str(failure))
    return 2 if failure.fate is Fate.USAGE else 1


def _credential(cache_dir: str, config: str) -> NoReturn:
    from nodeattest_authenticator import watchdog  # noqa: PLC0415 - cli needs this module's other names only
    from nodeattest_authenticator.agent import Agent  # noqa: PLC0415 - the same
    from nodeattest_authenticator.answer import credential  # noqa: PLC0415 - the same

    agent = Agent.open(config, cache_dir, hostname=os.uname().nodename, clock=Clock(), chance=chance, tell=tell)
    with agent.storage:
        watchdog.start(agent.settings.timeout_seconds)
        try:
            answer = credential(agent, os.environb.get(b"KUBERNETES_EXEC_INFO"))
        finally:
            watchdog.stop()
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
    os._exit(0)  # Everything is closed and flushed; taking the interpreter down in good order costs 15 ms of CPU.
