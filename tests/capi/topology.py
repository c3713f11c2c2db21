"""Cluster API's topology controller, imitated: a Cluster that names a ClusterClass, and what is made of it.

Everything is written by server-side apply as ``capi-topology``. What exists is compared by two dry runs for each object
and each reconcile, through all webhooks. Not imitated: patches, variables, upgrades, MachinePools, health checks.
Source: cluster-api v1.13 exp/topology/desiredstate, internal/controllers/topology/cluster (structuredmerge).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any, Final, cast

from kinds import (
    CLUSTER_CLASS,
    CLUSTER_LABEL,
    DEPLOYMENT,
    KINDS,
    Kind,
    Object,
    made,
    name_of,
    owner,
)
from manager import Access

from nodeattest_sandbox.client import Client

__all__ = ["apply_topology"]

_OWNED: Final = "topology.cluster.x-k8s.io/owned"
_DEPLOYMENT: Final = "topology.cluster.x-k8s.io/deployment-name"
_DRY_RUN: Final = "topology.cluster.x-k8s.io/dry-run"
_MANAGER: Final = {"fieldManager": "capi-topology", "force": "true"}


async def apply_topology(access: Access, client: Client, cluster: Object) -> Object:
    """Make what a Cluster's topology says; returns the Cluster with its references."""
    topology, name = cluster["spec"]["topology"], name_of(cluster)
    of_class = cast("Object", await access.get(CLUSTER_CLASS, topology["classRef"]["name"]))["spec"]
    apply = _Applier(access, client)
    labels = {_OWNED: ""}
    reference = cluster["spec"].get("infrastructureRef", {})
    template = await _template(access, of_class["infrastructure"])
    kind = _made_of(template)
    infrastructure = made(kind, _named(reference, name), name, _body(template), labels=labels)
    await apply(infrastructure)
    reference = cluster["spec"].get("controlPlaneRef", {})
    plane = await _control_plane(access, cluster, of_class["controlPlane"], _named(reference, name), apply)
    await apply(plane)
    spec = {"infrastructureRef": _refer(infrastructure), "controlPlaneRef": _refer(plane)}
    cluster = await access.patch(cluster, metadata={"labels": {**labels, CLUSTER_LABEL: name}}, spec=spec)
    for worker in topology["workers"]["machineDeployments"]:
        of_worker = next(one for one in of_class["workers"]["machineDeployments"] if one["class"] == worker["class"])
        await _deployment(access, cluster, worker, of_worker, apply)
    return cluster


async def _control_plane(
    access: Access, cluster: Object, of_class: Object, name: str, apply: Callable[..., Any]
) -> Object:
    template = await _template(access, of_class)
    current = await access.get(_made_of(template), name)
    machine: Object = current["spec"]["machineTemplate"]["spec"]["infrastructureRef"] if current else {}
    machines = await _clone(access, cluster, of_class["machineInfrastructure"], _named(machine, name), {_OWNED: ""})
    await apply(machines)
    topology = cluster["spec"]["topology"]
    spec = {
        **_body(template),
        "version": topology["version"],
        "replicas": topology["controlPlane"]["replicas"],
        "machineTemplate": {"spec": {"infrastructureRef": _refer(machines)}},
    }
    return made(_made_of(template), name, name_of(cluster), spec, labels={_OWNED: ""})


async def _deployment(
    access: Access, cluster: Object, worker: Object, of_class: Object, apply: Callable[..., Any]
) -> None:
    name, labels = name_of(cluster), {_OWNED: "", _DEPLOYMENT: worker["name"]}
    found = await access.list(DEPLOYMENT, **{CLUSTER_LABEL: name, **labels})
    current: Object = found[0]["spec"]["template"]["spec"] if found else {}
    base = f"{name}-{worker['name']}"
    reference = current.get("bootstrap", {}).get("configRef", {})
    config = await _clone(access, cluster, of_class["bootstrap"], _named(reference, base), labels)
    reference = current.get("infrastructureRef", {})
    machine = await _clone(access, cluster, of_class["infrastructure"], _named(reference, base), labels)
    await apply(config)
    await apply(machine)
    wanted = {CLUSTER_LABEL: name, _DEPLOYMENT: worker["name"]}  # Kubernetes 1.20 takes the empty label for null
    spec = {
        "clusterName": name,
        "version": cluster["spec"]["topology"]["version"],
        "bootstrap": {"configRef": _refer(config)},
        "infrastructureRef": _refer(machine),
    }
    whole = {
        "clusterName": name,
        "replicas": worker["replicas"],
        "selector": {"matchLabels": wanted},
        "template": {"metadata": {"labels": wanted}, "spec": spec},
    }
    given = _named({"name": name_of(found[0])} if found else {}, base)
    await apply(made(DEPLOYMENT, given, name, whole, labels=labels, ownerReferences=[owner(cluster, controller=False)]))


class _Applier:
    """Applies objects: at once where there is none, else after dry runs that show a difference."""

    def __init__(self, access: Access, client: Client) -> None:
        self._access, self._client = access, client

    async def __call__(self, desired: Object) -> None:
        kind = KINDS[desired["kind"]]
        current = await self._access.get(kind, name_of(desired))
        if current is not None:
            annotations = {**desired["metadata"].get("annotations", {}), _DRY_RUN: ""}
            marked = {**desired, "metadata": {**desired["metadata"], "annotations": annotations}}
            modified, original = [await self._patch(kind, marked, dryRun="All") for _ in range(2)]
            if modified["spec"] == original["spec"] == current["spec"]:
                return
        await self._patch(kind, desired)

    async def _patch(self, kind: Kind, value: Object, **query: str) -> Object:
        path = kind.path(self._access.namespace, name_of(value))
        patch = cast("Any", value)
        return cast("Object", await asyncio.to_thread(self._client.patch, path, patch, "apply", **_MANAGER, **query))


async def _clone(access: Access, cluster: Object, of_class: Object, name: str, labels: Object) -> Object:
    """Make a template for this cluster only, of a class's one."""
    template = await _template(access, of_class)
    owners = [owner(cluster, controller=False)]
    spec = template["spec"]
    return made(KINDS[template["kind"]], name, name_of(cluster), spec, labels=labels, ownerReferences=owners)


async def _template(access: Access, of_class: Object) -> Object:
    reference = of_class["templateRef"]
    return cast("Object", await access.get(KINDS[reference["kind"]], reference["name"]))


def _body(template: Object) -> Object:
    return cast("Object", template["spec"]["template"].get("spec", {}))


def _made_of(template: Object) -> Kind:
    return KINDS[template["kind"].removesuffix("Template")]


def _refer(value: Object) -> Object:
    return {"apiGroup": KINDS[value["kind"]].group, "kind": value["kind"], "name": name_of(value)}


def _named(reference: Object, base: str) -> str:
    """Return the name that is in use, or a new one."""
    return str(reference.get("name", "")) or f"{base}-{secrets.token_hex(3)}"
