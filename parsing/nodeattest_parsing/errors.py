"""The one error of all parsers."""

from __future__ import annotations

__all__ = ["ParseError"]


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
        """What was got, and where."""
        return f"{self.got} at {self.position}" if self.position else self.got
