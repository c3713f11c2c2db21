"""``nodeattest token create``: a bootstrap token, with kubeadm's defaults and the output of ``kubeadm token create``.

Standard output holds the token and nothing else; that it is a powerful credential is printed to standard error. A token
lasts a day by default, and forever only if that is said. At most one source of a token; an error shows no character of
it. Other usages and groups, lists and deletion: kubeadm or kubectl.
Source: kubernetes cmd/kubeadm/app/cmd/token.go, cmd/util/join.go, apis/bootstraptoken/v1/utils.go; docs/decisions.md.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import click

from nodeattest_cli.connection import Connection, run
from nodeattest_cli.documents import read_text
from nodeattest_cli.options import Duration, connected
from nodeattest_cli.output import StateError, UserError, print_exactly, print_lines, user_errors
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
from nodeattest_parsing.values import JsonObject

_COLLECTION: Final = paths.core_path("secrets", namespace=NAMESPACE)
_LARGEST: Final = 1024
"""Bytes of a file with a token."""
_HOST_PORT: Final = re.compile(r"https://((?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?)/?", re.ASCII)
_PROVIDER: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}", re.ASCII)


@click.command()
@click.argument("token", required=False)
@click.option("--token-file", metavar="FILE", help="Read the token from a file; - is standard input.")
@click.option("--ttl", type=Duration(), default="24h0m0s", help="When it expires, such as 1h30m; 0 is never.")
@click.option("--description", default="", help="What it is for.")
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
    ttl: timedelta,
    description: str,
    print_join_command: bool,
    provider: str | None,
) -> None:
    """Create a bootstrap token in the cluster, and print it.

    TOKEN is the token to create, a random one if it is left away. Others on this machine can read the arguments of a
    command: - takes it from standard input.
    """
    if provider is not None and (not print_join_command or _PROVIDER.fullmatch(provider) is None):
        raise UserError("--provider: expected --print-join-command, and a name such as tpm or aws")
    made = TokenSecret(
        token=read_token(token, token_file) or generate(),
        usages=frozenset(Usage),
        groups=(DEFAULT_GROUP,),
        expires=datetime.now(UTC) + ttl if ttl else None,
        description=description,
    )
    printed = join_command(connection.endpoint, made.token, provider) if print_join_command else made.token.reveal()
    run(connection, lambda client: store(client, made))
    print_lines(
        f"nodeattest: token {made.token.id} authenticates: its holder may ask for certificates as a new node"
        f"{'' if made.expires else ', for ever'}; hand it to one machine only, and delete it afterwards: kubectl "
        f"-n {NAMESPACE} delete secret {secret_name(made.token.id)}",
        err=True,
    )
    print_exactly(f"{printed}\n")


def read_token(word: str | None, file: str | None) -> BootstrapToken | None:
    """Read the token of an argument (``-``: standard input) or of a file (the same); None where neither is given."""
    if word is not None and file is not None:
        raise UserError("the token: expected an argument or --token-file, got both")
    path = "-" if word == "-" else file
    if path is not None:
        word = read_text(path, "a bootstrap token", limit=_LARGEST, encoding="ascii").strip()
    if not word and path is not None:
        raise UserError(f"{path}: expected a bootstrap token, got nothing")
    with user_errors("the token"):
        return parse(word) if word is not None else None


async def store(client: ApiClient, made: TokenSecret) -> None:
    """Create the Secret; raises ``UserError`` for what no API server would take, or where the id is taken."""
    with user_errors("the token"):
        data: JsonObject = {**encode(made)}
    body: JsonObject = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret_name(made.token.id), "namespace": NAMESPACE},
        "type": SECRET_TYPE,
        "data": data,
    }
    try:
        await client.create(_COLLECTION, body)
    except AlreadyExists:
        raise StateError(f'a token with id "{made.token.id}" already exists') from None


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
