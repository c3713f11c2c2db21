"""The demo's progress display, and the tables at its end.

Promises: a terminal gets colours and a line that moves, a pipe or a file gets plain lines; colours follow NO_COLOR
(rich reads it). Methods may be called from several threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

from rich import box
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from nodeattest_cli.demo.results import AttackResult, JoinResult

__all__ = ["LiveDisplay", "print_tables"]

_FRAMES: Final = 12
"""Frames a second."""
_PLAIN_WIDTH: Final = 120
"""Columns of the tables where there is no terminal that has a width."""
_ONE_LINE: Final = frozenset({"node", "machine", "reason", "certificate until"})
"""Columns that are not broken into lines."""


class LiveDisplay:
    """Prints a line for each fact; on a terminal, the current step below them."""

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

    def done(self, fact: str) -> None:
        """Print a fact."""
        self._line("✓", "green", fact)

    def joined(self, entry: JoinResult) -> None:
        """Print that a machine joined."""
        self._line(
            "✓", "green", f"joined   {entry.node} ({entry.machine}) by {entry.provider}, until {entry.not_after}"
        )

    def refused(self, entry: AttackResult) -> None:
        """Print the outcome of an attack."""
        if entry.is_right:
            self._line("✓", "green", f"refused  {entry.attempt}: {entry.reason}")
        else:
            self._line("✗", "bold red", f"WRONG    {entry.attempt}: {entry.reason}")

    def close(self) -> None:
        """Stop the display; may be called twice."""
        with self._lock:
            live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _line(self, mark: str, style: str, fact: str) -> None:
        with self._lock:
            seconds = f"{time.monotonic() - self._started:5.1f}s  "
            start = Text(f"{mark} ", style) if self._moving else Text(seconds)
            self._console.print(start + Text(fact), soft_wrap=True)


def print_tables(console: Console, joined: Sequence[JoinResult], refused: Sequence[AttackResult]) -> None:
    """Print who joined and who did not."""
    plain = not console.is_terminal
    wide = Console(file=console.file, width=_PLAIN_WIDTH) if plain else console
    for table in (_joined(joined, plain=plain), _refused(refused, plain=plain)):
        wide.print()
        wide.print(table)


def _joined(entries: Sequence[JoinResult], *, plain: bool) -> Table:
    columns = ("node", "machine", "provider", "certificate until", "the API server says")
    table = _table(f"{len(entries)} joined", columns, plain=plain)
    for entry in entries:
        table.add_row(entry.node, entry.machine, entry.provider, entry.not_after, Text(entry.proof))
    return table


def _refused(entries: Sequence[AttackResult], *, plain: bool) -> Table:
    right = sum(entry.is_right for entry in entries)
    table = _table(f"{right} refused", ("attempt", "reason", "what the attacker gets"), plain=plain)
    for entry in entries:
        style = "green" if entry.is_right else "bold red"
        table.add_row(Text(entry.attempt), Text(entry.reason, style=style), Text(entry.message))
    return table


def _table(title: str, columns: Sequence[str], *, plain: bool) -> Table:
    shape = box.ASCII2 if plain else box.ROUNDED
    table = Table(title=title, title_justify="left", title_style="bold", box=shape, show_lines=False)
    for column in columns:
        table.add_column(column, no_wrap=column in _ONE_LINE, overflow="fold")
    return table
