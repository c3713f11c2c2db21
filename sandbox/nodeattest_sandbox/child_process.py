"""Child processes of the sandbox: started with a log, awaited until ready, ended with their parent; and their ports.

``python -m nodeattest_sandbox.child_process PIDFILE COMMAND...`` runs a command that ends with its parent: the command
gets SIGTERM when standard input ends or when this process gets a signal to stop, and SIGKILL if it does not stop in
time; the exit code is the command's. A start that fails shows the end of the log.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Final

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


LOOPBACK: Final = "127.0.0.1"
_START_LIMIT: Final = 90.0  # seconds; a real control plane takes 5 on two idle cores
_STOP_LIMIT: Final = 20.0  # seconds
_LOG_TAIL: Final = 15  # lines shown when a start fails
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class StartFailed(Exception):
    """A process of the control plane did not come up."""


class Process:
    """One child process with its log; it ends when this process does, because its standard input does."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        directory: Path,
        pid_file: Path | None = None,
        *,
        environment: Mapping[str, str] = _NOTHING,
    ) -> None:
        """``environment``: variables besides this process's own."""
        self.name = name
        self.log = directory / f"{name}.log"
        self._pid_file = pid_file
        if pid_file:
            pid_file.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                command,
                cwd=directory,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=_environment(environment),
            )

    @classmethod
    def of_program(
        cls, name: str, command: Sequence[str], directory: Path, *, environment: Mapping[str, str] = _NOTHING
    ) -> Process:
        """Start a program that does not end with its standard input; it ends with this process all the same."""
        pid_file = directory / f"{name}.pid"
        wrapper = [sys.executable, "-m", "nodeattest_sandbox.child_process", str(pid_file)]
        return cls(name, [*wrapper, *command], directory, pid_file, environment=environment)

    def has_begun(self) -> bool:
        """Return whether the server itself has been started."""
        return self._pid_file is None or bool(self._pid_file.exists() and self._pid_file.stat().st_size)

    def pid(self) -> int:
        """Return the pid of the server itself, not of ``die_with_parent``."""
        return int(self._pid_file.read_text(encoding="ascii")) if self._pid_file else self.popen.pid

    def has_ended(self) -> bool:
        """Return whether the server itself has ended; then ``die_with_parent`` has ended, too."""
        try:
            os.kill(self.pid(), 0)
        except ProcessLookupError:
            self.popen.wait(_STOP_LIMIT)
        return self.popen.poll() is not None

    def stop(self) -> None:
        """End the process and wait for it."""
        self.popen.terminate()
        try:
            self.popen.wait(_STOP_LIMIT)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        if self.popen.stdin:
            self.popen.stdin.close()

    def failure(self, why: str) -> StartFailed:
        """Return the error that shows the end of the log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_TAIL:]
        return StartFailed("\n  ".join([f"{self.name} {why}; the end of {self.log}:", *lines]))


def _environment(more: Mapping[str, str]) -> Mapping[str, str]:
    """Return this process's environment, with no proxy on the way to loopback."""
    return {**os.environ, "NO_PROXY": LOOPBACK, "no_proxy": LOOPBACK, "PYTHONUNBUFFERED": "1", **more}


def wait(process: Process, done: Callable[[], bool]) -> None:
    """Wait until it is done; raises StartFailed when the process ends before, or after too long."""
    end = time.monotonic() + _START_LIMIT
    while not done():
        if process.popen.poll() is not None:
            raise process.failure(f"ended with code {process.popen.returncode}")
        if time.monotonic() > end:
            raise process.failure(f"was not ready after {_START_LIMIT:.0f} s")
        time.sleep(0.02)


# Ports of the loopback interface

_PORTS: Final = range(20_000, 32_544)
_BLOCK: Final = 256


def listens(port: int) -> bool:
    """Return whether somebody listens at this port of the loopback interface."""
    try:
        socket.create_connection((LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True


def free_ports(count: int) -> list[int]:
    """Return ports on which nobody listens, and which no other process that calls this gets.

    They are below the range from which systems give ports to clients and to ``bind`` without a port (from 32768 on
    Linux, 49152 elsewhere).
    """
    ports: list[int] = []
    while len(ports) < count:
        with _PORTS_LOCK:
            port = next(_OWN_PORTS)
        with suppress(OSError):
            socket.create_server((LOOPBACK, port)).close()
            ports.append(port)
    return ports


def _reserve_ports() -> Iterator[int]:
    """Yield this process's ports, around and around: a block, reserved by a UDP socket on its first port."""
    while True:
        first = secrets.choice(_PORTS[::_BLOCK])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as reservation, suppress(OSError):
            reservation.bind((LOOPBACK, first))
            yield from cycle(range(first, first + _BLOCK))


_OWN_PORTS: Final = _reserve_ports()
_PORTS_LOCK: Final = threading.Lock()
