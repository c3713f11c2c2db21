"""Tables of generated pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

_CODE: Final = re.compile(r"(``[^`]+``|`[^`]*`)")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table of cells that are Markdown already."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("| ---", "|---").replace("--- |", "---|") for line in lines)


def cell(text: str) -> str:
    """Write plain text with code in backticks, as a docstring or a description has it, into one cell."""
    parts = _CODE.split(" ".join(text.split()))
    return "".join(code(part) if part.startswith("`") else re.sub(r"([*<\[\\|])", r"\\\1", part) for part in parts)


def code(text: str) -> str:
    """Write a cell that is code."""
    inner = text.strip("`").replace("|", "\\|")
    return f"`` {inner} ``" if "`" in inner else f"`{inner}`"
