"""``nodeattest token create``: a bootstrap token, with the options and the output of ``kubeadm token create``.

Standard output holds the token and nothing else; that it is a powerful credential is printed to standard error. A token
lasts a day by default, and forever only if that is said. At most one source of a token; an error shows no character of
it. Tokens are listed and deleted by kubectl or kubeadm.
Source: kubernetes cmd/kubeadm/app/cmd/token.go, cmd/util/join.go, apis/bootstraptoken/v1/utils.go; docs/decisions.md.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import click

from nodeattest_cli.connection import Connection, run
from nodeattest_cli.errors import StateError, UserError, user_errors
from nodeattest_cli.options import Duration, connected
from nodeattest_cli.output import print_exactly, print_lines
from nodeattest_discovery.clusterinfo import parse_ca_bundle
from nodeattest_discovery.pins import pin_of
from nodeattest_discovery.secret import (
    DEFAULT_GROUP,
    NAMESPACE,
    SECRET_TYPE,
    TokenSecret,
    Usage,
    encode,
    secret_name,
)
from nodeattest_discovery.token import BootstrapToken, generate, parse
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import AlreadyExists
from nodeattest_kube.kubeconfig import ApiEndpoint
from nodeattest_parsing.objects import items
from nodeattest_parsing.values import JsonObject

DEFAULT_TTL: Final = "24h0m0s"
_COLLECTION: Final = paths.core_path("secrets", namespace=NAMESPACE)
_LARGEST: Final = 1024
"""Bytes of a file with a token."""
_HOST_PORT: Final = re.compile(r"https://((?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?)/?", re.ASCII)
_PROVIDER: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}", re.ASCII)


def _take_apart(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> list[str] | None:
    """Take lists apart, as cobra's string slices are; None where nothing was given, empty where "" was."""
    return [word for one in given for word in one.split(",") if word] if given else None


@click.command()
@click.argument("token", required=False)
@click.option("--token-file", metavar="FILE", help="Read the token from a file; - is standard input.")
@click.option(
    "--usages",
    multiple=True,
    callback=_take_apart,
    help="signing, authentication or both, with commas or repeated (both).",
)
@click.option(
    "--groups",
    multiple=True,
    callback=_take_apart,
    help=f"Extra groups of the user that authenticates with it ({DEFAULT_GROUP}).",
)
@click.option("--ttl", type=Duration(), default=DEFAULT_TTL, help="When it expires, such as 1h30m; 0 is never.")
@click.option("--description", help="What it is for.")
@click.option("--print-join-command", is_flag=True, help="Print kubeadm's command that joins with it, instead of it.")
@click.option(
    "--provider", metavar="NAME", help="With --print-join-command: that of kubelet-authenticator, with this provider."
)
@connected
def create(
    *,
    connection: Connection,
    token: str | None,
    token_file: str | None,
    usages: list[str] | None,
    groups: list[str] | None,
    ttl: timedelta,
    description: str | None,
    print_join_command: bool,
    provider: str | None,
) -> None:
    """Create a bootstrap token in the cluster, and print it.

    TOKEN is the token to create, a random one if it is left away. Others on this machine can read the arguments of a
    command: - takes it from standard input.
    """
    if provider is not None and (not print_join_command or _PROVIDER.fullmatch(provider) is None):
        raise UserError("--provider: expected --print-join-command, and a name such as tpm or aws")
    made = make_token(read_token(token, token_file), ttl, description=description or "", usages=usages, groups=groups)
    printed = made.token.reveal()
    if print_join_command:
        printed = join_command(connection.endpoint, made.token, provider)
    run(connection, lambda client: store(client, made))
    if said := warning(made):
        print_lines(f"nodeattest: {said}", err=True)
    print_exactly(f"{printed}\n")


def read_token(word: str | None, file: str | None) -> BootstrapToken | None:
    """Read the token of an argument (``-``: standard input) or of a file (the same); None where neither is given."""
    written = read_token_text(word, file)
    if written is None:
        return None
    with user_errors("the token"):
        return parse(written)


