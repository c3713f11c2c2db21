"""What stops ``clusterctl move`` halfway: a pause in the source, or a namespace of the target without the label.

Promises: reads both management clusters, and changes neither.
Source: cluster-api cmd/clusterctl/client/cluster/mover.go (checkClustersNotPaused, ensureNamespace).
"""

from __future__ import annotations

from collections.abc import Iterator

from nodeattest_cli.doctor.facts import HealthFacts, MoveFacts, Unread
from nodeattest_cli.doctor.model import HealthFinding, HealthSeverity, listed
from nodeattest_cli.management import CLUSTER_API, OWN, cluster_api_version, list_served
from nodeattest_controller.model.objects import flag, mapping, text
from nodeattest_controller.model.webhook_label import LABEL, is_decided, label_command, needs_webhook
from nodeattest_kube.client import ApiClient
from nodeattest_kube.jsontypes import key_of

__all__ = ["IDS", "look", "read_source"]

IDS = ("move-source", "move-namespace")
_PAUSED = "cluster.x-k8s.io/paused"


async def read_source(client: ApiClient, namespace: str | None, target: str) -> MoveFacts:
    """Read what is paused, and which namespaces have policies that need the label; ``target``: its kubeconfig."""
    found = MoveFacts(kubeconfig=target)
    async for policy in list_served(client, OWN, "nodeattestationpolicies", namespace):
        if needs_webhook(policy):
            found.namespaces.setdefault(text(policy, "metadata", "namespace"))
    group = (CLUSTER_API, await cluster_api_version(client))
    for resource in ("clusters", "clusterclasses") if group[1] else ():
        async for one in list_served(client, group, resource, namespace):
            if flag(one, "spec", "paused") or _PAUSED in mapping(one, "metadata", "annotations"):
                found.paused.append(f"{text(one, 'kind')} {key_of(one)}")
    return found


def look(facts: HealthFacts) -> Iterator[HealthFinding]:
    """Look at the move, where there is one to come."""
    if facts.move is None:
        return
    paused = sorted(facts.move.paused)
    yield HealthFinding(
        id="move-source",
        severity=HealthSeverity.ERROR if paused else HealthSeverity.OK,
        expected="no Cluster or ClusterClass of the source is paused",
        found=f"paused: {listed(paused)}" if paused else "none is",
        remedy="unpause what an earlier move paused (docs/bootstrap-config.md)" if paused else "",
    )
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
