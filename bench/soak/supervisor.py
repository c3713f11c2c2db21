"""Keeps a controller running, as a Deployment does: one that ends, or is killed, is started again after a moment.

A controller ends by itself when it cannot renew its Lease in time; a fresh process takes part again.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import dataclass, field

from bench.environment import BenchEnvironment
from bench.processes import cpu_seconds, resident
from nodeattest_cli.demo.world import start_controller
from nodeattest_sandbox.child_process import StartFailed

PAUSE = 1.0
"""Seconds between two checks of the process, hence the longest until it is started again."""


@dataclass
class Life:
    """What one controller has used, as seen last."""

    began: float
    """CPU seconds at the first look."""
    cpu: float
    first: float
    """MiB of memory at the first look."""
    resident: float


@dataclass
class Supervisor:
    env: BenchEnvironment
    lives: list[Life] = field(default_factory=list[Life])
    _pid: int = 0
    _started: int = 1
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> None:
        """Look after the environment's controller from now on."""
        self._pid = self.env.controller_pid
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def mark(self) -> None:
        """Count what is used from now on."""
        with self._lock:
            self.lives = self.lives[-1:]
            for life in self.lives:
                life.began, life.first = life.cpu, life.resident

    def kill(self) -> None:
        """End the present controller without a word."""
        os.kill(self._pid, signal.SIGKILL)

    def end(self) -> None:
        """Look after it no longer; it runs on."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        self._look(fresh=True)
        while not self._stop.wait(PAUSE):
            if not self._look(fresh=False):
                self._start()

    def _start(self) -> None:
        self._started += 1
        directory = self.env.directory / f"controller-{self._started}"
        try:
            self._pid = start_controller(self.env.world, directory, self.env.tools, self.env.stack).pid()
        except (OSError, StartFailed) as error:  # a frozen server, a busy machine: another follows
            print(f"a controller did not start: {error}", file=sys.stderr)
            return
        self._look(fresh=True)

    def _look(self, *, fresh: bool) -> bool:
        """Note what the process has used; False when there is none."""
        try:
            cpu, memory = cpu_seconds(self._pid), resident(self._pid)
        except (OSError, ValueError):
            return False
        with self._lock:
            if fresh:
                self.lives.append(Life(cpu, cpu, memory, memory))
            self.lives[-1].cpu, self.lives[-1].resident = cpu, memory
        return True
