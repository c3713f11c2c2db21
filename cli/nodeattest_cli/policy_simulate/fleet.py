"""What a simulation reads of the management cluster: records, machines, Clusters and policies of one namespace.

Promises: page by page, and of each object only what is compared; certificates are dropped as they come. Infrastructure
objects are read where a provider asks for their annotations; those that may not be read are named with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain

from nodeattest_cli.machines.attestations import list_attestations
from nodeattest_cli.management import CLUSTER_API, OWN, cluster_api_version, list_objects, list_served
from nodeattest_cli.policy_simulate.evaluate import InfraAnnotations
from nodeattest_controller.model.attestation import Attestation, parse_attestation
from nodeattest_controller.model.machine_kinds import machine_views
from nodeattest_controller.model.machine_view import ContractReference, MachineView
from nodeattest_controller.model.objects import mapping, text, text_map
from nodeattest_controller.runtime.restmapper import path_of_reference
from nodeattest_kube.client import ApiClient, Forbidden, NotFound
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.names import ProviderID, Purpose

__all__ = ["Fleet", "read_fleet", "read_infra"]


@dataclass(slots=True, kw_only=True)
class Fleet:
    """One namespace."""

    namespace: str
    clusters: dict[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    """Clusters and ClusterRecords by name: metadata and what narrows a policy."""
    policies: dict[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    attestations: list[Attestation] = field(default_factory=list[Attestation])
    """With the newest certificate of each purpose, without its text."""
    machines: dict[tuple[str, ProviderID], MachineView] = field(
        default_factory=dict[tuple[str, ProviderID], MachineView]
    )
    """By cluster and provider ID; of a pool's instance its Machine, where it has one."""
    unconfirmed: dict[str, MachineView] = field(default_factory=dict[str, MachineView])
    """Machines to which Cluster API has given no provider ID, by UID."""

    def machine_of(self, attestation: Attestation) -> MachineView | None:
        """Return the machine that a record is about; None where it is gone."""
        found = self.machines.get((attestation.cluster_name, attestation.provider_id))
        return found or self.unconfirmed.get(attestation.owner_uid)

    def count_under(self, now: datetime) -> Mapping[tuple[str, str], int]:
        """Count machines with a valid certificate by their cluster and the policy that admitted them."""
        return Counter((one.cluster_name, one.policy_at(now)) for one in self.attestations)


async def read_fleet(client: ApiClient, namespace: str, selector: str | None) -> Fleet:
    """Read a namespace; ``selector`` is of the Machines' labels."""
    fleet = Fleet(namespace=namespace)
    async for one in list_attestations(client, namespace, None):
        fleet.attestations.append(_slim(parse_attestation(one)))
    async for one in list_served(client, OWN, "nodeattestationpolicies", namespace):
        fleet.policies[text(one, "metadata", "name")] = one
    version = await cluster_api_version(client)
    kinds: list[tuple[tuple[str, str], str, str]] = [(OWN, "clusterrecords", "machinerecords")]
    if version:
        kinds.append(((CLUSTER_API, version), "clusters", "machines"))
    for group, clusters, machines in kinds:
        async for one in list_served(client, group, clusters, namespace):
            fleet.clusters[text(one, "metadata", "name")] = _slim_cluster(one)
        async for one in list_served(client, group, machines, namespace, selector):
            _take_in(fleet, one)
    if version:
        async for one in list_served(client, (CLUSTER_API, version), "machinepools", namespace, selector):
            _take_in(fleet, one)
    return fleet


async def read_infra(client: ApiClient, machines: Sequence[MachineView], namespace: str) -> InfraAnnotations:
    """Read the annotations of the infrastructure objects of machines, a list for each kind."""
    wanted = {machine.infra for machine in machines if machine.infra is not None}
    found: dict[ContractReference, Mapping[str, str]] = {}
    unread: dict[str, str] = {}
    for group, version, kind in sorted({(one.group, one.version, one.kind) for one in wanted}):
        try:
            example = next(one for one in wanted if (one.group, one.version, one.kind) == (group, version, kind))
            path = await path_of_reference(client, example, namespace)
            async for item in list_objects(client, path.rpartition("/")[0]):
                reference = ContractReference(group, kind, text(item, "metadata", "name"), version)
                if reference in wanted:
                    found[reference] = text_map(item, "metadata", "annotations")
        except (Forbidden, NotFound) as error:
            unread[kind] = str(error)
    return InfraAnnotations(found, unread)


def _take_in(fleet: Fleet, machine: JsonObject) -> None:
    for view in machine_views(machine):
        if not view.provider_id:
            fleet.unconfirmed[view.uid] = view
            continue
        fleet.machines.setdefault((view.cluster_name, view.provider_id), view)


def _slim(attestation: Attestation) -> Attestation:
    """Drop what no simulation reads, most of it the text of certificates."""
    newest = chain.from_iterable(attestation.of_purpose(purpose)[-1:] for purpose in Purpose)
    return replace(attestation, issued=tuple(replace(one, certificate="") for one in newest), retired=())


def _slim_cluster(cluster: JsonObject) -> JsonObject:
    return {
        "metadata": mapping(cluster, "metadata"),
        "spec": {"security": mapping(cluster, "spec", "security")} if mapping(cluster, "spec", "security") else {},
    }
