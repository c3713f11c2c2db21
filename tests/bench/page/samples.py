"""What a run of the page measured: the samples of each case, and where."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from bench.page.numbers import ratios


@dataclass
class Case:
    """One case: samples by key, each in the unit that the page writes beside it."""

    name: str
    samples: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    notes: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, **values: float) -> None:
        for key, value in values.items():
            self.samples.setdefault(key, []).append(value)

    def median(self, key: str) -> float | None:
        found = self.samples.get(key)
        return median(found) if found else None


@dataclass
class Run:
    """One run of all cases on one machine."""

    date: str
    commit: str
    machine: dict[str, str]
    cases: dict[str, Case]

    def samples(self, case: str, key: str) -> list[float]:
        """Return the samples; none where the case was not possible, or not asked for."""
        found = self.cases.get(case)
        return found.samples.get(key, []) if found else []

    def median(self, case: str, key: str) -> float | None:
        found = self.samples(case, key)
        return median(found) if found else None

    def ratio(self, over: tuple[str, str], under: tuple[str, str]) -> float | None:
        found = self.ratios(over, under)
        return median(found) if found else None

    def ratios(self, over: tuple[str, str], under: tuple[str, str]) -> list[float]:
        """Divide round by round; where the cases have not as many samples, one median by the other."""
        above, below = self.samples(*over), self.samples(*under)
        if len(above) == len(below):
            return ratios(above, below)
        return ratios([median(above)], [median(below)]) if above and below else []

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> Run:
        told = json.loads(file.read_text(encoding="utf-8"))
        cases = {name: Case(**case) for name, case in told["cases"].items()}
        return cls(told["date"], told["commit"], told["machine"], cases)
