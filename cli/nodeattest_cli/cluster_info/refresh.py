"""``nodeattest cluster-info refresh``: a person's kubeconfig follows the cluster's CAs.

Promises: news is believed by the agent's own rules (``nodeattest_discovery.node.refresh``): over a connection that the
kubeconfig's CAs vouch for, and only if one of them stays. No credential of the kubeconfig is sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click

from nodeattest_cli.cluster_info.kubeconfig import PersonalCluster, read, write
from nodeattest_cli.cluster_info.publication import check_option
from nodeattest_cli.connection import Connection, cluster_options
from nodeattest_cli.errors import AccessError, user_errors
from nodeattest_cli.output import print_lines
from nodeattest_discovery.clusterinfo import ClusterInfo, parse_ca_bundle
from nodeattest_discovery.node.environment import Environment
from nodeattest_discovery.node.refresh import refresh as ask_for_news
from nodeattest_discovery.pins import pin_of

__all__ = ["refresh"]

_LIMIT: Final = 30.0
"""Seconds."""


@click.command()
@click.option("--server", metavar="URL", help="Ask this server, where the kubeconfig's is gone.")
@click.option("--take-server", is_flag=True, help="Also take over the server that cluster-info names.")
@click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing.")
@cluster_options
def refresh(
    *, server: str | None, take_server: bool, dry_run: bool, kubeconfig: str | None, context: str | None
) -> None:
    """Bring a kubeconfig's CAs up to date with cluster-info, before the old ones end.

    Asks over a connection that the kubeconfig's present CAs vouch for, without credentials. The server stays, since a
    person's may be another way to the same cluster, unless --take-server is said.
    """
    if server is not None:
        check_option(server)
    path = Connection(kubeconfig, context).path
    known = read(path, context)
    found = _news(known, server, take_server=take_server)
    wanted_server = found.server if take_server else known.server
    name = found.tls_server_name if take_server else known.tls_server_name
    changes = list(_changes(known, found, take_server=take_server))
    print_lines(*(changes or [f"{path} is up to date"]))
    if not take_server and found.server.rstrip("/") != known.server.rstrip("/"):
        print_lines(f"nodeattest: cluster-info names the server {found.server}; --take-server takes it over", err=True)
    if changes and not dry_run:
        write(path, known, server=wanted_server, tls_server_name=name, ca_pem=found.ca_pem)
        print_lines(f"{path} is written")


def _news(known: PersonalCluster, server: str | None, *, take_server: bool) -> ClusterInfo:
    """Ask, and believe only what the agent would."""
    said: list[str] = []
    environment = Environment(log=said.append, limit=_LIMIT)
    with user_errors("cluster-info", found=True):
        name = None if server else known.tls_server_name
        found = ask_for_news(
            [server or known.server],
            known.ca_pem,
            None,
            environment,
            tls_server_name=name,
            pin_server=not take_server,
        )
    if found is None:
        raise AccessError("; ".join(said) or "the cluster does not publish what is new")
    return found.info


def _changes(known: PersonalCluster, found: ClusterInfo, *, take_server: bool) -> Iterator[str]:
    """Say what is not as it was, one line each."""
    before = {str(pin_of(one)): one for one in parse_ca_bundle(known.ca_pem)}
    after = {str(pin_of(one)): one for one in found.ca_certificates}
    for pin in sorted(after.keys() - before.keys()):
        yield f"new CA: {pin}"
    for pin in sorted(before.keys() - after.keys()):
        yield f"CA that is no more: {pin}"
    if before.keys() == after.keys() and set(before.values()) != set(after.values()):
        yield "the CA's certificate was renewed, its key stays"
    if take_server and found.server != known.server:
        yield f"server: {known.server} becomes {found.server}"
