"""``nodeattest doctor``: fetches, has it looked at, and prints the findings. It changes nothing."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

import click

from nodeattest_cli.connection import Connection, run
from nodeattest_cli.doctor.clusters import check_approval, check_bootstrap, check_machines, check_policies
from nodeattest_cli.doctor.collect import HealthTarget, cluster_uid, gather, read_source
from nodeattest_cli.doctor.facts import HealthFacts, MoveFacts
from nodeattest_cli.doctor.installation import (
    check_clocks,
    check_definitions,
    check_leadership,
    check_move,
    check_rights,
    check_versions,
)
from nodeattest_cli.doctor.model import GROUPS, HealthFinding, HealthSeverity, counts, exit_code, to_document
from nodeattest_cli.doctor.webhook import check_webhook
from nodeattest_cli.errors import UserError
from nodeattest_cli.fleet import no_cluster
from nodeattest_cli.options import Duration, cluster_option, connected, output_option, workload_option
from nodeattest_cli.output import print_document, print_lines, to_json

_CHECKS: Final = (
    *(check_move, check_versions, check_definitions, check_leadership, check_rights, check_webhook, check_policies),
    *(check_approval, check_bootstrap, check_machines, check_clocks),
)
_MARKS: Final = {
    HealthSeverity.OK: "ok",
    HealthSeverity.WARNING: "warn",
    HealthSeverity.ERROR: "FAIL",
    HealthSeverity.UNKNOWN: "?",
}
_MARK: Final = 4
"""Characters."""


@click.command()
@connected
@click.option("-n", "--namespace", help="Namespace of the Clusters  [the context's; default]")
@click.option("-A", "--all-namespaces", is_flag=True, help="Clusters of every namespace.")
@cluster_option
@workload_option
@click.option(
    "--move-to", metavar="FILE", help="Look at this kubeconfig's cluster instead, the target of a clusterctl move."
)
@click.option("--controller-namespace", default="nodeattest-system", help="Where the controller is.")
@click.option("--lease-name", default="node-attestation-controller", help="The controller's Lease.")
@click.option("--timeout", type=Duration(), default="10m", help="How long to ask; what is left is not looked at.")
@output_option("text", "json")
def doctor(
    *,
    connection: Connection,
    namespace: str | None,
    all_namespaces: bool,
    cluster: str | None,
    workload: Connection | None,
    move_to: str | None,
    controller_namespace: str,
    lease_name: str,
    timeout: timedelta,
    output: str,
) -> int:
    """Look at an installation in both clusters: what is wrong, and what to do.

    Versions, definitions, Leases, rights, webhook, policies, automatic approval, bootstrap data, machines, certificates
    and clocks. What this user may not look at is "?", with the reason. No Secret is read but <cluster>-kubeconfig.

    With --move-to, before clusterctl move: whether the other management cluster is ready for the policies of this one.

    Exit code 0: nothing fails, though there may be warnings. 1: something fails. 3: nothing fails, and something could
    not be looked at.
    """
    if namespace and all_namespaces:
        raise UserError("say --namespace or --all-namespaces")
    if move_to is not None and (cluster is not None or workload is not None):
        raise UserError("--move-to: is for all Clusters of a namespace; without --cluster and --workload-kubeconfig")
    target = HealthTarget(
        namespace=None if all_namespaces else connection.namespace(namespace),
        cluster=cluster,
        controller_namespace=controller_namespace,
        lease_name=lease_name,
        timeout=timeout.total_seconds(),
    )
    move = None
    if move_to is not None:
        source, connection = connection, Connection(move_to, None)
        move = _read_source(source, connection, target, move_to)
    facts = run(connection, lambda client: gather(client, target, workload=workload, move=move))
    if cluster is not None and not facts.clusters():
        raise no_cluster(cluster, target.namespace)
    found = examine(facts)
    if output == "json":
        print_document(to_json(to_document(found)))
    else:
        print_lines(*_lines(found))
    return exit_code(found)


def examine(facts: HealthFacts) -> list[HealthFinding]:
    """Look at everything; before a move, commands of remedies name the target's kubeconfig."""
    found = [finding for check in _CHECKS for finding in check(facts)]
    if facts.move is None:
        return found
    kubectl = f"kubectl --kubeconfig {shlex.quote(facts.move.kubeconfig)} "
    return [replace(finding, remedy=finding.remedy.replace("kubectl ", kubectl)) for finding in found]


def _read_source(source: Connection, other: Connection, target: HealthTarget, move_to: str) -> MoveFacts:
    """Read the source of a move; raises ``UserError`` where it is the target, too."""
    one, two = source.endpoint, other.endpoint
    if (one.server, one.ca_pem, one.proxy_url) != (two.server, two.ca_pem, two.proxy_url):
        move = run(source, lambda client: read_source(client, target, move_to))
        if not move.source_uid or move.source_uid != run(other, cluster_uid):
            return move
    raise UserError("--move-to: expected another management cluster, got the one of --kubeconfig")


def _lines(found: Sequence[HealthFinding]) -> Iterator[str]:
    """Write one line for what is ok, and what to do for everything else; then the counts."""
    for title, ids in GROUPS.items():
        own = [one for one in found if one.id in ids]
        if not own:
            continue
        yield title
        for one in own:
            yield from _entry(one)
        yield ""
    numbers = counts(found)
    yield (
        f"{numbers[HealthSeverity.OK]} ok, {numbers[HealthSeverity.WARNING]} with a warning, "
        f"{numbers[HealthSeverity.ERROR]} failed, {numbers[HealthSeverity.UNKNOWN]} could not be looked at"
    )


def _entry(one: HealthFinding) -> Iterator[str]:
    where = f" {one.cluster}" if one.cluster else ""
    head = f"  {_MARKS[one.severity].ljust(_MARK)}  {one.id}{where}: "
    yield head + " ".join(one.found.split())
    if one.severity is not HealthSeverity.OK:
        yield f"          expected  {one.expected}"
        if one.remedy:
            yield f"          do        {one.remedy}"
