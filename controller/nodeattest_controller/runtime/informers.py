"""The reflectors of the management cluster, and the sources that clusters and machines are read from.

No cached object has ``metadata.managedFields``, half of the size of a Machine. Each source in ``Settings.inventory`` is
read whole before the first request is decided: a machine that one source does not know another may claim.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from nodeattest_controller.logs import fields
from nodeattest_controller.model.machine_view import (
    MAX_ADDRESSES,
    MAX_INSTANCES,
    MachineResource,
    MachineView,
    cluster_of,
)
from nodeattest_controller.model.node_names import claimed_names
from nodeattest_controller.runtime.indexes import ClusterKey, Inventory, cluster_key
from nodeattest_kube import paths
from nodeattest_kube.client import WATCH_SECONDS, ApiClient
from nodeattest_kube.errors import ApiError, NotFound, TooLarge
from nodeattest_kube.periodic import RECONNECT, notify
from nodeattest_kube.reflector import Reflector
from nodeattest_kube.store import MemoryPool
from nodeattest_parsing.objects import mapping, text
from nodeattest_parsing.values import JsonObject

MOST: Final = 20_000
"""Things that are kept of one list; a large cluster has fewer."""
_CHARACTERS: Final = 400
"""Characters of a thing on average: names have 253 at most."""


class ListLimit:
    """Bounds what is kept of one list."""

    def __init__(self, what: str, most: int = MOST) -> None:
        self._what = what
        self._most = most
        self._things = 0
        self._characters = 0

    def take(self, *words: str) -> None:
        """Count one thing and the words that are kept of it; raises TooLarge."""
        self._things += 1
        self._characters += sum(map(len, words))
        if self._things > self._most or self._characters > self._most * _CHARACTERS:
            raise TooLarge(200, f"the list of {self._what} does not end: more than {self._most} are not kept")


_LOG: Final = logging.getLogger(__name__)


MAX_OBJECTS: Final = 200_000
"""Of one kind, in all namespaces; of several, one namespace gets half of it."""


class InformerSet:
    """The reflectors of one API server, which run as tasks of the owner."""

    def __init__(
        self, client: ApiClient, tasks: asyncio.TaskGroup, memory: MemoryPool, *, namespace: str | None
    ) -> None:
        """``namespace``: the only one that is watched; None: all, and each gets a share of the memory."""
        self.client, self.memory, self.namespace = client, memory, namespace
        self.waits_for = ""
        """What must exist before anything can be cached; empty if nothing is awaited."""
        self._tasks = tasks
        self._required: dict[str, Reflector] = {}
        self._all: list[Reflector] = []

    def path(self, group: str, version: str, resource: str) -> str:
        return paths.collection_path(group, version, resource, namespace=self.namespace)

    def start(
        self,
        path: str,
        on_change: Callable[[str, JsonObject | None], None],
        *,
        query: Mapping[str, str] | None = None,
        keep: Callable[[JsonObject], JsonObject] | None = None,
        required: bool = True,
        may_be_absent: bool = False,
        watch_seconds: tuple[int, int] = WATCH_SECONDS,
    ) -> Reflector:
        """Start a cache; ``keep`` returns what is kept of an object.

        ``required``: the caches are complete only with it. ``may_be_absent``: the kind may not be served.
        """

        def kept(obj: JsonObject) -> JsonObject:
            return without_managed_fields(keep(obj) if keep is not None else obj)

        reflector = Reflector(
            self.client,
            path,
            query=query,
            on_change=on_change,
            transform=kept,
            max_objects=MAX_OBJECTS,
            max_bytes=self.memory,
            shares=self.namespace is None,
            watch_seconds=watch_seconds,
        )
        self._all.append(reflector)
        if required:
            self._required[path.rpartition("/")[2]] = reflector
        self._tasks.create_task(_if_served(reflector, self.client, path) if may_be_absent else reflector.run())
        return reflector

    def follow(
        self,
        group: str,
        version: str,
        resource: str,
        keep: Callable[[JsonObject], JsonObject],
        watch_seconds: tuple[int, int] = WATCH_SECONDS,
    ) -> Reflector:
        path = self.path(group, version, resource)
        return self.start(path, lambda _key, _obj: None, keep=keep, required=False, watch_seconds=watch_seconds)

    async def wait_synced(self) -> None:
        """Wait until all that is required has been read once."""
        for reflector in list(self._required.values()):
            await reflector.wait_synced(math.inf)

    @property
    def left_out(self) -> int:
        """Objects that are missing in the caches for lack of room."""
        return sum(reflector.left_out for reflector in self._all)

    def unhealthy(self) -> str | None:
        """Return what keeps the caches from being complete, or None."""
        if self.waits_for:
            return f"waiting for {self.waits_for}"
        if not self._required:
            return "not started"
        late = sorted(name for name, reflector in self._required.items() if not reflector.synced)
        return f"waiting for {', '.join(late)}" if late else None


def without_managed_fields(obj: JsonObject) -> JsonObject:
    """Leave out ``metadata.managedFields``; an object without it is returned as it is."""
    meta = obj.get("metadata")
    if not isinstance(meta, dict) or "managedFields" not in meta:
        return obj
    return {**obj, "metadata": {name: value for name, value in meta.items() if name != "managedFields"}}


async def _if_served(reflector: Reflector, client: ApiClient, path: str) -> None:
    """Run a reflector for a resource that a management cluster may not serve (MachinePool is a feature gate)."""
    try:
        await client.get(path, {"limit": "1"})
    except NotFound:
        return
    except ApiError:
        _LOG.info("cannot tell yet whether a resource is served", extra=fields(path=path))
    await reflector.run()


def cluster_of_object(obj: JsonObject) -> ClusterKey:
    """Name the cluster of a Machine, pool, record or MachineAttestation."""
    return cluster_key(text(obj, "metadata", "namespace"), cluster_of(obj))


ClusterChanged = Callable[[ClusterKey, frozenset[str] | None], None]
"""Gets a cluster, and the provider IDs and names (``node_key``) of the machines that changed. None: any may have
changed, or the Cluster, its policy, its kubeconfig or its CA."""


class ChangeBus:
    """Notifies subscribers of changes in the management cluster. Subscribers must not block."""

    def __init__(self) -> None:
        self._clusters: list[ClusterChanged] = []
        self._policies: list[Callable[[str], None]] = []

    def subscribe_clusters(self, subscriber: ClusterChanged) -> None:
        self._clusters.append(subscriber)

    def subscribe_policies(self, subscriber: Callable[[str], None]) -> None:
        self._policies.append(subscriber)

    def cluster_changed(self, cluster: ClusterKey, keys: frozenset[str] | None) -> None:
        for subscriber in self._clusters:
            notify(subscriber, cluster, keys)

    def policies_changed(self, namespace: str) -> None:
        for subscriber in self._policies:
            notify(subscriber, namespace)


CLUSTER_GROUP: Final = "cluster.x-k8s.io"
OWN_GROUP: Final = "attestation.cluster.x-k8s.io"
OWN_VERSION: Final = "v1alpha1"


@dataclass(frozen=True, slots=True)
class InformerRef:
    """A kind of objects that machines are read from."""

    objects: Reflector
    """With an index ``cluster`` by the cluster's key."""
    group: str
    version: str


