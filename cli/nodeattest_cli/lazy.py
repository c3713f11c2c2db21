"""A group of commands, each imported only when it is asked for.

Promises: ``--help`` of a group imports none of its commands. A group may be extended by other distributions through an
entry point group; a built-in name cannot be taken over.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click

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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the commands without importing them."""
        rows = [(name, text) for name, (_, text) in self._lazy.items()]
        rows += [(plugin.name, self._help_of(plugin)) for plugin in self._installed()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def _help_of(self, plugin: EntryPoint) -> str:
        return self._plugin_help.get(plugin.name, f"(from {plugin.dist.name if plugin.dist else '?'})")

    def _installed(self) -> list[EntryPoint]:
        if self._plugins is None:
            return []
        found = {plugin.name: plugin for plugin in entry_points(group=self._plugins) if plugin.name not in self._lazy}
        return [found[name] for name in sorted(found)]
