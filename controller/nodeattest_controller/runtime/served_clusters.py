"""Of which clusters the objects are kept whole: of all, or of those that this replica serves.

Of any other cluster's Machines, records, Secrets and MachineAttestations a summary is kept: which object it is, in
which version, of which cluster, and of a MachineAttestation by which policy the machine joined and until when, because
that decides which of several policies rules a cluster. No kubeconfig, CA key or certificate is in a summary. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nodeattest_controller.model.machine_view import CLUSTER_LABEL, cluster_of
from nodeattest_controller.model.objects import items, mapping, moment, text
from nodeattest_controller.model.retired_keys import parse_purpose
from nodeattest_controller.runtime.indexes import ClusterKey, cluster_key
from nodeattest_kube.jsontypes import JsonObject, JsonValue
from nodeattest_providers.names import Purpose

__all__ = [
    "SECRET_SUFFIXES",
    "ServedClusters",
    "cluster_of_object",
    "cluster_of_secret",
    "is_read",
    "is_summary",
    "rest_of_attestation",
    "summary_of_attestation",
]

_SUMMARY: Final = "nodeattest.x-k8s.io/summary"
"""A key beside ``metadata`` that no API server's object has."""
SECRET_SUFFIXES: Final = ("-kubeconfig", "-ca")
"""Of the Secrets that are read, after the cluster's name."""
_TIMES: Final = ("notBefore", "notAfter", "issuedAt")
_IDENTITY: Final = ("name", "namespace", "uid", "resourceVersion", "labels")

Transform = Callable[[JsonObject], JsonObject]


class ServedClusters:
    """Names the clusters whose objects are kept whole."""

    def __init__(self, *, everything: bool) -> None:
        self.everything = everything
        self._served: set[ClusterKey] = set()

    def add(self, cluster: ClusterKey) -> None:
        """Keep a cluster's objects whole from now on."""
        self._served.add(cluster)

    def discard(self, cluster: ClusterKey) -> None:
        """Keep summaries of them from now on."""
        self._served.discard(cluster)

    def whole(self, cluster: ClusterKey) -> bool:
        """Return whether a cluster's objects are kept whole."""
        return self.everything or cluster in self._served

    def transform(
        self, keep: Transform, *, of: Callable[[JsonObject], ClusterKey], summary: Transform | None = None
    ) -> Transform:
        """Make what keeps of an object what ``keep`` does, or its summary; ``of`` names its cluster."""
        short = summary or summary_of

        def kept(obj: JsonObject) -> JsonObject:
            return keep(obj) if self.whole(of(obj)) else short(obj)

        return kept


def is_summary(obj: JsonObject) -> bool:
    """Return whether this is all that is kept of an object."""
    return _SUMMARY in obj


def cluster_of_object(obj: JsonObject) -> ClusterKey:
    """Name the cluster of a Machine, pool, record or MachineAttestation."""
    return cluster_key(text(obj, "metadata", "namespace"), cluster_of(obj))


def is_read(secret: JsonObject) -> bool:
    """Return whether a Secret has a kubeconfig or a CA, by its name."""
    return text(secret, "metadata", "name").endswith(SECRET_SUFFIXES)


def cluster_of_secret(secret: JsonObject) -> ClusterKey:
    """Name the cluster whose kubeconfig or CA a Secret has, by its name, as readers look for it."""
    name = text(secret, "metadata", "name")
    suffix = next((suffix for suffix in SECRET_SUFFIXES if name.endswith(suffix)), "")
    return cluster_key(text(secret, "metadata", "namespace"), name.removesuffix(suffix))


def summary_of(obj: JsonObject) -> JsonObject:
    """Return what is kept of an object of another replica's cluster."""
    meta = mapping(obj, "metadata")
    identity: JsonObject = {name: meta[name] for name in _IDENTITY if name in meta}
    labels = mapping(meta, "labels")
    identity["labels"] = {CLUSTER_LABEL: labels[CLUSTER_LABEL]} if CLUSTER_LABEL in labels else {}
    return {"metadata": identity, "spec": {"clusterName": cluster_of(obj)}, _SUMMARY: True}


def summary_of_attestation(attestation: JsonObject) -> JsonObject:
    """Return the same of a MachineAttestation, with the policy and the end of its newest client certificate."""
    found = summary_of(attestation)
    clients = (entry for entry in items(attestation, "spec", "issued") if parse_purpose(entry) is Purpose.CLIENT)
    usable = [entry for entry in clients if all(moment(text(entry, name)) for name in _TIMES)]
    newest: list[JsonValue] = [{name: entry[name] for name in (*_TIMES, "policy") if name in entry} for entry in usable]
    return {**found, "spec": {**mapping(found, "spec"), "issued": newest[-1:]}}


def rest_of_attestation(attestation: JsonObject) -> JsonObject:
    """Return what stays of one that the inventory has taken: whose it is, and what its summary is made of."""
    if is_summary(attestation):
        return attestation
    return {name: value for name, value in summary_of_attestation(attestation).items() if name != _SUMMARY}
