"""Which cluster an object of the management cluster belongs to, and which Secrets are read. Pure."""

from __future__ import annotations

from typing import Final

from nodeattest_controller.model.machine_view import cluster_of
from nodeattest_controller.model.objects import text
from nodeattest_controller.runtime.indexes import ClusterKey, cluster_key
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["SECRET_SUFFIXES", "cluster_of_object", "is_read"]

SECRET_SUFFIXES: Final = ("-kubeconfig", "-ca")
"""Of the Secrets that are read, after the cluster's name."""


def cluster_of_object(obj: JsonObject) -> ClusterKey:
    """Name the cluster of a Machine, pool, record or MachineAttestation."""
    return cluster_key(text(obj, "metadata", "namespace"), cluster_of(obj))


def is_read(secret: JsonObject) -> bool:
    """Return whether a Secret has a kubeconfig or a CA, by its name."""
    return text(secret, "metadata", "name").endswith(SECRET_SUFFIXES)
