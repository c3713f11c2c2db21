"""``nodeattest doctor``: checks an installation in both clusters, and prints the findings. It changes nothing.

Each check returns a ``CheckResult``. What a check may not read, or not in time, is a finding of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

import click

from nodeattest_cli.connection import Connection, explained, run
from nodeattest_cli.doctor import clusters, installation
from nodeattest_cli.doctor.findings import NOT_READ, TABLE, CheckResult, HealthFinding, count, exit_code, worst
from nodeattest_cli.doctor.survey import CONTROLLER, Survey
from nodeattest_cli.fleet import no_cluster, workload_client
from nodeattest_cli.options import Duration, cluster_option, connected, output_option, workload_option
from nodeattest_cli.output import UserError, print_document, print_lines, to_json
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError
from nodeattest_parsing.objects import key_of, text
from nodeattest_parsing.values import JsonObject

Reach = Callable[[JsonObject], Awaitable[ApiClient]]
"""Makes a client of a workload cluster."""

_CHECKS: Final[dict[str, Callable[[Survey], Awaitable[CheckResult | None]]]] = {
    "management-version": installation.check_management_version,
    "cluster-api-version": installation.check_cluster_api,
    "controller-version": installation.check_controller_version,
    "definitions": installation.check_definitions,
    "controller-leader": installation.check_leader,
    "management-rights": installation.check_management_rights,
    "challenge-secrets-policy": installation.check_secret_limit,
    "webhook-answers": installation.check_webhook,
    "policies": clusters.check_policies,
    "clusters-without-policy": clusters.check_unprotected,
}
_OF_CLUSTER: Final[dict[str, Callable[[Survey, JsonObject], Awaitable[CheckResult | None]]]] = {
    "cluster-conditions": clusters.check_conditions,
    "bootstrap-data": clusters.check_bootstrap_data,
    "machines": clusters.check_machines,
}
_IN_CLUSTER: Final[dict[str, Callable[[Survey, ApiClient], Awaitable[CheckResult]]]] = {
    "workload-version": clusters.check_workload_version,
    "cluster-reachable": clusters.check_reachable,
    "workload-rights": installation.check_workload_rights,
    "bootstrap-tokens": clusters.check_tokens,
}
_CLUSTERS_AT_ONCE: Final = 8


@click.command()
@connected
@click.option("-n", "--namespace", help="Namespace of the Clusters  [the context's; default]")
@click.option("-A", "--all-namespaces", is_flag=True, help="Clusters of every namespace.")
@cluster_option
@workload_option
@click.option("--controller-namespace", default="nodeattest-system", help="Where the controller is.")
@click.option("--lease-name", default=CONTROLLER, help="The controller's Lease.")
@click.option("--timeout", type=Duration(), default="10m", help="How long to ask; what is left is not checked.")
@output_option("text", "json")
def doctor(
    *,
    connection: Connection,
    namespace: str | None,
    all_namespaces: bool,
    cluster: str | None,
    workload: Connection | None,
    controller_namespace: str,
    lease_name: str,
    timeout: timedelta,
    output: str,
) -> int:
    """Check an installation in both clusters: what is wrong, and what to do.

    Versions, definitions, the controller's Lease and rights, the webhook, and the conditions that the controller writes
    of policies, clusters and machines. What this user may not read is "?", with the reason. No Secret is read but
    <cluster>-kubeconfig.

    Exit code 0: nothing fails, though there may be warnings. 1: something fails. 3: nothing fails, and something could
    not be checked.
    """
    if namespace and all_namespaces:
        raise UserError("expected --namespace or --all-namespaces, got both")
    where = None if all_namespaces else connection.namespace(namespace)
    ends = time.monotonic() + timeout.total_seconds()

    async def work(client: ApiClient) -> list[HealthFinding]:
        client.may_send = lambda: time.monotonic() < ends
        survey = Survey(
            client=client,
            namespace=where,
            cluster=cluster,
            controller_namespace=controller_namespace,
            lease_name=lease_name,
        )
        await client.get("/version")
        if cluster is not None and not await survey.clusters():
            raise no_cluster(cluster, where)
        if workload is not None and len(await survey.protected()) > 1:
            raise UserError("--workload-kubeconfig: is for one cluster; set --cluster and --namespace")

        async def reach(one: JsonObject) -> ApiClient:
            if workload is not None:
                return workload.client()
            return await workload_client(client, text(one, "metadata", "namespace"), text(one, "metadata", "name"))

        return await examine(survey, reach, is_controllers=workload is None)

    findings = run(connection, work)
    if output == "json":
        entries = [one.to_json() for one in findings]
        print_document(
            to_json({"severity": str(worst(findings)), "counts": {**count(findings)}, "findings": [*entries]})
        )
    else:
        counts = ", ".join(f"{number} {severity}" for severity, number in count(findings).items())
        print_lines(*(line for one in findings for line in one.lines()), "", counts)
    return exit_code(findings)


async def examine(survey: Survey, reach: Reach, *, is_controllers: bool) -> list[HealthFinding]:
    """Make every check.

    ``is_controllers``: the user of workload clusters is the controller's, whose rights are checked.
    """
    findings = [await _finding(name, check(survey)) for name, check in _CHECKS.items()]
    try:
        protected = await survey.protected()
    except ApiError:
        protected = []  # another finding says why
    turn = asyncio.Semaphore(_CLUSTERS_AT_ONCE)

    async def of_cluster(cluster: JsonObject) -> list[HealthFinding | None]:
        async with turn:
            own = [await _finding(name, check(survey, cluster), key_of(cluster)) for name, check in _OF_CLUSTER.items()]
            return own + await _in_cluster(survey, cluster, reach, is_controllers=is_controllers)

    for of_one in await asyncio.gather(*map(of_cluster, protected)):
        findings += of_one
    order = list(TABLE)
    return sorted((one for one in findings if one is not None), key=lambda one: order.index(one.id))


async def _in_cluster(
    survey: Survey, cluster: JsonObject, reach: Reach, *, is_controllers: bool
) -> list[HealthFinding | None]:
    """Check one workload cluster, which need not answer."""
    key = key_of(cluster)
    try:
        client = await reach(cluster)
        client.may_send = survey.client.may_send
        async with client:
            await client.get("/version")
            checks = {name: check for name, check in _IN_CLUSTER.items() if is_controllers or name != "workload-rights"}
            return [await _finding(name, check(survey, client), key) for name, check in checks.items()]
    except (ApiError, UserError) as error:
        why = str(explained(error)) if isinstance(error, ApiError) else str(error)
        return [HealthFinding.make("cluster-reachable", CheckResult(unknown=[why]), key)]


async def _finding(name: str, check: Awaitable[CheckResult | None], cluster: str = "") -> HealthFinding | None:
    """Await a check; what it may not read is a finding, too."""
    try:
        result = await check
    except ApiError as error:
        return HealthFinding.make(name, CheckResult(unknown=[str(explained(error))]), cluster, NOT_READ)
    return HealthFinding.make(name, result, cluster) if result is not None else None
