"""Runs one target in a child process and reads what libFuzzer says of it.

Promises: a run is clean only if the child ended by itself within its time, ran inputs, and reported no finding. The
input of a finding stays among the target's seeds, so that the tests fail until it is mended and guard it ever after.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fuzz.catalogue import CORPUS
from fuzz.target import Target

ROOT: Final = Path(__file__).parents[1]
TIME_LIMIT: Final = 5
"""Seconds for one input; an honest one takes milliseconds, and other processes may hold the processor."""
MEMORY_LIMIT: Final = 1024
"""MiB of the whole process."""
_GRACE: Final = 60
"""Seconds beyond the run's own, for seeds and the last input."""
_IMPORTS: Final = 240
"""Seconds at most until the instrumented packages are imported: two on a calm machine."""
_TAIL: Final = 30
"""Lines shown of a child that found something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one run went."""

    name: str
    executions: int
    values: int
    """Inputs for which the parser gave a value."""
    coverage: tuple[int, int]
    """Edges that the seeds reached, and all that the run reached."""
    reproducer: Path | None
    trouble: str
    """Empty if nothing was found; else the end of the child's words."""


def run(target: Target, seconds: int) -> Outcome:
    """Fuzz one target."""
    seeds = CORPUS / target.name
    before = set(seeds.iterdir())
    with tempfile.TemporaryDirectory(prefix="nodeattest-fuzz-", dir=_memory()) as folder:
        counts, found = Path(folder, "counts"), Path(folder, "found")
        counts.write_bytes(bytes(16))
        found.mkdir()
        arguments = [
            f"-max_total_time={seconds}",
            f"-timeout={TIME_LIMIT}",
            f"-rss_limit_mb={MEMORY_LIMIT}",
            f"-artifact_prefix={seeds}/",
            "-print_final_stats=1",
            "-detect_leaks=0",
            *(str(found), str(seeds)),
        ]
        status, said = _spawn(
            ["fuzz.child", target.name, str(counts), str(seconds + _GRACE), *arguments],
            seconds + _GRACE + _IMPORTS,
            TMPDIR=folder,
        )
        numbers = counts.read_bytes()
    executions, values = (int.from_bytes(part, "little") for part in (numbers[:8], numbers[8:]))
    reproducer = next(iter(sorted(set(seeds.iterdir()) - before)), None)
    clean = status == 0 and executions > 0 and reproducer is None
    return Outcome(
        name=target.name,
        executions=executions,
        values=values,
        coverage=_coverage(said),
        reproducer=reproducer,
        trouble="" if clean else f"exit status {status}\n" + "\n".join(said.splitlines()[-_TAIL:]),
    )


def _spawn(words: list[str], seconds: int, **environment: str) -> tuple[int, str]:
    """Run a module with arguments; returns its exit status, -1 where it did not end in time, and what it said."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, f"the run did not end within {seconds} s"
    return done.returncode, done.stdout


def _memory() -> Path | None:
    """Find where files cost no disk; None: wherever the system puts temporary ones."""
    memory = Path("/dev/shm")  # noqa: S108 - a folder in it gets a random name and is private
    return memory if memory.is_dir() else None


def _coverage(said: str) -> tuple[int, int]:
    edges = [int(number) for number in re.findall(r"\bcov: (\d+)", said)]
    first = re.search(r"INITED cov: (\d+)", said)
    return (int(first[1]) if first else 0, max(edges, default=0))
