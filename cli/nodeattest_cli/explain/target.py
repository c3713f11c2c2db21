"""Fetches everything about a target by the kubeconfigs that a command was given."""

from __future__ import annotations

from datetime import UTC, datetime

from nodeattest_cli.connection import Connection, run
from nodeattest_cli.explain.collect import Collected, Target, collect
from nodeattest_kube.client import ApiClient

__all__ = ["fetch_target"]


def fetch_target(
    target: Target,
    connection: Connection,
    *,
    namespace: str | None,
    cluster: str | None,
    workload_kubeconfig: str | None,
) -> Collected:
    """Fetch; raises ``UserError``."""
    where = connection.namespace(namespace)
    workload = Connection(workload_kubeconfig, None).client if workload_kubeconfig is not None else None

    async def ask(client: ApiClient) -> Collected:
        now = datetime.now(UTC)
        return await collect(
            client,
            target,
            namespace=where,
            cluster=cluster,
            workload=workload,
            now=now,
        )

    return run(connection, ask)
