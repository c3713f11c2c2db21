"""``nodeattest token create``.

Promises: standard output holds the token, or what was asked to be printed of it, and nothing else; that it is a
powerful credential is printed to standard error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import click
from click.core import ParameterSource

from nodeattest_cli.connection import Connection, cluster_options, run
from nodeattest_cli.errors import UserError
from nodeattest_cli.output import output_option, print_exactly, print_lines
from nodeattest_cli.token.configuration import token_specs
from nodeattest_cli.token.factory import DEFAULT_TTL, TokenSpec, make, store, warning
from nodeattest_cli.token.input import read_token
from nodeattest_cli.token.join_command import Joiner, check_certificate_key, check_provider, join_command
from nodeattest_cli.token.model import token_view
from nodeattest_cli.token.output import FORMATS, format_tokens
from nodeattest_discovery.secret import DEFAULT_GROUP, TokenSecret
from nodeattest_discovery.token import generate
from nodeattest_kube.client import ApiClient

__all__ = ["create"]

_OF_TOKENS: Final = {"token": "TOKEN"} | {
    name: f"--{name.replace('_', '-')}" for name in ("token_file", "usages", "groups", "ttl", "description")
}


@click.command()
@click.argument("token", required=False)
@click.option("--token-file", metavar="FILE", help="Read the token from a file; - is standard input.")
@click.option("--usages", multiple=True, help="signing, authentication or both, with commas or repeated (both).")
@click.option("--groups", multiple=True, help=f"Extra groups of the user that authenticates with it ({DEFAULT_GROUP}).")
@click.option("--ttl", default=DEFAULT_TTL, show_default=True, help="When it expires, such as 1h30m; 0 is never.")
@click.option("--description", default="", help="What it is for.")
@click.option("--config", metavar="FILE", help="Create the bootstrapTokens of a kubeadm InitConfiguration instead.")
@click.option("--print-join-command", is_flag=True, help="Print the command that joins with it, instead of the token.")
@click.option(
    "--join-with",
    type=click.Choice([one.value for one in Joiner]),
    default=Joiner.KUBEADM.value,
    show_default=True,
    help="Whose command that is.",
)
@click.option("--provider", metavar="NAME", help="How machines prove what they are, for that of kubelet-authenticator.")
@click.option("--certificate-key", metavar="KEY", help="Print the command that joins a control plane.")
@output_option(*FORMATS)
@click.option("--dry-run", is_flag=True, help="Let the server check it, and create nothing.")
@cluster_options
def create(
    *,
    token: str | None,
    token_file: str | None,
    usages: tuple[str, ...],
    groups: tuple[str, ...],
    ttl: str,
    description: str,
    config: str | None,
    print_join_command: bool,
    join_with: str,
    provider: str | None,
    certificate_key: str | None,
    output: str,
    dry_run: bool,
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Create a bootstrap token in the cluster, and print it.

    TOKEN is the token to create, a random one if it is left away. Others on this machine can read the arguments of a
    command: - takes it from standard input.
    """
    shape = _shape(output, Joiner(join_with), provider, certificate_key, print_join_command=print_join_command)
    if config is not None:
        _check_unmixed(click.get_current_context())
        wishes = token_specs(config)
    else:
        given = read_token(token, token_file)
        wishes = [
            TokenSpec(
                token=given,
                usages=_list_or_none(usages),
                groups=_list_or_none(groups),
                ttl=ttl,
                description=description,
            ),
        ]
    now = datetime.now(UTC)
    made = [make(spec, now, generate) for spec in wishes]
    connection = Connection(kubeconfig, context)
    said = [shape.of(connection, one, now) for one in made]
    run(connection, lambda client: _create(client, made, said, dry_run=dry_run))


async def _create(client: ApiClient, made: Sequence[TokenSecret], said: Sequence[str], *, dry_run: bool) -> None:
    """Create one after the other; each is printed when it is there."""
    for one, line in zip(made, said, strict=True):
        await store(client, one, dry_run=dry_run)
        # First, so that its id is known even if nobody reads the token.
        if dry_run:
            print_lines(f"nodeattest: the server would create the token {one.token.id}; it was not created", err=True)
        elif warned := warning(one):
            print_lines(f"nodeattest: {warned}", err=True)
        print_exactly(line)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """How a token is printed."""

    output: str
    """``text`` is the token by itself."""
    joins: bool
    provider: str | None
    certificate_key: str | None

    def of(self, connection: Connection, made: TokenSecret, now: datetime) -> str:
        """Write it."""
        if self.joins:
            endpoint = connection.endpoint()
            line = join_command(endpoint, made.token, certificate_key=self.certificate_key, provider=self.provider)
            return f"{line}\n"
        if self.output == "text":
            return f"{made.token.reveal()}\n"
        return format_tokens([token_view(made)], self.output, now)


def _shape(
    output: str, joiner: Joiner, provider: str | None, certificate_key: str | None, *, print_join_command: bool
) -> _Shape:
    """Refuse what does not belong together."""
    if print_join_command and output != "text":
        raise UserError("--print-join-command: prints a command and no -o")
    if joiner is Joiner.AGENT and not print_join_command:
        raise UserError(f"--join-with {joiner}: belongs to --print-join-command")
    _check_key(certificate_key, print_join_command=print_join_command, joiner=joiner)
    _check_provider(provider, joiner=joiner)
    return _Shape(output=output, joins=print_join_command, provider=provider, certificate_key=certificate_key)


def _check_unmixed(context: click.Context) -> None:
    """Refuse flags beside a file: they would count for one of its tokens, or for none."""
    given = [
        flag for name, flag in _OF_TOKENS.items() if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    ]
    if given:
        raise UserError(f"--config: cannot be mixed with {', '.join(given)}")


def _check_key(certificate_key: str | None, *, print_join_command: bool, joiner: Joiner) -> None:
    if certificate_key is None:
        return
    if not print_join_command:
        raise UserError("cannot use --certificate-key without --print-join-command")
    if joiner is not Joiner.KUBEADM:
        raise UserError("--certificate-key: only kubeadm joins control planes")
    check_certificate_key(certificate_key)


def _check_provider(provider: str | None, *, joiner: Joiner) -> None:
    """See that the agent's command has its provider, and that nothing else has one."""
    if provider is None and joiner is Joiner.AGENT:
        raise UserError(f"--join-with {joiner}: set --provider too: how the machines prove what they are, such as tpm")
    if provider is not None and joiner is not Joiner.AGENT:
        raise UserError(f"--provider: belongs to --print-join-command --join-with {Joiner.AGENT}")
    if provider is not None:
        check_provider(provider)


def _list_or_none(given: Sequence[str]) -> list[str] | None:
    """Take lists apart, as cobra's string slices are; None where nothing was given, empty where "" was."""
    if not given:
        return None
    return [word for one in given for word in one.split(",") if word]
