"""``nodeattest``: the operator's tool, also ``kubectl nodeattest``.

Promises: a user's mistake is one line on standard error and exit code 2, never a traceback; each command is imported
only when it runs, so ``--help`` is quick. The environment is read by the commands' options
and by the demo's command, and nowhere below.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Final

import click

from nodeattest_cli.errors import UserError

__all__ = ["cli", "main"]

_NAME: Final = "nodeattest"
_USER_ERROR: Final = 2
_INTERRUPTED: Final = 130
"""128 + SIGINT, as shells say it."""

_COMMANDS: Final = {
    "demo": ("nodeattest_cli.demo.command:demo", "Watch nodes join and impostors be refused, on this machine."),
    "explain": ("nodeattest_cli.explain.command:explain", "Replay a stored request: each check, expected and got."),
    "machines": ("nodeattest_cli.machines:machines", "Which machines are attested, until when; reset or readmit one."),
    "policy": ("nodeattest_cli.policies:policy", "Check attestation policies; learn register values for them."),
    "version": ("nodeattest_cli.version:version", "Print the version."),
}
"""Name to ``module:command`` and the line that ``--help`` shows."""


class _Lazy(click.Group):
    """A group that knows its commands' names and imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """List the names in order."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import a command; None for an unknown one."""
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name][0].split(":")
        command: object = getattr(import_module(module), name)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Show the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def cli() -> None:
    """Let only attested machines become nodes of Cluster API clusters."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    try:
        code: object = cli.main(arguments, prog_name=_NAME, standalone_mode=False)
    except click.exceptions.Exit as done:
        return done.exit_code
    except (click.exceptions.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; Python must not stumble over it once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except click.exceptions.NoArgsIsHelpError as asked:
        click.echo(asked.format_message(), err=True)
        return _USER_ERROR
    except (click.ClickException, UserError) as error:
        message = error.format_message() if isinstance(error, click.ClickException) else str(error)
        click.echo(f"{_NAME}: {' '.join(message.split())}", err=True)
        return _USER_ERROR
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
