"""Generated pages: their tables, and the command that writes one anew."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

_CODE: Final = re.compile(r"(``[^`]+``|`[^`]*`)")


def rewrite(markdown: Callable[[str], str], description: str | None) -> None:
    """Write the page that the command line names anew; ``markdown`` makes it of what it was."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("file", type=Path, metavar="FILE")
    file: Path = parser.parse_args().file
    file.write_text(markdown(file.read_text(encoding="utf-8")), encoding="utf-8")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table of cells that are Markdown already."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("| ---", "|---").replace("--- |", "---|") for line in lines)


def cell(text: str) -> str:
    """Write plain text with code in backticks, as a docstring or a description has it, into one cell."""
    parts = _CODE.split(" ".join(text.split()))
    shown = (_code_span(part) if part.startswith("`") else re.sub(r"([*<\[\\|])", r"\\\1", part) for part in parts)
    return "".join(shown)


def code(text: str) -> str:
    """Write a cell that is code."""
    return _code_span(f"`{text}`")


def _code_span(text: str) -> str:
    inner = text.strip("`").replace("|", "\\|")
    return f"`` {inner} ``" if "`" in inner else f"`{inner}`"