def read_token_text(word: str | None, file: str | None) -> str | None:
    """Read the text of an argument or a file, without white space around it."""
    if word is not None and file is not None:
        raise UserError("the token: expected an argument or --token-file, got both")
    path = file if file is not None else "-" if word == "-" else None
    if path is None:
        return word
    try:
        if path == "-":
            content = sys.stdin.buffer.read(_LARGEST + 1)
        else:
            with Path(path).open("rb") as opened:
                content = opened.read(_LARGEST + 1)
        found = content.decode("ascii").strip()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: expected a bootstrap token, got no ASCII") from None
    if not found or len(content) > _LARGEST:
        raise UserError(f"{path}: expected a bootstrap token, got {'too much' if found else 'nothing'}")
    return found


def make_token(
    token: BootstrapToken | None,
    ttl: timedelta,
    *,
    description: str = "",
    usages: Sequence[str] | None = None,
    groups: Sequence[str] | None = None,
) -> TokenSecret:
    """Make a token, a random one without ``token``; raises ``UserError`` for what no API server would take as one."""
    known = [usage.value for usage in Usage]
    for word in usages if usages is not None else known:
        if word not in known:
            raise UserError(f"--usages: expected {' or '.join(known)}, got {word[:40]!a}")
    wanted = frozenset(map(Usage, usages)) if usages is not None else frozenset(Usage)
    default = (DEFAULT_GROUP,) if Usage.AUTHENTICATION in wanted else ()
    made = TokenSecret(
        token=token or generate(),
        usages=wanted,
        groups=default if groups is None else tuple(groups),
        expires=datetime.now(UTC) + ttl if ttl else None,
        description=description,
    )
    with user_errors("the token"):
        encode(made)
    return made


async def store(client: ApiClient, made: TokenSecret) -> None:
    """Create the Secret; raises ``StateError`` where the id is taken."""
    body: JsonObject = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret_name(made.token.id), "namespace": NAMESPACE},
        "type": SECRET_TYPE,
        "data": {**encode(made)},
    }
    try:
        await client.create(_COLLECTION, body)
    except AlreadyExists:
        raise StateError(f'a token with id "{made.token.id}" already exists') from None


async def token_secrets(client: ApiClient) -> list[JsonObject]:
    """Read every Secret of the type of bootstrap tokens."""
    query = {"fieldSelector": f"type={SECRET_TYPE}"}
    return [secret async for page in client.pages(_COLLECTION, query) for secret in items(page, "items")]


def warning(made: TokenSecret) -> str:
    """Say what a token that authenticates is worth; empty for one that only signs."""
    if Usage.AUTHENTICATION not in made.usages:
        return ""
    return (
        f"token {made.token.id} authenticates: its holder may ask for certificates as a new node"
        f"{'' if made.expires else ', for ever'}; hand it to one machine only, and delete it afterwards: kubectl "
        f"-n {NAMESPACE} delete secret {secret_name(made.token.id)}"
    )


def join_command(endpoint: ApiEndpoint, token: BootstrapToken, provider: str | None) -> str:
    """Write kubeadm's join line, or with a ``provider`` the agent's; each CA of the kubeconfig is pinned.

    Raises ``UserError`` for a kubeconfig that no machine can join by.
    """
    found = _HOST_PORT.fullmatch(endpoint.server)
    if found is None:
        raise UserError("the kubeconfig's server: expected https://host:port and no path, which machines join by")
    if endpoint.ca_pem is None:
        raise UserError("the kubeconfig: expected certificate-authority-data, of which machines pin the CA, got none")
    with user_errors("the kubeconfig's CA"):
        pins = dict.fromkeys(map(pin_of, parse_ca_bundle(endpoint.ca_pem.encode())))
    hashes = "".join(f"--discovery-token-ca-cert-hash {pin} " for pin in pins)
    rest = f"{found[1]}{'' if found[2] else ':443'} --token {token.reveal()} {hashes}"
    return f"kubeadm join {rest}" if provider is None else f"kubelet-authenticator join {rest}--provider {provider}"
