"""The demo's results, its progress display, and the tables at its end.

A terminal gets colors and a line that moves, a pipe or a file gets plain lines; colors follow NO_COLOR (rich reads it).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich import box
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Reason

_FRAMES: Final = 12
"""Frames a second."""
_PLAIN_WIDTH: Final = 120
"""Columns of the tables where there is no terminal that has a width."""
_ONE_LINE: Final = frozenset({"node", "machine", "reason", "certificate until"})
"""Columns that are not broken into lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    """A machine that became a node."""

    node: str
    machine: str
    provider: str
    signer: str
    not_after: str
    """RFC 3339, from the certificate itself."""
    proof: str
    """How the API server confirmed the credential's identity."""

    def to_json(self) -> JsonObject:
        """Return the entry of ``joined``."""
        names: JsonObject = {"node": self.node, "machine": self.machine, "provider": self.provider}
        return {**names, "signer": self.signer, "notAfter": self.not_after}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult:
    """An attack and its outcome."""

    attempt: str
    expected: tuple[Reason, ...]
    """Accepted Reasons; usually one."""
    reason: str
    message: str

    @property
    def is_right(self) -> bool:
        """Whether it was refused for an expected Reason."""
        return self.reason in self.expected

    def to_json(self) -> JsonObject:
        """Return the entry of ``refused``."""
        return {"attempt": self.attempt, "reason": self.reason, "message": self.message}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """The demo's outcome."""

    joined: Sequence[JoinResult]
    refused: Sequence[AttackResult]
    """The attacks."""
    problems: Sequence[str]
    """Deviations from what is expected; empty means success."""
    automatic_approval: str = ""
    """Reason of the Cluster's condition once the in-tree signer's automatic approval was closed."""

    def to_json(self) -> JsonObject:
        """Return the one object that ``--json`` prints."""
        return {
            "joined": [entry.to_json() for entry in self.joined],
            "refused": [entry.to_json() for entry in self.refused],
            "automaticApproval": self.automatic_approval,
        }


class LiveDisplay:
    """Prints a line for each fact; on a terminal, the current step below them. Thread-safe."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._moving = console.is_terminal and not console.is_dumb_terminal
        self._live: Live | None = None

    def start_step(self, step: str) -> None:
        """Show the current step in place of the former one."""
        with self._lock:
            if self._moving and self._live is None:
                self._live = Live(console=self._console, refresh_per_second=_FRAMES, transient=True)
                self._live.start()
            if self._live is not None:
                self._live.update(Spinner("dots", Text(f"{step} …")))

    def done(self, fact: str, *, mark: str = "✓", style: str = "green") -> None:
        """Print a fact."""
        with self._lock:
            seconds = f"{time.monotonic() - self._started:5.1f}s  "
            start = Text(f"{mark} ", style) if self._moving else Text(seconds)
            self._console.print(start + Text(fact), soft_wrap=True)

    def refused(self, entry: AttackResult) -> None:
        """Print the outcome of an attack."""
        if entry.is_right:
            self.done(f"refused  {entry.attempt}: {entry.reason}")
        else:
            self.done(f"WRONG    {entry.attempt}: {entry.reason}", mark="✗", style="bold red")

    def close(self) -> None:
        """Stop the display; may be called twice."""
        with self._lock:
            live, self._live = self._live, None
        if live is not None:
            live.stop()


def print_tables(console: Console, joined: Sequence[JoinResult], refused: Sequence[AttackResult]) -> None:
    """Print who joined and who did not."""
    plain = not console.is_terminal
    wide = Console(file=console.file, width=_PLAIN_WIDTH) if plain else console
    columns = ("node", "machine", "provider", "certificate until", "the API server says")
    nodes = _table(f"{len(joined)} joined", columns, plain=plain)
    for one in joined:
        nodes.add_row(one.node, one.machine, one.provider, one.not_after, Text(one.proof))
    right = sum(entry.is_right for entry in refused)
    attacks = _table(f"{right} refused", ("attempt", "reason", "what the attacker gets"), plain=plain)
    for entry in refused:
        style = "green" if entry.is_right else "bold red"
        attacks.add_row(Text(entry.attempt), Text(entry.reason, style=style), Text(entry.message))
    for table in (nodes, attacks):
        wide.print()
        wide.print(table)


def _table(title: str, columns: Sequence[str], *, plain: bool) -> Table:
    shape = box.ASCII2 if plain else box.ROUNDED
    table = Table(title=title, title_justify="left", title_style="bold", box=shape, show_lines=False)
    for column in columns:
        table.add_column(column, no_wrap=column in _ONE_LINE, overflow="fold")
    return table
