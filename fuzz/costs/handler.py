"""What a row of the table of costs is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fuzz.target import Target

__all__ = ["KIB", "MIB", "Handler", "runner"]

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A handler of foreign input, with the most that it may cost for any input that it accepts."""

    name: str
    reads: str
    """What, and who may write it."""
    runs: str
    """``loop``: in an event loop, where it delays others; ``thread``: in a thread beside it; ``process``: in a program
    that serves nobody else."""
    run: Callable[[bytes], object]
    """Reads an input as the program does; raises nothing that the handler declares."""
    largest: int
    """Bytes of the largest input."""
    milliseconds: float
    """CPU, as ``measure.milliseconds`` gives it."""
    mebibytes: float
    """Memory, as ``measure.peak`` gives it."""
    worst: Mapping[str, Callable[[], bytes]] = field(repr=False)
    """The worst inputs known, by what makes them so."""
    target: Target | None = None
    """The fuzz target whose mutator and seeds help to find worse ones."""
    strangers: bool = False
    """Whether who is not authenticated, or only by a bootstrap token, reaches it over the network."""


def runner(action: Callable[[bytes], object], *refusals: type[Exception]) -> Callable[[bytes], object]:
    """Make of a parser what raises no declared refusal."""

    def run(data: bytes) -> object:
        try:
            return action(data)
        except refusals:
            return None

    return run
