"""The one error of all parsers, the types of parsed JSON and YAML, and foreign text as it may be shown.

What is shown is printable: it forges no line, moves no cursor and floods no log.
"""

from __future__ import annotations


class ParseError(ValueError):
    """A text is not what was expected. No part of the text enters the message: it may hold a credential."""

    def __init__(self, expected: str, got: str, position: str | None = None) -> None:
        self.expected = expected
        self.got = got
        self.position = position
        """Where in the text, such as ``line 3``; None where no place is known."""
        super().__init__(f"expected {expected}, got {self.found}")

    @property
    def found(self) -> str:
        return f"{self.got} at {self.position}" if self.position else self.got


JsonValue = str | int | float | bool | None | list["JsonValue"] | dict[str, "JsonValue"]
JsonObject = dict[str, JsonValue]

IntegerJsonValue = JsonValue
IntegerJsonObject = JsonObject
"""JSON whose numbers are integers, which the parsers check."""


def visible(text: str) -> str:
    """Escape what a terminal obeys or does not show, line ends included."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def visible_lines(*lines: str) -> str:
    return "".join(f"{visible(line)}\n" for line in lines)


def one_line(text: str, limit: int) -> str:
    """Put a blank for what is not printable; of what is longer than ``limit`` characters, "…" is the last."""
    kept = "".join(one if one.isprintable() else " " for one in text[:limit])
    return kept if len(text) <= limit else f"{kept[:-1]}…"
