"""``nodeattest``: the operator's tool, also ``kubectl nodeattest``.

What goes wrong is one line on standard error and an exit code of ``output.ExitCode``, never a traceback. Each command
is imported only when it runs, so ``--help`` and completion are quick. The environment is read by the commands' options
and by the demo's command, and nowhere below.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final

import click

from nodeattest_cli.output import ExitCode, UserError
from nodeattest_controller import logs
from nodeattest_parsing.values import visible_lines
from nodeattest_providers.version import describe

_NAME: Final = "nodeattest"
_EXPECTED: Final = (click.ClickException, click.exceptions.Abort, KeyboardInterrupt, OSError, UserError)
_OURS: Final = "nodeattest_"
"""Prefix of our packages: a missing one is a bug or a broken installation."""
_PLUGINS: Final = "nodeattest.commands"
"""Entry points of further commands: ``demo`` comes with nodeattest-sandbox."""
_SETTINGS: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True}
_PLUGIN_HELP: Final = {"demo": "Watch nodes with TPMs join and attackers be refused, on this machine."}


class _LazyCommand(click.Command):
    """A command that is known by its name and its line of ``--help`` until it runs."""

    def __init__(self, name: str, target: str, line: str) -> None:
        """``target``: ``module:command``."""
        super().__init__(name, help=line, short_help=line)
        self._target = target

    def load(self) -> click.Command:
        """Import the command."""
        module, _, name = self._target.partition(":")
        command: object = getattr(import_module(module), name)
        if not isinstance(command, click.Command):
            raise TypeError(f"expected a command at {self._target}, got {type(command).__name__}")
        return command


class _Group(click.Group):
    """A group of commands in the order of its table; each is imported when it is called."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command to call."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, _LazyCommand) else command, rest

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(self.commands)


def _group(name: str, line: str, **commands: tuple[str, str]) -> _Group:
    """Make a group; ``commands``: name to ``module:command`` below this package, and its line of ``--help``."""
    group = _Group(name, help=line, short_help=line)
    for command, (target, said) in commands.items():
        group.add_command(_LazyCommand(command, f"nodeattest_cli.{target}", said))
    return group


@click.command()
def version() -> None:
    """Print version and commit, and which evidence is understood."""
    click.echo(visible_lines(*describe(_NAME, "signer").splitlines()), nl=False)


def _print_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        context.exit(context.invoke(version))


@click.group(cls=_Group, context_settings=_SETTINGS)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="As version.")
def cli() -> None:
    """Let only attested machines become nodes of Cluster API clusters."""


_COMMANDS: Final[tuple[click.Command, ...]] = (
    _group(
        "addon-auth",
        "Tell add-ons who calls, without credentials (docs/addon-auth.md).",
        gateway=("addon_auth:gateway", "Forward users' requests to add-ons, with who asks."),
        sidecar=("addon_auth:sidecar", "Verify who calls the add-on beside it."),
    ),
    _group(
        "cluster-info",
        "Publish or show where a cluster is and whom to trust (docs/discovery.md).",
        publish=("cluster_info:publish", "Publish where the cluster is and whom to trust."),
        show=("cluster_info:show", "Show it: server, CAs with their pins, who signed."),
    ),
    _group(
        "discovery",
        "Serve cluster-info to nodes that know a bootstrap token.",
        serve=("serving:serve_discovery", "Serve cluster-info of one workload cluster."),
    ),
    _LazyCommand(
        "doctor",
        "nodeattest_cli.doctor.command:doctor",
        "Look at an installation in both clusters: what is wrong, and what to do.",
    ),
    _group(
        "endorsement-keys",
        "Register the endorsement keys of TPMs.",
        **{"import": ("endorsement_keys:import_keys", "Print the objects that register the keys of a file.")},
    ),
    _group(
        "evidence",
        "Keep what explains a machine, for a place without access to the clusters.",
        export=("explain.command:export", "Write what explains a machine into one file without secrets."),
    ),
    _LazyCommand(
        "explain", "nodeattest_cli.explain.command:explain", "Replay a stored request: each check, expected and got."
    ),
    _group(
        "issuer",
        "Let anybody verify tokens of a cluster's service accounts without asking its API server (docs/issuer.md).",
        verify=("issuer:verify", "Verify a token as a strict relying party, and show its claims."),
        publish=("issuer:publish", "Keep a bucket, blobs or a directory equal to an issuer's keys."),
        serve=("serving:serve_issuer", "Serve the documents of a folder, over HTTPS."),
    ),
    _group(
        "machines",
        "Show which machines are attested, and let one bind itself anew or come back.",
        list=("machines.list:list_machines", "Show which machines are attested, by what, until when."),
        reset=(
            "machines.records:reset_machine",
            "Forget what a machine is pinned to, so that it can bind again.",
        ),
        rejoin=(
            "machines.rejoin:rejoin",
            "Make a short token for a machine that was off for longer than its certificate.",
        ),
        adopt=("machines.adopt:adopt", "Say what to run for nodes that joined without attestation."),
    ),
    _group(
        "policy",
        "Check attestation policies, simulate them, or propose register values for one.",
        check=("policy.check:check", "Check every NodeAttestationPolicy of some files."),
        simulate=("policy.simulate:simulate", "Show which machines a policy would refuse at their next renewal."),
        learn=("policy.learn:learn", "Propose allowed PCR values from what machines booted."),
    ),
    _LazyCommand(
        "render",
        "nodeattest_cli.render:render",
        "Render Cluster API's bootstrap configuration for attested machines.",
    ),
    _group(
        "token",
        "Make a bootstrap token, with kubeadm's options and output (docs/discovery.md#tokens).",
        create=("token:create", "Create a bootstrap token in the cluster, and print it."),
    ),
    version,
)
for _each in (
    *_COMMANDS,
    *(_LazyCommand(one.name, one.value, _PLUGIN_HELP.get(one.name, one.name)) for one in entry_points(group=_PLUGINS)),
):
    if _each.name not in cli.commands:  # no plugin replaces a built-in command
        cli.add_command(_each)


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
        missing = error.name.partition(".")[0]
        install = "install requirements-cli.txt of the release (docs/install.md)"
        return _fail(f"the Python package {missing} is not installed; {install}", ExitCode.USAGE)
    return code if isinstance(code, int) else ExitCode.DONE


def _exit_code(error: BaseException) -> ExitCode:
    """Print what went wrong, and return the exit code for it."""
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
    """Print a message on one line; it may hold what a server or an object said."""
    click.echo(visible_lines(f"{_NAME}: {' '.join(message.split())}"), err=True, nl=False)
    return code


def _give_up_output(error: OSError) -> ExitCode:
    """Print the error unless the reader has gone; Python must not stumble over the output once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not isinstance(error, BrokenPipeError):
        where = f"{error.filename}: " if error.filename is not None else ""
        click.echo(visible_lines(f"{_NAME}: {where}{error.strerror or type(error).__name__}"), err=True, nl=False)
    return ExitCode.NO_ACCESS


if __name__ == "__main__":
    sys.exit(main())
