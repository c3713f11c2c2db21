"""``nodeattest machines``: the group of its commands."""

from __future__ import annotations

from typing import Final

import click

from nodeattest_cli.lazy import LazyGroup

__all__ = ["machines"]

_COMMANDS: Final = {
    "list": ("nodeattest_cli.machines.list:list_machines", "Show which machines are attested, by what, until when."),
    "reset": (
        "nodeattest_cli.machines.reset:reset_machine",
        "Forget what a machine is pinned to, so that it can bind itself anew.",
    ),
    "rejoin": (
        "nodeattest_cli.machines.rejoin:rejoin",
        "Make a short token for a machine that was off for longer than its certificate.",
    ),
    "adopt": ("nodeattest_cli.machines.adopt:adopt", "Say what to run for nodes that joined without attestation."),
}


class _MachinesGroup(LazyGroup):
    """A group that lists when no command is named, with the options of list."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read ``machines -A`` as ``machines list -A``."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_MachinesGroup, lazy=_COMMANDS)
def machines() -> None:
    """Show which machines are attested, and let one bind itself anew or come back.

    Without a command it lists, with the options of list.
    """
