"""``nodeattest cluster-info sign``: what the bootstrap signer does, once, for clusters that run none.

Promises: signatures are the signer's, byte for byte; a write that somebody else's crossed is made again of what is
there then. Offline nothing but the file is read, and standard output is the signed ConfigMap.
"""

from __future__ import annotations

import click

from nodeattest_cli.cluster_info.sources import from_cluster, from_file, signing_tokens
from nodeattest_cli.cluster_info.update import retry_on_conflict
from nodeattest_cli.connection import Connection, cluster_options, run
from nodeattest_cli.documents import file_option
from nodeattest_cli.errors import AccessError, UserError, user_errors
from nodeattest_cli.output import print_document, print_lines, to_yaml
from nodeattest_cli.token.input import read_token
from nodeattest_controller.model.objects import mapping, text
from nodeattest_discovery import jws
from nodeattest_discovery.clusterinfo import KUBECONFIG_KEY, PATH, SIGNATURE_PREFIX, parse
from nodeattest_discovery.controllers.bootstrap_signer.decide import desired_cluster_info
from nodeattest_discovery.token import BootstrapToken
from nodeattest_kube.client import ApiClient
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["sign"]


@click.command()
@click.option("--token-file", metavar="FILE", help="Sign with this token only; - is standard input.")
@file_option("Sign the ConfigMap or kubeconfig of a file, and print it.")
@cluster_options
def sign(*, token_file: str | None, path: str | None, kubeconfig: str | None, context: str | None) -> None:
    """Sign cluster-info, where no bootstrap signer runs.

    Without --token-file it does what a signer does: every token with the usage signing signs, and signatures of others
    go. With it, this token's signature is set and the others stay. Tokens that expire later leave their signatures
    behind until it is run again.
    """
    if path is not None and path == token_file:
        raise UserError("expected cluster-info and the token in two places, got one")
    token = read_token(None, token_file)
    if path is not None:
        if token is None:
            raise UserError("without a cluster: set the token that signs by --token-file")
        print_document(to_yaml(_signed(from_file(path), token)))
        return
    ids = run(Connection(kubeconfig, context), lambda client: retry_on_conflict(lambda: _sign(client, token)))
    print_lines(f"cluster-info is signed by {', '.join(ids) or 'nobody: no token has the usage signing'}")


async def _sign(client: ApiClient, token: BootstrapToken | None) -> list[str]:
    """Write the signatures, and return whose are there."""
    found = await from_cluster(client)
    if token is not None:
        wanted = _signed(found, token)
    else:
        tokens = await signing_tokens(client)
        if tokens is None:
            raise AccessError("the tokens in kube-system cannot be read: set the one that signs by --token-file")
        _check(found)
        wanted = desired_cluster_info(found, tokens) or found
    if wanted != found:
        await client.replace(PATH, wanted)
    return sorted(
        key.removeprefix(SIGNATURE_PREFIX) for key in mapping(wanted, "data") if key.startswith(SIGNATURE_PREFIX)
    )


def _signed(found: JsonObject, token: BootstrapToken) -> JsonObject:
    """Set the signature of one token."""
    kubeconfig = _check(found)
    signature = jws.sign(kubeconfig.encode(), token)
    return {**found, "data": {**mapping(found, "data"), SIGNATURE_PREFIX + token.id: signature}}


def _check(found: JsonObject) -> str:
    """Return the text that is signed; nobody signs what no machine may believe."""
    kubeconfig = text(found, "data", KUBECONFIG_KEY)
    with user_errors("cluster-info", found=True):
        parse(kubeconfig)
    return kubeconfig
