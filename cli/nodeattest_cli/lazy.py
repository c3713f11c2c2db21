"""A group of commands, each imported only when it is asked for.

Promises: ``--help`` and completion of a group import none of its commands. A group may be extended by other
distributions through an entry point group; a built-in name cannot be taken over. An unknown command is answered with
the nearest one.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click
from click.shell_completion import CompletionItem

__all__ = ["LazyGroup"]


class LazyGroup(click.Group):
    """A group that knows its commands' names, and imports a command when it is asked for."""

    def __init__(
        self,
        *,
        lazy: Mapping[str, tuple[str, str]],
        plugins: str | None = None,
        plugin_help: Mapping[str, str] | None = None,
        **rest: Any,  # noqa: ANN401 - click's own options
    ) -> None:
        """``lazy``: name to ``module:command`` and its line of ``--help``; ``plugins``: an entry point group.

        ``plugin_help``: the lines of those installed commands that are known.
        """
        super().__init__(**rest)
        self._lazy = lazy
        self._plugins = plugins
        self._plugin_help = plugin_help or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the names: built-in ones in their order, then installed ones."""
        return [*self._lazy, *(plugin.name for plugin in self._installed())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None for an unknown one."""
        if cmd_name in self._lazy:
            module, name = self._lazy[cmd_name][0].split(":")
            command: object = getattr(import_module(module), name)
        else:
            plugin = next((plugin for plugin in self._installed() if plugin.name == cmd_name), None)
            command = plugin.load() if plugin is not None else None
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is asked for; an unknown one is answered with the nearest."""
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            if name in self._plugin_help:
                raise click.UsageError(
                    f"{name} comes with another package, which is not installed (docs/install.md)", ctx
                )
            near = difflib.get_close_matches(name, self.list_commands(ctx), n=1, cutoff=0.0)
            raise click.UsageError(f"unknown command {name[:80]!a}; the nearest one is {near[0]}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the names of commands, and the group's own options."""
        found = [CompletionItem(name, help=text) for name, text in self._rows() if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        rows = [(name, text) for name, (_, text) in self._lazy.items()]
        return rows + [(plugin.name, self._help_of(plugin)) for plugin in self._installed()]

    def _help_of(self, plugin: EntryPoint) -> str:
        return self._plugin_help.get(plugin.name, f"(from {plugin.dist.name if plugin.dist else '?'})")

    def _installed(self) -> list[EntryPoint]:
        if self._plugins is None:
            return []
        found = {plugin.name: plugin for plugin in entry_points(group=self._plugins) if plugin.name not in self._lazy}
        return [found[name] for name in sorted(found)]
