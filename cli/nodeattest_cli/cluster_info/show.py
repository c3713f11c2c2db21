"""``nodeattest cluster-info show``."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from nodeattest_cli.cluster_info.sources import from_cluster, from_file, signing_tokens
from nodeattest_cli.cluster_info.view import View, view_of
from nodeattest_cli.connection import Connection, cluster_options, run
from nodeattest_cli.documents import file_option
from nodeattest_cli.errors import ExitCode
from nodeattest_cli.output import output_option, print_document, print_exactly, print_lines, to_json, to_yaml
from nodeattest_controller.model.objects import text
from nodeattest_discovery.clusterinfo import KUBECONFIG_KEY
from nodeattest_discovery.token import BootstrapToken
from nodeattest_kube.client import ApiClient
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["show"]


@click.command()
@file_option("The ConfigMap or its kubeconfig; - is standard input.")
@output_option("text", "json", "yaml", "kubeconfig")
@cluster_options
def show(*, path: str | None, output: str, kubeconfig: str | None, context: str | None) -> int:
    """Show where machines find the cluster, which CAs they trust there, and who signed that.

    Signatures are checked where the tokens may be read. -o kubeconfig prints the signed text as it is. Exit code 1 when
    machines cannot use it: it is malformed, or a signature is wrong or missing.
    """
    if path is not None:
        found, tokens = from_file(path), None
    else:
        found, tokens = run(Connection(kubeconfig, context), _both)
    if output == "kubeconfig":
        print_exactly(text(found, "data", KUBECONFIG_KEY))
        return 0
    seen = view_of(found, tokens)
    _print(seen, output)
    return ExitCode.DONE if seen.is_sound else ExitCode.REFUSED


async def _both(client: ApiClient) -> tuple[JsonObject, tuple[BootstrapToken, ...] | None]:
    return await from_cluster(client), await signing_tokens(client)


def _print(seen: View, output: str) -> None:
    match output:
        case "json":
            print_document(to_json(seen.to_json()))
        case "yaml":
            print_document(to_yaml(seen.to_json()))
        case _:
            print_lines(*seen.lines(datetime.now(UTC)))
