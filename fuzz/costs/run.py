"""Runs the search for costs of one handler in a child process, and keeps what was found.

Promises: a run is clean only if the child ended by itself and says so. The input of a finding stays under
``tests/vectors/costs/<handler>``, where a test fails until it is mended, and its worst input a row of the table.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fuzz.costs.handler import Handler
from fuzz.costs.search import HEADER
from fuzz.run import ROOT, spawn

__all__ = ["FINDINGS", "CostOutcome", "search"]

FINDINGS: Final = ROOT / "tests" / "vectors" / "costs"
_GRACE: Final = 300
"""Seconds beyond the run's own, on a busy machine: imports, the worst inputs themselves, and the last input."""
_TAIL: Final = 20
"""Lines shown of a child that ended otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostOutcome:
    """How one run went."""

    name: str
    executions: int
    milliseconds: float
    mebibytes: float
    reproducer: Path | None
    trouble: str
    """Empty if nothing was found."""


def search(handler: Handler, seconds: int, *, findings: Path = FINDINGS) -> CostOutcome:
    """Search for so many seconds."""
    with tempfile.TemporaryDirectory(prefix="nodeattest-costs-") as folder:
        shared = Path(folder, "input")
        shared.write_bytes(bytes(HEADER + handler.largest))
        words = ["fuzz.costs.search", handler.name, str(seconds), str(shared)]
        status, said = spawn(words, seconds + _GRACE, PYTHONWARNINGS="ignore")
        content = shared.read_bytes()
    size = int.from_bytes(content[8:HEADER], "little")
    result = _result(said) if status == 0 else None
    why = str(result["why"]) if result else f"exit status {status}\n" + "\n".join(said.splitlines()[-_TAIL:])
    return CostOutcome(
        name=handler.name,
        executions=int(result["executions"]) if result else int.from_bytes(content[:8], "little"),
        milliseconds=float(result["milliseconds"]) if result else 0.0,
        mebibytes=float(result["mebibytes"]) if result else 0.0,
        reproducer=_kept(findings / handler.name, content[HEADER : HEADER + size]) if why and size else None,
        trouble=why,
    )


def _result(said: str) -> dict[str, float | str] | None:
    try:
        return json.loads(said.splitlines()[-1])
    except (ValueError, IndexError):
        return None


def _kept(folder: Path, data: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(data).hexdigest()[:16]
    path.write_bytes(data)
    return path
