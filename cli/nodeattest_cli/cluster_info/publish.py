"""``nodeattest cluster-info publish``: what ``kubeadm init phase bootstrap-token`` does for cluster-info.

Promises: may be run again at any time; another cluster's cluster-info is not overwritten unless that is said; every
step stands alone, so that a run that was cut off is simply repeated. Gives no rights to bootstrap tokens: those that
kubeadm gives let the in-tree signer certify any name.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hmac import compare_digest
from pathlib import Path
from typing import Final
from urllib.parse import quote

import click

from nodeattest_cli.cluster_info.publication import ROLE, kubeconfig_of, namespace, role, role_binding
from nodeattest_cli.cluster_info.update import Publication
from nodeattest_cli.connection import Connection, cluster_options, run
from nodeattest_cli.errors import StateError, UserError
from nodeattest_cli.output import print_lines
from nodeattest_cli.token.factory import DEFAULT_TTL, TokenSpec, make, secret_path, store, warning
from nodeattest_cli.token.input import parse_token, read_token_text
from nodeattest_controller.model.objects import text
from nodeattest_discovery.clusterinfo import NAMESPACE
from nodeattest_discovery.secret import TokenSecret, stored_token
from nodeattest_discovery.token import generate
from nodeattest_kube import paths
from nodeattest_kube.client import AlreadyExists, ApiClient, Forbidden, NotFound
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["publish"]

_RBAC: Final = ("rbac.authorization.k8s.io", "v1")
_DESCRIPTION: Final = "made with cluster-info by nodeattest cluster-info publish"
_BINDING: Final = f"{paths.collection_path(*_RBAC, 'rolebindings', namespace=NAMESPACE)}/{quote(ROLE, safe='')}"
_STILL_ANONYMOUS: Final = (
    f"the RoleBinding {ROLE} is there already and still lets everybody read cluster-info; if nobody is to: "
    f"kubectl delete rolebinding --namespace {NAMESPACE} {ROLE}"
)
_LARGEST: Final = 1 << 20
"""Bytes of a CA file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """What is to be published."""

    kubeconfig: str
    token: TokenSecret | None
    print_token: bool
    anonymous: bool
    replace: bool