def machine_key(uid: str) -> str:
    """Return the key of a Machine among changed keys, for a Machine without a provider ID."""
    return f"machine:{uid}"


def node_key(node_name: str) -> str:
    """Return the key of a node's name among changed keys, for requests that name a node only."""
    return f"node:{node_name}"


def namespaces(obj: JsonObject) -> list[str]:
    return [text(obj, "metadata", "namespace")]


class Source(ABC):
    """One source of clusters and machines: updates the inventory with each change, then notifies."""

    def __init__(self, inventory: Inventory, changes: ChangeBus, machines: dict[MachineResource, InformerRef]) -> None:
        """``machines`` gets the kinds that machines are read from."""
        self._inventory, self._changes = inventory, changes
        self._clusters: Reflector | None = None
        self._machines = machines

    @abstractmethod
    async def start(self, caches: InformerSet) -> None:
        """Start the caches once their kinds are served."""

    def cluster(self, key: ClusterKey) -> JsonObject | None:
        return self._clusters.get(key) if self._clusters is not None else None

    def clusters_in(self, namespace: str) -> Iterable[JsonObject]:
        return self._clusters.by_index("namespace", namespace) if self._clusters is not None else ()

    def _keep(self, resource: MachineResource, objects: Reflector, group: str, version: str) -> None:
        objects.index("cluster", lambda obj: [cluster_of_object(obj)])
        self._machines[resource] = InformerRef(objects, group, version)

    def _cluster_changed(self, key: str, _cluster: JsonObject | None) -> None:
        self._changes.cluster_changed(ClusterKey(key), None)

    def _machines_changed(self, obj: JsonObject, members: Iterable[MachineView]) -> None:
        concerned: set[str] = set()
        for member in members:
            concerned.update({member.provider_id} - {""})
            concerned.add(machine_key(member.uid))
            concerned.update(map(node_key, claimed_names(member)))
        self._changes.cluster_changed(cluster_of_object(obj), frozenset(concerned))


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
            self._changes.cluster_changed(
                cluster_of_object(pool), frozenset[str]().union(*(view.provider_ids for view in found))
            )


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


SOURCES: Final[Mapping[str, type[Source]]] = {"ClusterAPI": ClusterAPI, "MachineRecords": MachineRecords}
"""By the name in ``Settings.inventory``; of two clusters with one name, Cluster API's counts."""


_UNREAD: Final = frozenset({"nodeInfo", "nodeRefs"})
"""Parts of a status; a patch of one of its conditions leaves them as they are."""


def bounded(obj: JsonObject) -> JsonObject:
    """Return a Machine or MachinePool without what is past the bounds, and without what nobody reads."""
    status, spec = mapping(obj, "status"), mapping(obj, "spec")
    addresses, provider_ids = status.get("addresses"), spec.get("providerIDList")
    kept = dict(obj)
    if not _UNREAD.isdisjoint(status):
        kept["status"] = status = {name: value for name, value in status.items() if name not in _UNREAD}
    if isinstance(addresses, list) and len(addresses) > MAX_ADDRESSES:
        kept["status"] = {**status, "addresses": addresses[: MAX_ADDRESSES + 1]}
    if isinstance(provider_ids, list) and len(provider_ids) > MAX_INSTANCES:
        kept["spec"] = {**spec, "providerIDList": provider_ids[: MAX_INSTANCES + 1]}
    return kept
