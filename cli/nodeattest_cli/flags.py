"""Flags of commands that serve, as click passes them, by the types that they have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nodeattest_serving.settings import SettingsError

__all__ = ["path", "positive", "text"]


def text(flags: Mapping[str, object], name: str) -> str | None:
    """Read a text; None where none, or an empty one, was given."""
    value = flags[name]
    return value if isinstance(value, str) and value else None


def path(flags: Mapping[str, object], name: str) -> Path | None:
    """Read a path; None where none was given."""
    value = flags[name]
    return value if isinstance(value, Path) else None


def positive(flags: Mapping[str, object], name: str) -> float:
    """Read a number above 0; raises ``SettingsError``."""
    value = flags[name]
    if not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise SettingsError(f"--{name.replace('_', '-')}: expected more than 0, got {value}")
    return float(value)
