"""Which object an Event is about, the Machine that a request names or else its Cluster; and where a Cluster is.

A provider ID in a request is a claim, so the object is looked up in the inventory and never made up.
"""

from __future__ import annotations

from nodeattest_controller.model.machine_record import CLUSTER_RECORD
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_kube import paths
from nodeattest_kube.events import ObjectRef
from nodeattest_parsing.objects import mapping, text
from nodeattest_parsing.values import JsonObject


def member_ref(member: MachineView) -> ObjectRef:
    """Name a Machine, or the MachinePool of an instance."""
    return ObjectRef(
        api_version=member.api_version, kind=member.kind, namespace=member.namespace, name=member.name, uid=member.uid
    )


def cluster_ref(cluster: JsonObject) -> ObjectRef:
    """Name a Cluster, or the ClusterRecord that stands for one."""
    meta = mapping(cluster, "metadata")
    return ObjectRef(
        api_version=text(cluster, "apiVersion"),
        kind=CLUSTER_RECORD if text(cluster, "kind") == CLUSTER_RECORD else "Cluster",
        namespace=text(meta, "namespace"),
        name=text(meta, "name"),
        uid=text(meta, "uid"),
    )


def cluster_path(cluster: JsonObject) -> str:
    """Return the path of a Cluster, or of the ClusterRecord that stands for one, in the version that was read."""
    group, _, version = text(cluster, "apiVersion").partition("/")
    name, namespace = text(cluster, "metadata", "name"), text(cluster, "metadata", "namespace")
    resource = "clusterrecords" if text(cluster, "kind") == CLUSTER_RECORD else "clusters"
    return paths.object_path(group, version, resource, name, namespace=namespace)


def claimed_ref(
    management: ManagementCache, cluster: ClusterKey, provider_id: str, of_token: MachineView | None
) -> ObjectRef | None:
    """Find the one Machine with this provider ID, else that of the token, else the Cluster; None if that is gone."""
    members = management.inventory.members(cluster, provider_id) if provider_id else []
    if len(members) == 1:
        return member_ref(members[0])
    if not members and of_token is not None:
        return member_ref(of_token)
    found = management.cluster(cluster)
    return cluster_ref(found) if found is not None else None
