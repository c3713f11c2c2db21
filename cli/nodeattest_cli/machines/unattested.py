"""Nodes that are not in the ledger, and what is to be done about each: facts from both clusters, then plain decisions.

Promises: a Node counts as attested exactly as the controller ``hardening`` counts it; a cluster that cannot be reached
is reported beside the others and hides none of them. Changes nothing. Leaves messages to ``adopt``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from nodeattest_cli.errors import StateError, UserError
from nodeattest_cli.machines.rejoin import workload_client
from nodeattest_cli.management import CLUSTER_API, OWN, cluster_api_version, list_objects, list_served, no_cluster
from nodeattest_controller.controllers.auto_approval.node_coverage import is_attested
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.objects import condition, items, key_of, text
from nodeattest_controller.model.policy import policy_for
from nodeattest_controller.runtime.indexes import ClusterKey, Inventory
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient, ApiError
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.errors import Denied, Unavailable
from nodeattest_providers.names import NodeName, ProviderName
from nodeattest_providers.registry import INSECURE

__all__ = ["Action", "Report", "Unattested", "survey"]


class Action(StrEnum):
    """What is to be done about a Node."""

    ADOPT = "adopt"
    """Its kubelet takes itself over, by the certificate that it has."""
    OPEN = "open"
    """An operator opens its Machine: the policy's provider proves nothing."""
    REJOIN = "rejoin"
    """It joined attested, and its certificate has ended."""
    NO_MACHINE = "none"
    """No Machine is its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unattested:
    """One Node that is not in the ledger."""

    cluster: ClusterKey
    node: str
    provider_id: str
    """The Node's own, or its Machine's where it has none."""
    ready: bool
    member: MachineView | None
    has_attestation: bool
    providers: tuple[ProviderName, ...]
    """Those that the policy names; empty where that is not known."""

    @property
    def todo(self) -> Action:
        """What is to be done about it."""
        if self.member is None:
            return Action.NO_MACHINE
        if self.has_attestation:
            return Action.REJOIN
        return Action.OPEN if self.providers and set(self.providers) <= INSECURE else Action.ADOPT

    def names(self) -> set[str]:
        """Return what an operator may call it."""
        return {self.node, self.provider_id, self.member.name if self.member else ""} - {""}


@dataclass(frozen=True, slots=True)
class Report:
    """All that was found."""

    unattested: tuple[Unattested, ...]
    attested: int
    unreachable: tuple[tuple[ClusterKey, str], ...]


async def survey(client: ApiClient, *, namespace: str, cluster: str | None, now: datetime) -> Report:
    """Look at the clusters of a namespace; raises ``UserError`` where there is none of that name."""
    version = await cluster_api_version(client)
    inventory = await _inventory(client, namespace, version)
    found = [item async for item in list_served(client, OWN, "clusterrecords", namespace)]
    if version:
        found += [item async for item in list_served(client, (CLUSTER_API, version), "clusters", namespace)]
    elif not found:
        raise StateError(
            f"{client.server} has no Cluster API, and no ClusterRecord in namespace {namespace}: point --kubeconfig at "
            "the management cluster"
        )
    chosen = [item for item in found if cluster in {None, text(item, "metadata", "name")}]
    if not chosen:
        raise no_cluster(cluster, namespace)
    policies = [item async for item in list_served(client, OWN, "nodeattestationpolicies", namespace)]
    unattested: list[Unattested] = []
    unreachable: list[tuple[ClusterKey, str]] = []
    attested = 0
    for one in chosen:
        key = ClusterKey(key_of(one))
        providers = _providers(one, policies, lambda name, key=key: inventory.machines_under(key, name, now))
        try:
            async with await workload_client(client, namespace, text(one, "metadata", "name")) as workload:
                nodes = [node async for node in list_objects(workload, paths.core_path("nodes"))]
        except (ApiError, UserError) as error:
            unreachable.append((key, str(error)))
            continue
        for node in nodes:
            if is_attested(node, key, inventory, now):
                attested += 1
            else:
                unattested.append(_unattested(node, key, inventory, providers))
    return Report(tuple(unattested), attested, tuple(unreachable))


def _unattested(
    node: JsonObject, key: ClusterKey, inventory: Inventory, providers: Sequence[ProviderName]
) -> Unattested:
    name, provider_id = text(node, "metadata", "name"), text(node, "spec", "providerID")
    members = inventory.members(key, provider_id) if provider_id else inventory.members_by_node_name(key, name)
    if not provider_id:
        uid = text(node, "metadata", "uid")
        members = [member for member in members if member.node_ref_uid == uid]
    member = members[0] if len(members) == 1 else None
    ready = condition(items(node, "status", "conditions"), "Ready")
    attestation = inventory.attestation(key, member.provider_id) if member else None
    return Unattested(
        cluster=key,
        node=name,
        provider_id=provider_id or (member.provider_id if member else ""),
        ready=ready is not None and ready.get("status") == "True",
        member=member,
        has_attestation=attestation is not None
        and bool(attestation.issued)
        and attestation.node_name == NodeName(name),
        providers=tuple(providers),
    )


def _providers(
    cluster: JsonObject, policies: Sequence[JsonObject], recorded: Callable[[str], int]
) -> tuple[ProviderName, ...]:
    try:
        return tuple(sorted(policy_for(cluster, policies, recorded=recorded).attestors))
    except (Denied, Unavailable):
        return ()


async def _inventory(client: ApiClient, namespace: str, version: str) -> Inventory:
    inventory = Inventory()
    async for record in list_served(client, OWN, "machinerecords", namespace):
        inventory.put_record(key_of(record), record)
    if version:
        async for machine in list_served(client, (CLUSTER_API, version), "machines", namespace):
            inventory.put_machine(key_of(machine), machine)
        async for pool in list_served(client, (CLUSTER_API, version), "machinepools", namespace):
            inventory.put_pool(key_of(pool), pool)  # MachinePools are behind a feature gate
    async for attestation in list_served(client, OWN, "machineattestations", namespace):
        inventory.put_attestation(key_of(attestation), attestation)
    return inventory
