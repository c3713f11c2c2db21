"""``nodeattest token list``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import click

from nodeattest_cli.connection import Connection, cluster_options, run
from nodeattest_cli.output import output_option, print_document, print_lines
from nodeattest_cli.token.model import TokenView, read, token_secret_name, warnings
from nodeattest_cli.token.output import FORMATS, format_tokens
from nodeattest_controller.model.objects import items
from nodeattest_discovery.secret import NAMESPACE, SECRET_TYPE
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.errors import Denied

__all__ = ["list_tokens", "token_secrets"]


@click.command("list")
@output_option(*FORMATS)
@click.option("--dry-run", is_flag=True, help="Accepted as by kubeadm; listing writes nothing.")
@cluster_options
def list_tokens(*, output: str, dry_run: bool, kubeconfig: str | None, context: str | None) -> None:
    """List the bootstrap tokens of the cluster, secrets included.

    A Secret that is no token is reported on standard error, and the rest is listed.
    """
    del dry_run
    secrets = run(Connection(kubeconfig, context), token_secrets)
    print_document(format_tokens(list(_readable(secrets)), output, datetime.now(UTC)))


async def token_secrets(client: ApiClient) -> list[JsonObject]:
    """Read every Secret of the type of bootstrap tokens."""
    query = {"fieldSelector": f"type={SECRET_TYPE}"}
    found: list[JsonObject] = []
    async for page in client.pages(paths.core_path("secrets", namespace=NAMESPACE), query):
        found += items(page, "items")
    return found


def _readable(secrets: Sequence[JsonObject]) -> Iterator[TokenView]:
    """Yield the tokens, and report the others."""
    for secret in secrets:
        for warning in warnings(secret):
            print_lines(f"nodeattest: {warning}", err=True)
        try:
            yield read(secret)
        except Denied as denied:
            print_lines(
                f"nodeattest: {token_secret_name(secret)}: expected {denied.expected}, got {denied.got}", err=True
            )
