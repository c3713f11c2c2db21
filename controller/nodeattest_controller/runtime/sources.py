"""Where clusters and machines come from: Cluster API's objects, and records that operators write.

No request is decided before every configured source has been read whole, because a machine that one of them does not
know another may claim. Which sources there are is a setting, never guessed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from nodeattest_controller.logs import fields
from nodeattest_controller.model.machine_view import MachineResource, MachineView, bounded, cluster_of
from nodeattest_controller.model.node_names import claimed_names
from nodeattest_controller.runtime.indexes import ClusterKey, Inventory, cluster_key
from nodeattest_controller.runtime.informers import InformerSet
from nodeattest_kube.errors import ApiError, NotFound
from nodeattest_kube.periodic import RECONNECT
from nodeattest_kube.reflector import Reflector
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject

SECRET_SUFFIXES: Final = ("-kubeconfig", "-ca")
"""Of the Secrets that are read, after the cluster's name."""


def cluster_of_object(obj: JsonObject) -> ClusterKey:
    """Name the cluster of a Machine, pool, record or MachineAttestation."""
    return cluster_key(text(obj, "metadata", "namespace"), cluster_of(obj))


def is_read(secret: JsonObject) -> bool:
    """Return whether a Secret has a kubeconfig or a CA, by its name."""
    return text(secret, "metadata", "name").endswith(SECRET_SUFFIXES)


Changed = Callable[[ClusterKey, frozenset[str] | None], None]
"""Told what changed: a cluster, and the provider IDs and names (``node_key``) of the machines concerned; None where
all may be."""

_LOG: Final = logging.getLogger(__name__)
CLUSTER_GROUP: Final = "cluster.x-k8s.io"
OWN_GROUP: Final = "attestation.cluster.x-k8s.io"
OWN_VERSION: Final = "v1alpha1"


@dataclass(frozen=True, slots=True)
class InformerRef:
    """The objects that machines of one kind are read from."""

    objects: Reflector
    """With an index ``cluster`` by the cluster's key."""
    group: str
    version: str


def machine_key(uid: str) -> str:
    """Name a Machine among what changed; one without a provider ID has no other name there."""
    return f"machine:{uid}"


def node_key(node_name: str) -> str:
    """Spell a node's name among provider IDs, for requests that name a node only."""
    return f"node:{node_name}"


def namespaces(obj: JsonObject) -> list[str]:
    """Name the namespace of an object, for an index."""
    return [text(obj, "metadata", "namespace")]


class Source(ABC):
    """One place that clusters and machines are kept in: with a change it updates the inventory, then notifies."""

    def __init__(self, inventory: Inventory, on_change: Changed) -> None:
        self._inventory, self._on_change = inventory, on_change
        self._clusters: Reflector | None = None
        self._kept: dict[MachineResource, InformerRef] = {}

    @abstractmethod
    async def start(self, caches: InformerSet) -> None:
        """Start the caches, when their kinds are served; waits for that as long as it takes."""

    def cluster(self, key: ClusterKey) -> JsonObject | None:
        """Return one cluster's object."""
        return self._clusters.get(key) if self._clusters is not None else None

    def clusters(self) -> Iterable[JsonObject]:
        """Return every cluster's object."""
        return self._clusters.values() if self._clusters is not None else ()

    def clusters_in(self, namespace: str) -> Iterable[JsonObject]:
        """Return the clusters' objects of a namespace."""
        return self._clusters.by_index("namespace", namespace) if self._clusters is not None else ()

    def kept(self, resource: MachineResource) -> InformerRef | None:
        """Return the objects of one kind of machines."""
        return self._kept.get(resource)

    def _keep(self, resource: MachineResource, objects: Reflector, group: str, version: str) -> None:
        objects.index("cluster", _cluster_keys)
        self._kept[resource] = InformerRef(objects, group, version)

    def _cluster_changed(self, key: str, _cluster: JsonObject | None) -> None:
        self._on_change(ClusterKey(key), None)

    def _machines_changed(self, obj: JsonObject, members: Iterable[MachineView]) -> None:
        """Notify of Machines or records."""
        concerned: set[str] = set()
        for member in members:
            concerned.update({member.provider_id} - {""})
            concerned.add(machine_key(member.uid))
            concerned.update(map(node_key, claimed_names(member)))
        self._on_change(cluster_of_object(obj), frozenset(concerned))


