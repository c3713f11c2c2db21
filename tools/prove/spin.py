"""Runs Spin: generate the verifier, compile it, search all states.

Promises: a verdict only from a complete search, or from a violation that was found; everything else is ``RunError``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.prove.cpu_time import child_cpu_seconds
from tools.prove.declared import SpinRun

__all__ = ["RunError", "SpinResult", "run_spin", "spin_missing"]

DEPTH: Final = 200_000
"""Steps in the longest path that is searched; the ledger's has about 1000."""
HASH_BITS: Final = 26
"""Size of the table of states, as a power of two."""
TIMEOUT: Final = 900
"""Seconds for one search, on a machine that has other work."""
_STATES: Final = re.compile(r"^\s*([0-9.e+]+) states, stored", re.MULTILINE)


class RunError(Exception):
    """A run gave no verdict."""


@dataclass(frozen=True, slots=True)
class SpinResult:
    """What one search found."""

    fails: str
    """The claim that is violated; empty if none is."""
    states: int
    seconds: float


def spin_missing() -> str:
    """Say what is missing to run Spin; empty if nothing is."""
    missing = [program for program in ("spin", "cc") if shutil.which(program) is None]
    return f"{' and '.join(missing)} not found: run tools/system-packages proof" if missing else ""


def run_spin(run: SpinRun, models: Path, work: Path) -> SpinResult:
    """Search all states of a model in the empty folder ``work``."""
    begun = child_cpu_seconds()
    macros = [f"-D{macro}" for macro in run.defines]
    _call(["spin", *macros, "-a", str(models / run.file)], work, "spin -a")
    _call(["cc", "-O2", "-w", "-DSAFETY", "-DCOLLAPSE", "-DNOFAIR", "-o", "pan", "pan.c"], work, "cc")
    # -E: a replica that waits for ever is no error; -n: no list of lines that no state reached.
    found = _call(["./pan", "-E", "-n", f"-m{DEPTH}", f"-w{HASH_BITS}"], work, "pan")
    states = _STATES.search(found)
    if states is None or "max search depth too small" in found:
        raise RunError(f"the search is not complete:\n{found[-2000:]}")
    count, fails = int(float(states[1])), ""
    if "errors: 0" not in found:
        fails = _violated(run, macros, models, work)
    elif "Search not completed" in found:
        raise RunError(f"the search is not complete:\n{found[-2000:]}")
    return SpinResult(fails, count, child_cpu_seconds() - begun)


def _violated(run: SpinRun, macros: list[str], models: Path, work: Path) -> str:
    """Replay the trail, and return the claim on the line of the assertion that ends it."""
    trail = next(work.glob("*.trail"), None)
    if trail is None:
        raise RunError("an error without a trail")
    model = models / run.file
    replay = _call(["spin", *macros, "-k", str(trail), "-t", str(model)], work, "spin -t", ok=(0, 1))
    line = re.search(r":(\d+), Error: assertion violated", replay)
    text = model.read_text(encoding="utf-8").splitlines()[int(line[1]) - 1] if line else ""
    claim = re.search(r"/\* claim: (.+?) \*/", text)
    if claim is None:
        raise RunError(f"the violation is of no assertion with a claim:\n{replay[-2000:]}")
    return claim[1]


def _call(command: list[str], work: Path, what: str, ok: tuple[int, ...] = (0,)) -> str:
    try:
        done = subprocess.run(
            command, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"{what} takes longer than {TIMEOUT} s") from None
    if done.returncode not in ok:
        raise RunError(f"{what} ends with {done.returncode}:\n{done.stdout[-2000:]}")
    return done.stdout
