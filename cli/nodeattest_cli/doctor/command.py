"""``nodeattest doctor``: fetches, has it looked at, prints the findings; with ``--fix``, what can safely be done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import click

from nodeattest_cli.connection import Connection, kubeconfig_option, run
from nodeattest_cli.doctor.collect import HealthTarget, gather
from nodeattest_cli.doctor.facts import HealthFacts, MoveFacts
from nodeattest_cli.doctor.fix import create_definitions, safe_fixes
from nodeattest_cli.doctor.groups import GROUPS, examine
from nodeattest_cli.doctor.model import HealthFinding, HealthSeverity, counts, exit_code, to_document
from nodeattest_cli.doctor.move import cluster_uid, read_source
from nodeattest_cli.durations import seconds
from nodeattest_cli.errors import UserError
from nodeattest_cli.management import no_cluster
from nodeattest_cli.output import output_option, print_document, print_lines, to_json
from nodeattest_controller.model.objects import text
from nodeattest_kube.client import ApiClient

__all__ = ["doctor"]

_MARKS: Final = {
    HealthSeverity.OK: "ok",
    HealthSeverity.WARNING: "warn",
    HealthSeverity.ERROR: "FAIL",
    HealthSeverity.UNKNOWN: "?",
}
_MARK: Final = 4
"""Characters."""


@click.command()
@kubeconfig_option
@click.option("--context", help="Context of the kubeconfig.")
@click.option("-n", "--namespace", help="Namespace of the Clusters  [the context's; default]")
@click.option("-A", "--all-namespaces", is_flag=True, help="Clusters of every namespace.")
@click.option("--cluster", help="Of this workload cluster only.")
@click.option(
    "--workload-kubeconfig",
    metavar="FILE",
    help="How to reach the one workload cluster  [the Secret <cluster>-kubeconfig]",
)
@click.option(
    "--move-to", metavar="FILE", help="Look at this kubeconfig's cluster instead, the target of a clusterctl move."
)
@click.option("--controller-namespace", default="nodeattest-system", show_default=True, help="Where the controller is.")
@click.option("--lease-name", default="node-attestation-controller", show_default=True, help="The controller's Lease.")
@click.option("--fix", is_flag=True, help="Say what can safely be repaired: definitions that are not there.")
@click.option("--yes", is_flag=True, help="With --fix: do it, then look again.")
@click.option("--timeout", default="10m", show_default=True, help="How long to ask; what is left is not looked at.")
@output_option("text", "json")
def doctor(
    *,
    kubeconfig: str | None,
    context: str | None,
    namespace: str | None,
    all_namespaces: bool,
    cluster: str | None,
    workload_kubeconfig: str | None,
    move_to: str | None,
    controller_namespace: str,
    lease_name: str,
    fix: bool,
    yes: bool,
    timeout: str,
    output: str,
) -> int:
    """Look at an installation in both clusters: what is wrong, and what to do.

    Versions, definitions, Leases, rights, webhook, policies, automatic approval, bootstrap data, machines, certificates
    and clocks. What this user may not look at is "?", with the reason. No Secret is read but <cluster>-kubeconfig.

    With --move-to, before clusterctl move: whether the other management cluster is ready for the policies of this one.
    With --fix --yes, definitions are created in the other one.

    Exit code 0: nothing fails, though there may be warnings. 1: something fails. 3: nothing fails, and something could
    not be looked at.
    """
    if yes and not fix:
        raise UserError("--yes: is for --fix")
    if namespace and all_namespaces:
        raise UserError("say --namespace or --all-namespaces")
    if move_to is not None and (cluster is not None or workload_kubeconfig is not None):
        raise UserError("--move-to: is for all Clusters of a namespace; without --cluster and --workload-kubeconfig")
    connection = Connection(kubeconfig, context)
    target = HealthTarget(
        namespace=None if all_namespaces else connection.namespace(namespace),
        cluster=cluster,
        controller_namespace=controller_namespace,
        lease_name=lease_name,
        timeout=seconds("--timeout", timeout),
    )
    workload = Connection(workload_kubeconfig, None).client if workload_kubeconfig is not None else None
    move = None
    if move_to is not None:
        source, connection = connection, Connection(move_to, None)
        move = _read_source(source, connection, target, move_to)
    facts = run(connection, lambda client: _gather(client, target, workload, move))
    if cluster is not None and not facts.clusters():
        raise no_cluster(cluster, target.namespace)
    if fix and _fix(connection, facts, yes=yes):
        facts = run(connection, lambda client: _gather(client, target, workload, move))
    found = examine(facts)
    if output == "json":
        print_document(to_json(to_document(found)))
    else:
        print_lines(*_lines(found))
    return exit_code(found)


def _read_source(source: Connection, other: Connection, target: HealthTarget, move_to: str) -> MoveFacts:
    """Read the source of a move; raises ``UserError`` where it is the target, too."""
    one, two = source.endpoint(), other.endpoint()
    is_same = (one.server, one.ca_pem, one.proxy_url) == (two.server, two.ca_pem, two.proxy_url)
    if not is_same:
        move = run(source, lambda client: read_source(client, target, move_to))
        if not move.source_uid or move.source_uid != run(other, cluster_uid):
            return move
    raise UserError("--move-to: expected another management cluster, got the one of --kubeconfig")


async def _gather(
    client: ApiClient, target: HealthTarget, workload: Callable[[], ApiClient] | None, move: MoveFacts | None
) -> HealthFacts:
    return await gather(client, target, workload=workload, now=lambda: datetime.now(UTC), move=move)


def _fix(connection: Connection, facts: HealthFacts, *, yes: bool) -> bool:
    """Say what would be done, and do it if that was agreed to; tells whether anything changed."""
    wanted = safe_fixes(facts)
    if not wanted:
        print_lines("nodeattest: nothing can safely be repaired here", err=True)
        return False
    for one in wanted:
        print_lines(f"nodeattest: create CustomResourceDefinition {text(one, 'metadata', 'name')}", err=True)
    if not yes:
        print_lines("nodeattest: nothing was done; --yes does it", err=True)
        return False
    run(connection, lambda client: create_definitions(client, wanted))
    return True


def _lines(found: Sequence[HealthFinding]) -> Iterator[str]:
    """Write one line for what is ok, and what to do for everything else; then the counts."""
    for title, group in GROUPS.items():
        own = [one for one in found if one.id in group.IDS]
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
