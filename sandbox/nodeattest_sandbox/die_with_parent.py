"""``python -m nodeattest_sandbox.die_with_parent PIDFILE COMMAND...``: run a command that ends with its parent.

The command gets SIGTERM when standard input ends (the parent is gone, however it ended) or when this process gets a
signal to stop, and SIGKILL if it does not stop in time; the exit code is the command's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Final

__all__ = ["main"]

_GRACE: Final = 10.0  # seconds between SIGTERM and SIGKILL


def main(arguments: list[str]) -> int:
    """Run the command."""
    pid_file, *command = arguments
    stopping = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    # Before the command runs: a stop in its first moments must not leave it behind.
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True) as child:
        Path(pid_file).write_text(str(child.pid), encoding="ascii")
        threading.Thread(target=_watch_input, args=(stopping,), daemon=True).start()
        while child.poll() is None:
            if stopping.wait(0.1):
                _end(child)
        return child.returncode


def _watch_input(stopping: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 4096):  # no buffered reader: its lock would break the interpreter's end
        pass
    stopping.set()


def _end(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGCONT)  # a stopped process cannot handle SIGTERM
    child.terminate()
    try:
        child.wait(_GRACE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
