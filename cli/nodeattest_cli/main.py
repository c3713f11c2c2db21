"""``nodeattest``: the operator's tool, also ``kubectl nodeattest``.

Promises: what goes wrong is one line on standard error and an exit code of ``errors.ExitCode``, never a traceback;
each command is imported only when it runs, so ``--help`` is quick. The environment is read by the commands' options
and by the demo's command, and nowhere below.
"""

from __future__ import annotations

import os
import sys
from typing import Final

import click

from nodeattest_cli.errors import ExitCode, UserError
from nodeattest_cli.lazy import LazyGroup
from nodeattest_controller import logs
from nodeattest_parsing.printable import visible_lines

__all__ = ["cli", "main"]

_NAME: Final = "nodeattest"
_EXPECTED: Final = (click.ClickException, click.exceptions.Abort, KeyboardInterrupt, OSError, UserError)
_OURS: Final = "nodeattest_"
"""How our packages' names begin: one of these that is missing is a bug or a broken installation."""

_COMMANDS: Final = {
    "addon-auth": (
        "nodeattest_cli.addon_auth.command:addon_auth",
        "Pass on to add-ons who calls, without credentials.",
    ),
    "cluster-info": (
        "nodeattest_cli.cluster_info.command:cluster_info",
        "Publish, show, sign, verify or take over where a cluster is.",
    ),
    "completion": ("nodeattest_cli.completion:completion", "Print a script that completes commands in your shell."),
    "discovery": ("nodeattest_cli.discovery:discovery", "Serve cluster-info to nodes that know a bootstrap token."),
    "doctor": (
        "nodeattest_cli.doctor.command:doctor",
        "Look at an installation in both clusters: what is wrong, and what to do.",
    ),
    "endorsement-keys": (
        "nodeattest_cli.endorsement_keys.command:endorsement_keys",
        "Register the endorsement keys of machines' TPMs.",
    ),
    "evidence": (
        "nodeattest_cli.evidence.command:evidence",
        "Export what explains a machine, without secrets.",
    ),
    "explain": ("nodeattest_cli.explain.command:explain", "Replay a stored request: each check, expected and got."),
    "issuer": ("nodeattest_cli.issuer.command:issuer", "Let tokens of service accounts be verified anywhere."),
    "machines": (
        "nodeattest_cli.machines.command:machines",
        "Which machines are attested, until when; reset or readmit one.",
    ),
    "policy": ("nodeattest_cli.policies:policy", "Check attestation policies; learn register values for them."),
    "render": ("nodeattest_cli.render:render", "Render Cluster API's bootstrap configuration for attested machines."),
    "token": ("nodeattest_cli.token.command:token", "Create, list and delete bootstrap tokens, as kubeadm token does."),
    "version": (
        "nodeattest_cli.version:version",
        "Print version and commit, and which evidence is understood.",
    ),
}
"""Name to ``module:command`` and the line that ``--help`` shows."""
_PLUGINS: Final = "nodeattest.commands"
"""Entry points of further commands: ``demo`` comes with nodeattest-sandbox."""
_PLUGIN_HELP: Final = {"demo": "Watch nodes with TPMs join and attackers be refused, on this machine."}


def _print_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        from nodeattest_cli.version import version

        context.exit(context.invoke(version))


@click.group(
    cls=LazyGroup,
    lazy=_COMMANDS,
    plugins=_PLUGINS,
    plugin_help=_PLUGIN_HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="As version.")
def cli() -> None:
    """Let only attested machines become nodes of Cluster API clusters."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    logs.handle_unconfigured(sys.stderr)
    try:
        code: object = cli.main(arguments, prog_name=_NAME, standalone_mode=False)
    except click.exceptions.Exit as done:
        return done.exit_code
    except _EXPECTED as error:
        return _exit_code(error)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(_OURS):
            raise
        return _fail(_not_installed(error.name), ExitCode.USAGE)
    return code if isinstance(code, int) else ExitCode.DONE


def _exit_code(error: BaseException) -> ExitCode:
    """Say what went wrong, and with which code that ends."""
    match error:
        case OSError():
            return _give_up_output(error)
        case click.exceptions.NoArgsIsHelpError():
            click.echo(visible_lines(*error.format_message().splitlines()), err=True, nl=False)
            return ExitCode.USAGE
        case click.ClickException():
            return _fail(error.format_message(), ExitCode.USAGE)
        case UserError():
            return _fail(str(error), error.code)
        case _:
            return ExitCode.INTERRUPTED


def _fail(message: str, code: ExitCode) -> ExitCode:
    """Say why on one line; a message may hold what a server or an object said."""
    click.echo(visible_lines(f"{_NAME}: {' '.join(message.split())}"), err=True, nl=False)
    return code


def _not_installed(module: str) -> str:
    """Say what brings a package."""
    what = "requirements-cli.txt of the release (docs/install.md)"
    return f"the Python package {module.partition('.')[0]} is not installed; install {what}"


def _give_up_output(error: OSError) -> ExitCode:
    """Say why, unless the reader has gone; Python must not stumble over the output once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not isinstance(error, BrokenPipeError):
        where = f"{error.filename}: " if error.filename is not None else ""
        click.echo(visible_lines(f"{_NAME}: {where}{error.strerror or type(error).__name__}"), err=True, nl=False)
    return ExitCode.NO_ACCESS


if __name__ == "__main__":
    sys.exit(main())
