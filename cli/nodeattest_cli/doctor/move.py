"""What stops ``clusterctl move`` halfway: a pause in the source, or a namespace of the target without the label.

Promises: only reads.
Source: cluster-api cmd/clusterctl/client/cluster/mover.go (checkClustersNotPaused, ensureNamespace).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from nodeattest_cli.connection import explained
from nodeattest_cli.doctor.collect import HealthTarget
from nodeattest_cli.doctor.facts import HealthFacts, MoveFacts, Unread
from nodeattest_cli.doctor.model import HealthFinding, HealthSeverity, listed
from nodeattest_cli.management import CLUSTER_API, OWN, cluster_api_version, list_served
from nodeattest_controller.model.machine_record import cluster_paused
from nodeattest_controller.model.objects import text
from nodeattest_controller.model.webhook_label import LABEL, is_decided, label_command, needs_webhook
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient, ApiError, Forbidden, NotFound
from nodeattest_kube.jsontypes import key_of

__all__ = ["IDS", "cluster_uid", "look", "read_source"]

IDS = ("move-source", "move-namespace")
_READ = "policies, Clusters and ClusterClasses of the source can be read"


async def cluster_uid(client: ApiClient) -> str:
    """Return the UID of namespace kube-system, which identifies a cluster; empty where it may not be read."""
    try:
        return text(await client.get(paths.core_path("namespaces", "kube-system")), "metadata", "uid")
    except (Forbidden, NotFound):
        return ""


async def read_source(client: ApiClient, target: HealthTarget, kubeconfig: str) -> MoveFacts:
    """Read what is paused, and which namespaces have policies that need the label; ``kubeconfig``: of the target.

    What may not be read, or not in time, is ``unread``, but for the first question.
    """
    ends = time.monotonic() + target.timeout
    client.may_send = lambda: time.monotonic() < ends
    found = MoveFacts(kubeconfig=kubeconfig, source_uid=await cluster_uid(client))
    try:
        async for policy in list_served(client, OWN, "nodeattestationpolicies", target.namespace):
            if needs_webhook(policy):
                found.namespaces.setdefault(text(policy, "metadata", "namespace"))
    except ApiError as error:
        found.unread["move-namespace"] = str(explained(error))
    try:
        group = (CLUSTER_API, await cluster_api_version(client))
        for resource in ("clusters", "clusterclasses") if group[1] else ():
            async for one in list_served(client, group, resource, target.namespace):
                if cluster_paused(one):
                    found.paused.append(f"{text(one, 'kind')} {key_of(one)}")
    except ApiError as error:
        found.unread["move-source"] = str(explained(error))
    return found


def look(facts: HealthFacts) -> Iterator[HealthFinding]:
    """Look at the move, where there is one to come."""
    if facts.move is None:
        return
    paused = sorted(facts.move.paused)
    if paused or "move-source" not in facts.move.unread:
        yield HealthFinding(
            id="move-source",
            severity=HealthSeverity.ERROR if paused else HealthSeverity.OK,
            expected="no Cluster or ClusterClass of the source is paused",
            found=f"paused: {listed(paused)}" if paused else "none is",
            remedy="unpause what an earlier move paused (docs/bootstrap-config.md)" if paused else "",
        )
    for name, why in facts.move.unread.items():
        severity, remedy = HealthSeverity.UNKNOWN, "let this user read them"
        yield HealthFinding(id=name, severity=severity, expected=_READ, found=why, remedy=remedy)
    for name, namespace in facts.move.namespaces.items():
        severity, found, remedy = HealthSeverity.ERROR, "without the label", label_command(name)
        if isinstance(namespace, Unread):
            severity, found, remedy = HealthSeverity.UNKNOWN, namespace.why, "let this user read Namespaces"
        elif namespace is None:
            found, remedy = "not there", f"kubectl create namespace {name} && {remedy}"
        elif is_decided(namespace):
            severity, found, remedy = HealthSeverity.OK, "it has", ""
        expected = f"the namespace {name} of the target has the label {LABEL}"
        yield HealthFinding(id="move-namespace", severity=severity, expected=expected, found=found, remedy=remedy)
