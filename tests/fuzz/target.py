"""What a fuzz target is: a law that any bytes must keep.

A law says whether the parser gave a value. A refusal that the parser declares is no value; every other exception, a
value that is written otherwise than it was read, and time or memory beyond the runner's bounds are findings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Law = Callable[[bytes], bool]
Plain = Callable[[bytes, int], bytes]
"""libFuzzer's own mutation of bytes, to at most so many."""


class BrokenLawError(Exception):
    """A parser gave a value, but not the one that it promises."""


@dataclass(frozen=True, slots=True)
class Target:
    """One parser under its law; its seeds are in ``tests/vectors/fuzz/<name>``."""

    name: str
    law: Law
    max_len: int = 4096
    """Bytes of an input."""


def require(kept: bool, promise: str) -> None:
    """Raise ``BrokenLawError`` unless the promise is kept."""
    if not kept:
        raise BrokenLawError(promise)
