"""Programs that run for a moment and are waited for: every one ends with the demo, however that ends.

Safe to use from several threads; ``close`` ends what still runs, and nothing can be started afterwards.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Children", "Finished"]

_STOP_LIMIT: Final = 5.0
"""Seconds between SIGTERM and SIGKILL."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that ended."""

    code: int
    output: str
    errors: str

    @property
    def last_line(self) -> str:
        """The last line on standard error, or of the output."""
        lines = (self.errors or self.output).strip().splitlines()
        return lines[-1] if lines else f"exit code {self.code}"


class Children:
    """Runs programs."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._closed = False

    def run(
        self, command: Sequence[str | Path], *, limit: float, environment: Mapping[str, str] | None = None
    ) -> Finished:
        """Run a program to its end; after ``limit`` seconds it is killed, and its exit code says so."""
        with self._lock:
            if self._closed:
                raise RuntimeError("nothing may be started any more")
            process = subprocess.Popen(
                [str(word) for word in command],
                env={**self._environment, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C goes to us, and we end it in order
            )
            self._running.add(process)
        try:
            output, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            errors += f"\nkilled after {limit:.0f} s"
        finally:
            with self._lock:
                self._running.discard(process)
        return Finished(process.returncode, output, errors)

    def close(self) -> None:
        """End everything that runs."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(_STOP_LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
