"""``nodeattest evidence export``: fetches what explain reads, and writes it into a file without secrets."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Final

import click

from nodeattest_authenticator.state.storage import write_atomically
from nodeattest_cli.connection import Connection, cluster_options, namespace_option
from nodeattest_cli.documents import MAX_FILE
from nodeattest_cli.errors import StateError, UserError
from nodeattest_cli.explain.bundle import make_bundle
from nodeattest_cli.explain.collect import parse_target
from nodeattest_cli.explain.target import fetch_target
from nodeattest_cli.output import print_exactly, print_lines, to_json

__all__ = ["export"]

_MODE: Final = 0o600
"""No secret is in it, but what a fleet is made of."""


@click.command()
@click.argument("target")
@click.option("-o", "--output", required=True, metavar="FILE", help="Where to write; - is standard output.")
@cluster_options
@namespace_option
@click.option("--cluster", help="Of this workload cluster only.")
@click.option(
    "--workload-kubeconfig",
    metavar="FILE",
    help="How to reach the workload cluster  [the Secret <cluster>-kubeconfig]",
)
def export(
    *,
    target: str,
    output: str,
    kubeconfig: str | None,
    context: str | None,
    namespace: str | None,
    cluster: str | None,
    workload_kubeconfig: str | None,
) -> None:
    """Write what explains a machine into one file without secrets.

    TARGET is machine/NAME, node/NAME or csr/NAME, as for explain, and the same is read. nodeattest explain FILE shows
    the same without any cluster.

    The file has the request with its evidence, the machine's record and those of the other machines of its cluster,
    policies, and the ids of bootstrap tokens without their secret parts. It has no kubeconfig, no key and no bootstrap
    data.
    """
    named = parse_target(target)
    if named is None:
        raise UserError(f"say what to export: machine/NAME, node/NAME or csr/NAME, got {target}")
    found = fetch_target(
        named,
        Connection(kubeconfig, context),
        namespace=namespace,
        cluster=cluster,
        workload_kubeconfig=workload_kubeconfig,
    )
    now = datetime.now(UTC).replace(microsecond=0)
    written = to_json(make_bundle(found, now)) + "\n"
    if len(written.encode()) > MAX_FILE:
        raise StateError(f"the bundle has more than {MAX_FILE} bytes, which explain reads: the cluster is too large")
    if output == "-":
        print_exactly(written)
    else:
        write_atomically(os.fspath(output), written.encode(), mode=_MODE)
    print_lines(*(f"not read  {one}" for one in found.left_out), err=True)
