"""``nodeattest doctor``: looks at an installation in both clusters, and prints the findings. It changes nothing.

Each check is a function that yields findings. What a check may not read, or not in time, is a finding of its own.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

import click

from nodeattest_cli.connection import Connection, explained, run
from nodeattest_cli.doctor import clusters, installation, rights, webhook
from nodeattest_cli.doctor.model import (
    GROUPS,
    IDS,
    HealthFinding,
    HealthSeverity,
    counts,
    exit_code,
    make_finding,
    not_looked_at,
    to_document,
)
from nodeattest_cli.doctor.survey import (
    HealthTarget,
    Move,
    Survey,
    Unread,
    cluster_uid,
    read_source,
    read_survey,
    readable,
    required,
    server_version,
)
from nodeattest_cli.errors import UserError
from nodeattest_cli.fleet import no_cluster, workload_client
from nodeattest_cli.options import Duration, cluster_option, connected, output_option, workload_option
from nodeattest_cli.output import print_document, print_lines, to_json
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError
from nodeattest_parsing.objects import key_of, text
from nodeattest_parsing.values import JsonObject

DoctorCheck = Callable[[Survey], AsyncIterator[HealthFinding]]
Reach = Callable[[JsonObject], Awaitable[ApiClient]]
"""Makes a client for a workload cluster."""

_CHECKS: Final[dict[str, DoctorCheck]] = {
    "move-namespace": installation.check_move,
    "management-version": installation.check_management_version,
    "cluster-api-version": installation.check_cluster_api,
    "definitions-served": installation.check_definitions,
    "management-rights": rights.check_management_rights,
    "webhook-configuration": webhook.check_webhook,
    "webhook-answers": webhook.check_trials,
    "policies-valid": clusters.check_policies,
    "bootstrap-refused": clusters.check_bootstrap,
    "machines-attested": clusters.check_machines,
}
"""By the finding that stands for a check which may not read what it needs."""
_LAST_CHECKS: Final[dict[str, DoctorCheck]] = {
    "controller-leader": installation.check_controller,  # the Lease was read a while ago
    "controller-version": installation.check_controller_version,
    "local-clock": installation.check_local_clock,
}
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

    async def work(client: ApiClient) -> list[HealthFinding]:
        survey = await read_survey(client, target, move)
        if cluster is not None and not readable(survey.clusters):
            raise no_cluster(cluster, target.namespace)
        if workload is not None and len(survey.protected()) > 1:
            raise UserError("--workload-kubeconfig: is for one cluster; say --cluster and --namespace")

        async def reach(one: JsonObject) -> ApiClient:
            if workload is not None:
                return workload.client()
            return await workload_client(client, text(one, "metadata", "namespace"), text(one, "metadata", "name"))

        return await examine(survey, reach, is_controllers=workload is None)

    found = run(connection, work)
    if output == "json":
        print_document(to_json(to_document(found)))
    else:
        print_lines(*_lines(found))
    return exit_code(found)


def _read_source(source: Connection, other: Connection, target: HealthTarget, move_to: str) -> Move:
    """Read the source of a move; raises ``UserError`` where it is the target, too."""
    one, two = source.endpoint, other.endpoint
    if (one.server, one.ca_pem, one.proxy_url) != (two.server, two.ca_pem, two.proxy_url):
        uid = run(source, cluster_uid)
        if not uid or uid != run(other, cluster_uid):
            return run(source, lambda client: read_source(client, target, move_to))
    raise UserError("--move-to: expected another management cluster, got the one of --kubeconfig")


async def examine(survey: Survey, reach: Reach, *, is_controllers: bool) -> list[HealthFinding]:
    """Make every check; before a move, commands of remedies name the target's kubeconfig.

    ``is_controllers``: the user of workload clusters is the controller's, whose rights are asked for.
    """
    turn = asyncio.Semaphore(rights.AT_ONCE)

    async def of_cluster(cluster: JsonObject) -> list[HealthFinding]:
        async with turn:
            return await _examine_cluster(survey, cluster, reach, is_controllers=is_controllers)

    found = [one for name, check in _CHECKS.items() for one in await _results(name, check(survey))]
    for results in await asyncio.gather(*map(of_cluster, survey.protected())):
        found += results
    found += [one for name, check in _LAST_CHECKS.items() for one in await _results(name, check(survey))]
    found.sort(key=lambda one: IDS.index(one.id))
    if survey.move is None:
        return found
    kubectl = f"kubectl --kubeconfig {shlex.quote(survey.move.kubeconfig)} "
    return [replace(one, remedy=one.remedy.replace("kubectl ", kubectl)) for one in found]


async def _results(name: str, check: AsyncIterator[HealthFinding], cluster: str = "") -> list[HealthFinding]:
    """Collect a check's findings; what it may not read makes one of ``name`` besides."""
    found: list[HealthFinding] = []
    try:
        async for one in check:
            found += [one]  # those before the error count
    except ApiError as error:
        found.append(not_looked_at(name, str(explained(error)), cluster))
    except Unread as error:
        found.append(not_looked_at(name, str(error), cluster))
    return found


async def _examine_cluster(
    survey: Survey, cluster: JsonObject, reach: Reach, *, is_controllers: bool
) -> list[HealthFinding]:
    """Look at one workload cluster, which need not answer."""
    key = key_of(cluster)
    expected, remedy = (
        "the workload cluster answers",
        "docs/monitor.md#a-node-does-not-join, A cluster does not connect",
    )
    try:
        client = await reach(cluster)
        client.may_send = survey.client.may_send
        async with client:
            version = await server_version(client)
            found = [make_finding("cluster-reachable", expected, "it does", cluster=key)]
            found += await _results("workload-version", _versions(key, version), key)
            found += await _results("bootstrap-tokens", clusters.check_bindings(survey, cluster, client), key)
            if is_controllers:
                check = rights.check_workload_rights(survey, key, client)
                found += await _results("workload-rights", check, key)
            else:
                said = "the given kubeconfig is not the controller's own, whose rights are asked for"
                found.append(not_looked_at("workload-rights", said, key))
            theirs, ours = client.server_time(), survey.client.server_time()
            if theirs is not None and ours is not None:
                ahead = (theirs - ours).total_seconds()
                found.append(installation.clock("workload-clock", "the workload cluster's clock", ahead, key))
            return found
    except (ApiError, UserError) as error:
        why = str(explained(error)) if isinstance(error, ApiError) else str(error)
        unreached = make_finding("cluster-reachable", expected, "", unknown=[why], remedy=remedy, cluster=key)
        return [unreached, clusters.approval(survey, cluster, Unread("the cluster does not answer"))]


async def _versions(key: str, version: str | Unread) -> AsyncIterator[HealthFinding]:
    yield installation.kubernetes_version("workload-version", required(version), installation.OLDEST, key)


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
