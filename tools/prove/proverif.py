"""Runs ProVerif on a scenario or a mutant of it.

Promises: one verdict a query, in the order of the file; everything else is ``RunError``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.prove.cpu_time import child_cpu_seconds
from tools.prove.declared import Edit, Scenario, Verdict
from tools.prove.spin import RunError

__all__ = ["ProVerifResult", "edited", "proverif_program", "queries_of", "run_proverif", "with_query"]

TIMEOUT: Final = 900
"""Seconds for one run, on a machine that has other work."""
_QUERY: Final = re.compile(r"\(\* query: (.+?) \*\)\s*query\b.*?\.\n", re.DOTALL)
_SUMMARY: Final = re.compile(
    r"^(?: - )?(?:Query|Non-interference) .*?(is true|is false|cannot be proved)\b[^\n]*\.$", re.MULTILINE
)
_VERDICTS: Final = {"is true": Verdict.TRUE, "is false": Verdict.FALSE, "cannot be proved": Verdict.UNKNOWN}


@dataclass(frozen=True, slots=True)
class ProVerifResult:
    """What one run said."""

    verdicts: tuple[Verdict, ...]
    seconds: float


def proverif_program() -> str | None:
    """Return the program that PROVERIF names, or the one on the path."""
    return shutil.which(os.environ.get("PROVERIF", "proverif"))


def queries_of(text: str) -> list[str]:
    """Return the names of a scenario's queries, in order."""
    return [match[1] for match in _QUERY.finditer(text)]


def with_query(text: str, name: str) -> str:
    """Return a scenario with one of its queries only."""
    if name not in queries_of(text):
        raise RunError(f"no query is named {name!r}")
    return _QUERY.sub(lambda match: match[0] if match[1] == name else "", text)


def edited(texts: Sequence[str], edits: Sequence[Edit]) -> list[str]:
    """Return the texts with each edit made as often as it says, in all of them together."""
    changed = list(texts)
    for edit in edits:
        found = sum(text.count(edit.old) for text in changed)
        if found != edit.times:
            raise RunError(f"expected {edit.old!r} {edit.times} times in the model, got {found}")
        changed = [text.replace(edit.old, edit.new) for text in changed]
    return changed


def run_proverif(
    program: str, scenario: Scenario, models: Path, work: Path, *, edits: Sequence[Edit] = (), query: str = ""
) -> ProVerifResult:
    """Check a scenario's queries, or one of them, in the folder ``work``."""
    names = (*scenario.libraries, scenario.file)
    texts = edited([(models / name).read_text(encoding="utf-8") for name in names], edits)
    if query:
        texts[-1] = with_query(texts[-1], query)
    for name, text in zip(names, texts, strict=True):
        (work / name).write_text(text, encoding="utf-8")
    libraries = [word for name in scenario.libraries for word in ("-lib", name)]
    begun = child_cpu_seconds()
    try:
        done = subprocess.run(
            [program, *libraries, scenario.file],
            cwd=work,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"ProVerif takes longer than {TIMEOUT} s") from None
    seconds = child_cpu_seconds() - begun
    (work / "proverif.log").write_text(done.stdout, encoding="utf-8")
    summary = done.stdout.partition("Verification summary:")[2]
    verdicts = tuple(_VERDICTS[match[1]] for match in _SUMMARY.finditer(summary))
    expected = 1 if query else len(queries_of(texts[-1]))
    if done.returncode != 0 or len(verdicts) != expected:
        raise RunError(f"expected {expected} verdicts of ProVerif, got {len(verdicts)}:\n{done.stdout[-2000:]}")
    return ProVerifResult(verdicts, seconds)
