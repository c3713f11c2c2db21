"""Which cluster an object of the management cluster belongs to, and what is kept of a record. Pure."""

from __future__ import annotations

from typing import Final

from nodeattest_controller.model.machine_view import CLUSTER_LABEL, cluster_of
from nodeattest_controller.model.objects import items, mapping, moment, text
from nodeattest_controller.model.retired_keys import parse_purpose
from nodeattest_controller.runtime.indexes import ClusterKey, cluster_key
from nodeattest_kube.jsontypes import JsonObject, JsonValue
from nodeattest_providers.names import Purpose

__all__ = ["SECRET_SUFFIXES", "cluster_of_object", "is_read", "rest_of_attestation"]

SECRET_SUFFIXES: Final = ("-kubeconfig", "-ca")
"""Of the Secrets that are read, after the cluster's name."""
_TIMES: Final = ("notBefore", "notAfter", "issuedAt")
_IDENTITY: Final = ("name", "namespace", "uid", "resourceVersion")


def cluster_of_object(obj: JsonObject) -> ClusterKey:
    """Name the cluster of a Machine, pool, record or MachineAttestation."""
    return cluster_key(text(obj, "metadata", "namespace"), cluster_of(obj))


def is_read(secret: JsonObject) -> bool:
    """Return whether a Secret has a kubeconfig or a CA, by its name."""
    return text(secret, "metadata", "name").endswith(SECRET_SUFFIXES)


def rest_of_attestation(attestation: JsonObject) -> JsonObject:
    """Return what stays of a MachineAttestation that the inventory has taken.

    Which object it is, whose, and by which policy the machine joined and until when.
    """
    meta = mapping(attestation, "metadata")
    identity: JsonObject = {name: meta[name] for name in _IDENTITY if name in meta}
    labels = mapping(meta, "labels")
    identity["labels"] = {CLUSTER_LABEL: labels[CLUSTER_LABEL]} if CLUSTER_LABEL in labels else {}
    clients = (entry for entry in items(attestation, "spec", "issued") if parse_purpose(entry) is Purpose.CLIENT)
    usable = [entry for entry in clients if all(moment(text(entry, name)) for name in _TIMES)]
    newest: list[JsonValue] = [{name: entry[name] for name in (*_TIMES, "policy") if name in entry} for entry in usable]
    return {"metadata": identity, "spec": {"clusterName": cluster_of(attestation), "issued": newest[-1:]}}
