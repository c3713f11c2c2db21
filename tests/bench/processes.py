"""What a process uses, as the kernel counts it (proc(5))."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
KIB_A_MIB = 1024


def cpu_seconds(*pids: int) -> float:
    """Return the user and system time of the processes, together."""
    return sum(_cpu_seconds(pid) for pid in pids)


def _cpu_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS


def resident(pid: int, field: str = "VmRSS") -> float:
    """Return the resident memory of a process in MiB; ``VmHWM`` is the most that it had.

    Raises ``ValueError`` for a process that is over, and only not waited for: it has no such line.
    """
    found = re.search(rf"^{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise ValueError(f"process {pid} has no {field}")
    return int(found[1]) / KIB_A_MIB


def own_cpu() -> float:
    times = os.times()
    return times.user + times.system


def first_line(path: Path, start: str) -> str:
    """Return what stands after the colon of the first line that begins so."""
    lines: Iterable[str] = path.read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(start)), "")
