"""How the pages write numbers and tables."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from statistics import median

DASH = "\u2013"
"""An en dash: between two ends, and where nothing was measured."""
NOTHING = DASH
TIMES = "\u00d7"


def number(value: float) -> str:
    """Write three digits, or all before the point."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread(samples: Sequence[float] | None, unit: str = "") -> str:
    """Write the median, and the least and the greatest of several samples."""
    if not samples:
        return NOTHING
    ends = f" ({number(min(samples))}{DASH}{number(max(samples))})" if len(samples) > 1 else ""
    return f"{number(median(samples))}{f' {unit}' if unit else ''}{ends}"


def times(value: float | None) -> str:
    """Write a ratio."""
    return NOTHING if value is None else f"{number(value)} {TIMES}"


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Divide pair by pair; a pair whose second figure is 0 has no ratio."""
    return [above / below for above, below in zip(over, under, strict=True) if below]


def replaced(page: str, name: str, generated: str) -> str:
    """Put a generated part between its two marks."""
    begin, end = marks(name)
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no part {name!r}: it needs the lines {begin!r} and {end!r}")
    return f"{before}{begin}\n\n{generated.strip()}\n\n{end}{after}"


def marks(name: str) -> tuple[str, str]:
    return f"<!-- begin {name}: written by make bench -->", f"<!-- end {name} -->"


def wrapped(text: str, indent: str = "") -> list[str]:
    """Break a line of a page."""
    return textwrap.wrap(text, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
