"""Splits a stream of chunks into lines in linear time, whatever the chunks' sizes.

A line longer than the limit is refused, or skipped, before it is buffered.
Source: the watch stream is newline-delimited JSON (Kubernetes API concepts, "Efficient detection of changes").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["LineBuffer"]

_ENDLESS: Final = 8
"""A line of more than so many times the limit is not waited for."""


class LineBuffer:
    """Collects chunks until a newline comes; joins each line once."""

    def __init__(self, limit: int, skipped: Callable[[], None] | None = None) -> None:
        """``skipped`` is called for a line that is too long, instead of raising an error."""
        self._limit = limit
        self._skipped = skipped
        self._pending: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that this chunk completes, without their newlines and without blank ones."""
        head, *rest = chunk.split(b"\n")
        self._hold(head)
        lines: list[bytes] = []
        for piece in rest:
            if self._size <= self._limit:
                lines.append(b"".join(self._pending))
            elif self._skipped is not None:
                self._skipped()
            self._pending, self._size = [], 0
            self._hold(piece)
        return [line for line in lines if line.strip()]

    @property
    def incomplete(self) -> bool:
        """Whether the stream, if it ended now, would have ended within a line."""
        return self._size > 0

    def _hold(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._limit:
            self._pending = []
            if self._skipped is None or self._size > self._limit * _ENDLESS:
                raise ValueError(f"a line of more than {self._limit} bytes")
        elif piece:
            self._pending.append(piece)
