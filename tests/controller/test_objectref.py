"""Which object an Event is about."""

from __future__ import annotations

from builders import MEMBER

from nodeattest_controller.runtime.objectref import cluster_ref, member_ref


def test_a_machines_and_a_clusters_events_name_them() -> None:
    assert (member_ref(MEMBER).kind, member_ref(MEMBER).uid) == ("Machine", "m-0")
    cluster = cluster_ref(
        {"apiVersion": "cluster.x-k8s.io/v1beta1", "metadata": {"name": "c", "namespace": "fleet", "uid": "c-0"}}
    )
    assert (cluster.kind, cluster.namespace, cluster.name, cluster.uid) == ("Cluster", "fleet", "c", "c-0")


def test_a_cluster_records_events_name_the_record() -> None:
    record = cluster_ref(
        {
            "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
            "kind": "ClusterRecord",
            "metadata": {"name": "metal", "namespace": "fleet", "uid": "r-0"},
        }
    )
    named = (record.api_version, record.kind, record.name, record.uid)
    assert named == ("attestation.cluster.x-k8s.io/v1alpha1", "ClusterRecord", "metal", "r-0")
