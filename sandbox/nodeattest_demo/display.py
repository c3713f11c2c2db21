"""The demo's results, its progress display, and the tables at its end. Colors follow NO_COLOR (rich reads it)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Reason

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


class Display:
    """Prints a line for each fact, with the seconds since the start. Thread-safe."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()

    def done(self, fact: str, *, style: str = "") -> None:
        """Print a fact."""
        self._console.print(Text(f"{time.monotonic() - self._started:5.1f}s  ") + Text(fact, style), soft_wrap=True)

    def refused(self, entry: AttackResult) -> None:
        """Print the outcome of an attack."""
        mark, style = ("refused  ", "green") if entry.is_right else ("WRONG    ", "bold red")
        self.done(f"{mark}{entry.attempt}: {entry.reason}", style=style)


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
