"""Foreign text as it may be shown: it forges no line, moves no cursor and floods no log.

Promises: what comes out is printable (``str.isprintable``). Nothing else prints what servers, nodes and files say:
``tools/check_foreign_text.py`` enforces it.
"""

from __future__ import annotations

__all__ = ["one_line", "visible", "visible_lines"]


def visible(text: str) -> str:
    """Escape what a terminal obeys or does not show, line ends included."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def visible_lines(*lines: str) -> str:
    """Make one line of each, whatever it holds; each has its end."""
    return "".join(f"{visible(line)}\n" for line in lines)


def one_line(text: str, limit: int) -> str:
    """Put a blank for what is not printable; of what is longer than ``limit`` characters, "…" is the last."""
    kept = "".join(one if one.isprintable() else " " for one in text[:limit])
    return kept if len(text) <= limit else f"{kept[:-1]}…"
