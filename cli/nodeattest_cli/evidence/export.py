"""``nodeattest evidence export``: fetches what explain reads, and writes it into a file without secrets."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from nodeattest_authenticator.state.storage import write_atomically
from nodeattest_cli.connection import Connection, cluster_options, namespace_option
from nodeattest_cli.documents import MAX_FILE
from nodeattest_cli.errors import StateError, UserError
from nodeattest_cli.evidence.attestation_result import TYPE, make_claims
from nodeattest_cli.explain.bundle import make_bundle
from nodeattest_cli.explain.collect import parse_target
from nodeattest_cli.explain.target import fetch_target
from nodeattest_cli.output import print_exactly, print_lines, to_json
from nodeattest_identity.issuer.keys import MAX_SIZE, KeysError
from nodeattest_identity.tokens.signing import SigningKey, read_signing_key, sign_claims
from nodeattest_providers import __version__

__all__ = ["export"]

_MODE: Final = 0o600
"""No secret is in it, but what a fleet is made of."""


@click.command()
@click.argument("target")
@click.option("-o", "--output", required=True, metavar="FILE", help="Where to write; - is standard output.")
@click.option(
    "--signing-key",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a signed attestation result (EAR) that holds the bundle: a private key in PEM, RSA or P-256.",
)
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
    signing_key: Path | None,
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

    With --signing-key it is an EAT Attestation Result, signed by this key: what the machine's record says now, with the
    same bundle inside. nodeattest evidence verify verifies it, years later, without any cluster. The request of a
    machine that joined is then the newest that it filed itself: a token that somebody else holds cannot replace it.
    """
    key = _read_key(signing_key) if signing_key is not None else None
    named = parse_target(target)
    if named is None:
        raise UserError(f"say what to export: machine/NAME, node/NAME or csr/NAME, got {target}")
    found = fetch_target(
        named,
        Connection(kubeconfig, context),
        namespace=namespace,
        cluster=cluster,
        workload_kubeconfig=workload_kubeconfig,
        others_too=key is None,
    )
    now = datetime.now(UTC).replace(microsecond=0)
    written = to_json(make_bundle(found, now)) + "\n"
    if len(written.encode()) > MAX_FILE:
        raise StateError(f"the bundle has more than {MAX_FILE} bytes, which explain reads: the cluster is too large")
    if key is not None:
        written = sign_claims(key, make_claims(written.encode(), now, build=__version__), typ=TYPE) + "\n"
    if output == "-":
        print_exactly(written)
    else:
        write_atomically(os.fspath(output), written.encode(), mode=_MODE)
    print_lines(*(f"not read  {one}" for one in found.left_out), err=True)


def _read_key(path: Path) -> SigningKey:
    try:
        with path.open("rb") as file:
            return read_signing_key(file.read(MAX_SIZE + 1))
    except OSError as error:
        raise UserError(f"{path}: expected a file with a private key, got {error.strerror}") from None
    except KeysError as error:
        raise UserError(f"{path}: {error}") from None
