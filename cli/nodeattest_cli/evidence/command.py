"""``nodeattest evidence``: the group of its commands."""

from __future__ import annotations

from typing import Final

import click

from nodeattest_cli.lazy import LazyGroup

__all__ = ["evidence"]

_COMMANDS: Final = {
    "export": (
        "nodeattest_cli.evidence.export:export",
        "Write what explains a machine into one file without secrets.",
    ),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def evidence() -> None:
    """Keep what explains a machine, for a place without access to the clusters."""
