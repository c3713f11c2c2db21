"""Which object an Event is about: the Machine that a request names, or else its Cluster.

A provider ID in a request is a claim, so the object is looked up in the inventory and never made up: a claim that
names no Machine of this cluster, or several, tells of the Cluster. Whoever reads the Event sees that it was refused.
"""

from __future__ import annotations

from nodeattest_controller.clusters.events import Subject
from nodeattest_controller.clusters.inventory import ClusterKey
from nodeattest_controller.clusters.management import Management
from nodeattest_controller.model.machine_record import CLUSTER_RECORD
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.objects import mapping, text
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["claimed_subject", "cluster_subject", "member_subject"]


def member_subject(member: MachineView) -> Subject:
    """Name a Machine, or the MachinePool of an instance."""
    return Subject(
        api_version=member.api_version, kind=member.kind, namespace=member.namespace, name=member.name, uid=member.uid
    )


def cluster_subject(cluster: JsonObject) -> Subject:
    """Name a Cluster, or the ClusterRecord that stands for one."""
    meta = mapping(cluster, "metadata")
    return Subject(
        api_version=text(cluster, "apiVersion"),
        kind=CLUSTER_RECORD if text(cluster, "kind") == CLUSTER_RECORD else "Cluster",
        namespace=text(meta, "namespace"),
        name=text(meta, "name"),
        uid=text(meta, "uid"),
    )


def claimed_subject(management: Management, cluster: ClusterKey, provider_id: str) -> Subject | None:
    """Find the one Machine with this provider ID, else the Cluster; None where that is gone, too."""
    members = management.inventory.members(cluster, provider_id) if provider_id else []
    if len(members) == 1:
        return member_subject(members[0])
    found = management.cluster(cluster)
    return cluster_subject(found) if found is not None else None
