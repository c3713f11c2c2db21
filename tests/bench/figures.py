"""One measured figure, and how figures are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Figure:
    name: str
    value: float
    unit: str
    target: str
    """What the project aims at; empty where the figure only explains another."""
    note: str = ""
    most: float | None = None
    """A bound: above it the measurement fails. None: a figure that only informs."""

    @property
    def is_over(self) -> bool:
        return self.most is not None and self.value > self.most

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def table(figures: Sequence[Figure]) -> str:
    rows = [("figure", "measured", "target", "")]
    rows += [(one.name, f"{one.value:.4g} {one.unit}".strip(), one.target or "-", one.note) for one in figures]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