@click.command()
@click.option("--server", metavar="URL", help="Where machines find the API server (the kubeconfig's).")
@click.option("--ca-file", multiple=True, metavar="FILE", help="CAs to publish, PEM, repeatable (the kubeconfig's).")
@click.option("--token", metavar="TOKEN", help='The token to create; - reads it, "" creates none (a random one).')
@click.option("--token-file", metavar="FILE", help="Read the token from a file; - is standard input.")
@click.option("--token-ttl", default=DEFAULT_TTL, show_default=True, help="When it expires, such as 1h30m; 0 is never.")
@click.option("--no-anonymous", is_flag=True, help="Give nobody the right to read it without authentication.")
@click.option("--replace", is_flag=True, help="Also replace what names another server or other CAs.")
@click.option("--skip-token-print", is_flag=True, help="Do not print the token.")
@cluster_options
def publish(
    *,
    server: str | None,
    ca_file: tuple[str, ...],
    token: str | None,
    token_file: str | None,
    token_ttl: str,
    no_anonymous: bool,
    replace: bool,
    skip_token_print: bool,
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Publish where the cluster is and whom to trust, so that machines with a token can find it.

    Writes the ConfigMap cluster-info in kube-public, lets everybody read it, and creates a token. Signatures come from
    the bootstrap signer of a controller, or from: nodeattest cluster-info sign.
    """
    made = _token(token, token_file, token_ttl)
    connection = Connection(kubeconfig, context)
    order = _Order(
        kubeconfig=_kubeconfig(connection, server, ca_file),
        token=made,
        print_token=not skip_token_print,
        anonymous=not no_anonymous,
        replace=replace,
    )
    run(connection, lambda client: _publish(client, order))
    if made is not None and (warned := warning(made)):
        print_lines(f"nodeattest: {warned}", err=True)


def _token(word: str | None, file: str | None, ttl: str) -> TokenSecret | None:
    """Make the token; none where the argument is empty."""
    given = read_token_text(word, file)
    if given == "":
        return None
    wish = TokenSpec(
        token=parse_token(given) if given else None, ttl=ttl, ttl_option="--token-ttl", description=_DESCRIPTION
    )
    return make(wish, datetime.now(UTC), generate)


def _kubeconfig(connection: Connection, server: str | None, ca_files: Sequence[str]) -> str:
    """Write what is published: the options' values, else the kubeconfig's."""
    endpoint = connection.endpoint()
    if server is None and endpoint.tls_server_name is not None:
        raise UserError("the kubeconfig has a tls-server-name, which machines would not know: set --server")
    ca_pem = "\n".join(map(_file, ca_files)) if ca_files else endpoint.ca_pem
    if ca_pem is None:
        raise UserError("the kubeconfig: expected certificate-authority-data to publish, got none; set --ca-file")
    return kubeconfig_of(endpoint.server if server is None else server, ca_pem)


def _file(path: str) -> str:
    try:
        with Path(path).open(encoding="ascii") as file:
            content = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {getattr(error, 'strerror', None) or 'expected PEM'}") from None
    if len(content) > _LARGEST:
        raise UserError(f"{path}: more than {_LARGEST} bytes")
    return content


async def _publish(client: ApiClient, order: _Order) -> None:
    """Write what is not there yet.

    1. What is there is read, and refused before anything is written. 2. The token. 3. The namespace.
    4. The ConfigMap. 5. Who may read it.
    """
    # 1
    publication = Publication(client, order.kubeconfig, replace=order.replace)
    await publication.look()
    # 2
    if order.token is not None:
        await _store(client, order.token)
        shown = order.token.token.reveal() if order.print_token else "<value withheld>"
        print_lines(f"[bootstrap-token] Using token: {shown}")
    # 3
    print_lines("[bootstrap-token] Configuring bootstrap tokens, cluster-info ConfigMap, RBAC Roles")
    with suppress(Forbidden):  # kube-apiserver makes it at its start; if it is not there, the next write fails
        await _ensure(client, paths.core_path("namespaces"), namespace(), ())
    # 4
    await publication.write()
    # 5
    if order.anonymous:
        await _ensure(client, paths.collection_path(*_RBAC, "roles", namespace=NAMESPACE), role(), ("rules",))
        await _ensure(
            client,
            paths.collection_path(*_RBAC, "rolebindings", namespace=NAMESPACE),
            role_binding(),
            ("subjects", "roleRef"),
        )
    elif await _anybody_reads(client):
        print_lines(f"nodeattest: {_STILL_ANONYMOUS}", err=True)


async def _anybody_reads(client: ApiClient) -> bool:
    """Return whether an earlier run, or kubeadm, gave the right that this run does not give."""
    try:
        await client.get(_BINDING)
    except (NotFound, Forbidden):
        return False
    return True


async def _store(client: ApiClient, made: TokenSecret) -> None:
    """Create the token, unless it is there; one with this id and another secret is not this token."""
    try:
        there = stored_token(await client.get(secret_path(made.token.id)))
    except NotFound:
        await store(client, made)
        return
    if there is None or not compare_digest(there.secret.encode("utf-8", "surrogateescape"), made.token.secret.encode()):
        raise StateError(f'a token with id "{made.token.id}" already exists, and is another one')
    print_lines(f"nodeattest: the token {made.token.id} exists already and stays as it is", err=True)


async def _ensure(client: ApiClient, collection: str, body: JsonObject, fields: Sequence[str]) -> None:
    """Create an object; one that differs in these fields is replaced."""
    try:
        await client.create(collection, body)
    except AlreadyExists:
        if not fields:
            return
        path = f"{collection}/{quote(text(body, 'metadata', 'name'), safe='')}"
        found = await client.get(path)
        if any(found.get(field) != body.get(field) for field in fields):
            await client.replace(path, body)
