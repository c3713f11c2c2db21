"""What people see while the demo runs: live tables on a terminal, plain lines elsewhere, and the tables at the end.

Promises: nothing is drawn over a pipe or a file; colours follow the terminal and NO_COLOR (rich reads both). Methods
may be called from several threads.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Final, Protocol, Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from nodeattest_cli.demo.results import Joined, Refused

__all__ = ["Lines", "LiveTables", "Show", "joined_table", "make_show", "refused_table"]

_FRAMES: Final = 8
"""Pictures a second of the live display."""
_PLAIN_WIDTH: Final = 132
"""Columns of the tables where there is no terminal that has a width."""


class Show(Protocol):
    """Tells people what happens."""

    def began(self, step: str) -> None:
        """Say what is under way; it ends what was under way before."""
        ...

    def done(self, fact: str) -> None:
        """Say what is there now."""
        ...

    def joined(self, entry: Joined) -> None:
        """Say that a machine became a node."""
        ...

    def refused(self, entry: Refused) -> None:
        """Say how an impostor fared."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def make_show(console: Console) -> Show:
    """Choose by what the console writes to."""
    return LiveTables(console) if console.is_terminal and not console.is_dumb_terminal else Lines(console)


def joined_table(entries: list[Joined], *, plain: bool = False) -> Table:
    """Lay out who joined."""
    table = _table(f"{len(entries)} joined", ("node", "machine", "provider", "certificate until", "proof"), plain)
    for entry in sorted(entries, key=lambda one: one.node):
        table.add_row(entry.node, entry.machine, entry.provider, entry.not_after, Text(entry.proof))
    return table


def refused_table(entries: list[Refused], *, plain: bool = False) -> Table:
    """Lay out who was refused."""
    right = sum(entry.is_right for entry in entries)
    table = _table(f"{right} refused", ("attempt", "reason", "what the impostor is told"), plain)
    for entry in entries:
        style = "green" if entry.is_right else "bold red"
        table.add_row(Text(entry.attempt), Text(entry.reason, style=style), Text(entry.message))
    return table


def _table(title: str, columns: tuple[str, ...], plain: bool) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.ASCII2 if plain else box.ROUNDED)
    for column in columns:
        table.add_column(column, no_wrap=column in {"node", "machine", "reason", "certificate until"})
    return table


class Lines:
    """One line an event, for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._started = time.monotonic()

    def began(self, step: str) -> None:
        """Say nothing: a log wants facts."""

    def done(self, fact: str) -> None:
        """Say what is there now."""
        self._line(fact)

    def joined(self, entry: Joined) -> None:
        """Say that a machine became a node."""
        self._line(f"joined   {entry.node} ({entry.machine}) by {entry.provider}, until {entry.not_after}")

    def refused(self, entry: Refused) -> None:
        """Say how an impostor fared."""
        self._line(f"{'refused ' if entry.is_right else 'WRONG   '} {entry.attempt}: {entry.reason}")

    def _line(self, text: str) -> None:
        with self._lock:
            seconds = time.monotonic() - self._started
            self._console.print(f"{seconds:5.1f}s  {text}", markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is open."""


class LiveTables:
    """Tables that grow while one looks."""

    def __init__(self, console: Console) -> None:
        self._lock = threading.Lock()
        self._facts: list[str] = []
        self._step = ""
        self._joined: list[Joined] = []
        self._refused: list[Refused] = []
        self._spinner = Spinner("dots")
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=_FRAMES)

    def began(self, step: str) -> None:
        """Say what is under way."""
        with self._lock:
            self._step = step

    def done(self, fact: str) -> None:
        """Say what is there now."""
        with self._lock:
            self._facts.append(fact)

    def joined(self, entry: Joined) -> None:
        """Say that a machine became a node."""
        with self._lock:
            self._joined.append(entry)

    def refused(self, entry: Refused) -> None:
        """Say how an impostor fared."""
        with self._lock:
            self._refused.append(entry)

    def _render(self) -> RenderableType:
        with self._lock:
            parts: list[RenderableType] = [Text.assemble((" ✓ ", "green"), fact) for fact in self._facts]
            if self._joined:
                parts += ["", joined_table(self._joined)]
            if self._refused:
                parts += ["", refused_table(self._refused)]
            if self._step:
                self._spinner.update(text=Text(self._step))
                parts.append(self._spinner)
            return Group(*parts)

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.began("")
        self._live.stop()


def plain_console(console: Console) -> Console:
    """Give a console without a terminal the width that the tables need."""
    return console if console.is_terminal else Console(file=console.file, width=_PLAIN_WIDTH)
