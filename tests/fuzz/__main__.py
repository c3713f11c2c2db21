"""``python -m fuzz [TARGET ...] [--seconds N] [--jobs N] [--list]``: a minute each, and a table.

Each target runs in a child process. A run is clean only if the child ended by itself within its time, ran inputs, and
reported no finding. The input of a finding stays among the target's seeds, so that the tests fail until it is mended.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import repeat
from pathlib import Path
from typing import Final

from fuzz.catalogue import CORPUS, TARGETS

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
_ROW: Final = "{:<24} {:>12} {:>12} {:>14}  {}"


def main() -> int:
    """Fuzz the targets; the exit status is 1 for a finding and 2 for a wrong call."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Fuzz each parser for a while.")
    parser.add_argument("names", nargs="*", metavar="TARGET", help="which (all)")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (60)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="targets at a time (one a processor)")
    parser.add_argument("--list", action="store_true", help="name the targets and end")
    options = parser.parse_args()
    if options.list:
        print("\n".join(TARGETS))
        return 0
    names: list[str] = options.names or [*TARGETS]
    seconds: int = options.seconds
    unknown = sorted(set(names) - TARGETS.keys())
    if unknown:
        parser.error(f"no target {', '.join(unknown)}; known are {', '.join(TARGETS)}")
    if seconds < 1 or options.jobs < 1:
        parser.error("--seconds and --jobs are at least 1")
    if find_spec("atheris") is None:
        parser.error("atheris is not installed: it has wheels for Linux on x86-64 and CPython 3.11 to 3.13 only")
    print(_ROW.format("target", "executions", "values", "coverage", "result"), flush=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        findings = list(pool.map(run, names, repeat(seconds)))
    found = [finding for finding in findings if finding]
    print("\n".join(["", *found, f"{len(found)} findings"]))
    return 1 if found else 0


def run(name: str, seconds: int) -> str:
    """Fuzz one target and print its row; returns what was found, or an empty text."""
    seeds = CORPUS / name
    before = set(seeds.iterdir())
    memory = Path("/dev/shm")  # noqa: S108 - a folder in it gets a random name and is private
    with tempfile.TemporaryDirectory(prefix="nodeattest-fuzz-", dir=memory if memory.is_dir() else None) as folder:
        counts, grown = Path(folder, "counts"), Path(folder, "found")
        counts.write_bytes(bytes(16))
        grown.mkdir()
        limits = [f"-max_total_time={seconds}", f"-timeout={TIME_LIMIT}", f"-rss_limit_mb={MEMORY_LIMIT}"]
        reports = [f"-artifact_prefix={seeds}/", "-print_final_stats=1", "-detect_leaks=0"]
        words = [name, str(counts), str(seconds + _GRACE), *limits, *reports, str(grown), str(seeds)]
        status, said = _spawn(words, seconds + _GRACE + _IMPORTS, folder)
        numbers = counts.read_bytes()
    executions, values = (int.from_bytes(part, "little") for part in (numbers[:8], numbers[8:]))
    edges = [int(number) for number in re.findall(r"\bcov: (\d+)", said)] or [0]
    reproducers = sorted(map(str, set(seeds.iterdir()) - before))
    is_clean = status == 0 and executions > 0 and not reproducers
    coverage = f"{edges[0]} + {max(edges) - edges[0]}"
    print(_ROW.format(name, executions, values, coverage, "clean" if is_clean else "FOUND"), flush=True)
    tail = "\n".join(said.splitlines()[-_TAIL:])
    return "" if is_clean else f"{name}: {reproducers or 'no input was left'}\nexit status {status}\n{tail}\n"


def _spawn(words: list[str], seconds: int, folder: str) -> tuple[int, str]:
    """Run the child; returns its exit status, -1 where it did not end in time, and what it said."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "fuzz.child", *words],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": folder},
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


if __name__ == "__main__":
    sys.exit(main())
