"""A group of commands, each imported only when it is asked for.

Promises: ``--help`` of a group imports none of its commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

__all__ = ["LazyGroup"]


class LazyGroup(click.Group):
    """A group that knows its commands' names, and imports a command when it is asked for."""

    def __init__(self, *, lazy: Mapping[str, tuple[str, str]], **rest: Any) -> None:  # noqa: ANN401 - click's own options
        """``lazy``: name to ``module:command`` and the line that ``--help`` shows."""
        super().__init__(**rest)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """List the names in order."""
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import a command; None for an unknown one."""
        if cmd_name not in self._lazy:
            return None
        module, name = self._lazy[cmd_name][0].split(":")
        command: object = getattr(import_module(module), name)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Show the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._lazy.items()])
