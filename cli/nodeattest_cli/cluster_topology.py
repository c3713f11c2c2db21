"""What Cluster API makes of a Cluster's topology by its ClusterClass, as far as it decides who can join. Pure.

Both contracts are read. A name that Cluster API ends with random letters ends with ``-*`` here.
Source: cluster-api exp/topology/desiredstate/desired_state.go, internal/webhooks/clusterclass.go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from nodeattest_controller.model.objects import items, mapping, text
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["made_by_topologies"]

_GROUP: Final = "cluster.x-k8s.io"
_OWNED: Final = "topology.cluster.x-k8s.io/owned"
_WORKERS: Final = (("machineDeployments", "MachineDeployment"), ("machinePools", "MachinePool"))


def made_by_topologies(documents: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """Yield, for each Cluster whose ClusterClass is in the file, the Cluster with its control plane, and its workers.

    What they refer to are the class's templates. Where a file has workers that a topology made, they speak for
    themselves.
    """
    classes = {
        (text(one, "metadata", "namespace"), text(one, "metadata", "name")): one
        for one in documents
        if _is(one, "ClusterClass")
    }
    for cluster in documents:
        topology = mapping(cluster, "spec", "topology")
        if not _is(cluster, "Cluster") or not topology:
            continue
        namespace = text(cluster, "metadata", "namespace")
        place = text(topology, "classRef", "namespace") or text(topology, "classNamespace") or namespace
        name = text(topology, "classRef", "name") or text(topology, "class")
        found = classes.get((place, name))
        if found is not None:
            yield from _made(cluster, found, documents)


def _made(cluster: JsonObject, of_class: JsonObject, documents: Sequence[JsonObject]) -> Iterator[JsonObject]:
    plane = mapping(of_class, "spec", "controlPlane")
    if not mapping(cluster, "spec", "controlPlaneRef"):
        spec: JsonObject = {**mapping(cluster, "spec"), "controlPlaneRef": _reference(plane)}
        yield {**cluster, "spec": spec}
    name = text(cluster, "metadata", "name")
    if any(_OWNED in mapping(one, "metadata", "labels") and text(one, "spec", "clusterName") == name
           for one in documents):  # fmt: skip
        return
    for field, kind in _WORKERS:
        known = {text(one, "class"): one for one in items(of_class, "spec", "workers", field)}
        for worker in items(cluster, "spec", "topology", "workers", field):
            template = known.get(text(worker, "class"))
            if template is not None:
                yield _worker(cluster, kind, text(worker, "name"), template)


def _worker(cluster: JsonObject, kind: str, name: str, of_class: JsonObject) -> JsonObject:
    parts = mapping(of_class, "template") or of_class  # v1beta1 has both references in a template
    named = text(cluster, "metadata", "name")
    spec: JsonObject = {
        "clusterName": named,
        "bootstrap": {"configRef": _reference(mapping(parts, "bootstrap"))},
        "infrastructureRef": _reference(mapping(parts, "infrastructure")),
    }
    metadata: JsonObject = {**mapping(cluster, "metadata"), "name": f"{named}-{name}-*"}
    template: JsonObject = {"spec": spec}
    whole: JsonObject = {"clusterName": named, "template": template}
    return {"apiVersion": text(cluster, "apiVersion"), "kind": kind, "metadata": metadata, "spec": whole}


def _reference(template: JsonObject) -> JsonObject:
    return mapping(template, "templateRef") or mapping(template, "ref")


def _is(document: JsonObject, kind: str) -> bool:
    return (text(document, "apiVersion").partition("/")[0], text(document, "kind")) == (_GROUP, kind)