class ClusterAPI(Source):
    """Clusters, Machines and MachinePools, of the contract version that is served."""

    async def start(self, caches: InformerSet) -> None:
        """Wait for Cluster API's CRDs, then follow its objects."""
        version = await self._version(caches)
        path = partial(caches.path, CLUSTER_GROUP, version)
        self._clusters = caches.start(path("clusters"), self._cluster_changed)
        self._clusters.index("namespace", namespaces)
        machines = caches.start(path("machines"), self._machine_changed, keep=bounded)
        pools = caches.start(path("machinepools"), self._pool_changed, keep=bounded, required=False, may_be_absent=True)
        self._keep("machines", machines, CLUSTER_GROUP, version)
        self._keep("machinepools", pools, CLUSTER_GROUP, version)

    async def _version(self, caches: InformerSet) -> str:
        """Learn which version of Cluster API is served."""
        caches.waits_for = "Cluster API's CRDs"
        failures = 0
        while True:
            try:
                found = await caches.client.get(f"/apis/{CLUSTER_GROUP}")
            except NotFound as error:
                failure = error
                _LOG.warning(
                    "Cluster API is not installed in the management cluster; waiting for its CRDs",
                    extra=fields(remedy="install it; where there is none, run with --inventory=MachineRecords"),
                )
            except ApiError as error:
                failure = error
                _LOG.warning("cannot reach the management cluster", extra=fields(error=str(error)))
            else:
                caches.waits_for = ""
                return text(found, "preferredVersion", "version")
            failures += 1
            await asyncio.sleep(RECONNECT.delay(failures, random.random, failure))

    def _machine_changed(self, key: str, machine: JsonObject | None) -> None:
        found = self._inventory.put_machine(key, machine)
        if machine is not None:
            self._machines_changed(machine, found)

    def _pool_changed(self, key: str, pool: JsonObject | None) -> None:
        found = self._inventory.put_pool(key, pool)
        if pool is not None:
            self._on_change(cluster_of_object(pool), frozenset[str]().union(*(view.provider_ids for view in found)))


class MachineRecords(Source):
    """ClusterRecords, and MachineRecords of these or of Clusters."""

    async def start(self, caches: InformerSet) -> None:
        """Follow the records; their CRDs come with the controller's manifests."""
        path = partial(caches.path, OWN_GROUP, OWN_VERSION)
        self._clusters = caches.start(path("clusterrecords"), self._cluster_changed)
        self._clusters.index("namespace", namespaces)
        records = caches.start(path("machinerecords"), self._record_changed)
        self._keep("machinerecords", records, OWN_GROUP, OWN_VERSION)

    def _record_changed(self, key: str, record: JsonObject | None) -> None:
        members = self._inventory.put_record(key, record)
        if record is None:
            return
        for flawed in (member for member in members if member.flaw):
            _LOG.warning(
                "cannot use a MachineRecord",
                extra=fields(record=key, cluster=flawed.cluster_name, detail=flawed.flaw, remedy="correct the record"),
            )
        self._machines_changed(record, members)


def _cluster_keys(obj: JsonObject) -> list[str]:
    return [cluster_of_object(obj)]


_SOURCES: Final[Mapping[str, type[Source]]] = {"ClusterAPI": ClusterAPI, "MachineRecords": MachineRecords}
"""By the name in ``Settings.inventory``; where both have a cluster of one name, Cluster API's counts."""


def sources_of(names: Collection[str], inventory: Inventory, on_change: Changed) -> tuple[Source, ...]:
    """Make the sources of these names, in one order whatever theirs: the first that has a cluster is believed."""
    return tuple(source(inventory, on_change) for name, source in _SOURCES.items() if name in names)
