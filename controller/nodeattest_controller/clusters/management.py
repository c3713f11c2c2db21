"""The management cluster as the controller sees it: caches of the objects that verdicts depend on.

Reflectors keep Clusters, Machines, MachinePools, policies, ledgers and Cluster API's Secrets; infrastructure objects
are watched a kind at a time, from the first Machine that refers to one. Reads are from memory; ``live_member`` and the
ledger's compare-and-swap are the two places that ask the API server again, where staleness would matter.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal

from nodeattest_controller.clusters.inventory import ClusterKey, Inventory, cluster_key
from nodeattest_controller.core.authority import Authority, load_authority
from nodeattest_controller.core.clusterapi import (
    CLUSTER_LABEL,
    PAUSED_ANNOTATION,
    InfraRef,
    Member,
    cluster_of,
    machine_members,
    pool_members,
)
from nodeattest_controller.core.objects import flag, key_of, mapping, strings, text, text_map
from nodeattest_controller.core.policy import Policy, policy_for
from nodeattest_controller.core.policy import parse as parse_policy
from nodeattest_controller.core.review import names_of
from nodeattest_controller.logs import fields
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient, ApiError, NotFound
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_kube.reflector import Reflector
from nodeattest_providers.errors import Reason, Unavailable
from nodeattest_providers.interface import ClusterFacts, SecretBytes

__all__ = ["Changed", "Management", "MemberResource", "node_change"]

Changed = Callable[[ClusterKey, frozenset[str] | None], None]
"""Told what changed: a cluster, and the provider IDs and names (``node_change``) of the machines concerned; None where
all may be."""

MemberResource = Literal["machines", "machinepools"]

_LOG: Final = logging.getLogger(__name__)
CLUSTER_GROUP: Final = "cluster.x-k8s.io"
OWN_GROUP: Final = "attestation.cluster.x-k8s.io"
OWN_VERSION: Final = "v1alpha1"
_OPTIONAL: Final = frozenset({"machinepools"})
"""Caches that may stay empty: MachinePool is a feature gate of Cluster API."""
_KEPT_SECRETS: Final = ("-kubeconfig", "-ca")
START_RETRY: Final = 2.0
"""Seconds."""
SYNC_TIMEOUT: Final = 1.0
"""Seconds to wait for a new infrastructure kind's first list; after that the request waits, not its worker."""
_INFRA: Final = "infra:"
SECRET_SUFFIX: Final = "-attestation"  # noqa: S105 - a Secret's name, not a secret


def node_change(node_name: str) -> str:
    """Spell a node's name among provider IDs, for requests that name a node only."""
    return f"node:{node_name}"


class Management:
    """Caches and the few live reads of the management cluster."""

    def __init__(self, client: ApiClient, *, namespace: str | None, on_change: Changed) -> None:
        self.client = client
        self.inventory = Inventory()
        self._namespace = namespace
        self._on_change = on_change
        self._reflectors: dict[str, Reflector] = {}
        self._infra: dict[tuple[str, str], Reflector] = {}
        self._infra_locks: dict[tuple[str, str], asyncio.Lock] = {}
        self._policies: dict[str, tuple[str, Policy]] = {}
        self._authorities: dict[ClusterKey, tuple[str, Authority]] = {}
        self._versions: dict[str, str] = {}
        self._tasks = asyncio.TaskGroup()

    async def run(self, ready: asyncio.Event) -> None:
        """Fill the caches, set ``ready``, and keep them fresh until cancelled."""
        self._versions[CLUSTER_GROUP] = await self._cluster_api_version()
        async with self._tasks:
            self._start("clusters", self._capi("clusters"), self._cluster_changed)
            self._start("machines", self._capi("machines"), self._machine_changed)
            self._start("machinepools", self._capi("machinepools"), self._pool_changed, required=False)
            for resource in ("machines", "machinepools"):
                self._reflectors[resource].index("cluster", _clusters_of)
            self._start("policies", self._own("nodeattestationpolicies"), self._policy_changed)
            self._start("ledgers", self._own("machineattestations"), self._ledger_changed)
            secrets = paths.core("secrets", namespace=self._namespace)
            self._start(
                "secrets", secrets, self._secret_changed, query={"labelSelector": CLUSTER_LABEL}, keep=_slim_secret
            )
            for reflector in self._required:
                await reflector.wait_synced(math.inf)
            ready.set()

    @property
    def _required(self) -> list[Reflector]:
        return [reflector for name, reflector in self._reflectors.items() if name not in _OPTIONAL]

    def unhealthy(self) -> str | None:
        """Say what keeps the caches from being complete; None when nothing does."""
        late = sorted(
            name
            for name, reflector in self._reflectors.items()
            if not reflector.synced and name not in _OPTIONAL and not name.startswith(_INFRA)
        )
        if not self._reflectors:
            return "not started"
        return f"waiting for {', '.join(late)}" if late else None

    # Clusters and what belongs to them

    def cluster(self, key: ClusterKey) -> JsonObject | None:
        """Return one Cluster object."""
        return self._reflectors["clusters"].get(key)

    def active_cluster(self, key: ClusterKey) -> JsonObject:
        """Return a Cluster that may be acted for; raises Unavailable while it is paused or going away."""
        cluster = self.cluster(key)
        if cluster is None or self.is_paused(cluster):
            raise Unavailable(
                Reason.MACHINE_NOT_READY, "the Cluster is paused or going away", remedy="resume the Cluster"
            )
        return cluster

    def policies(self, namespace: str) -> list[JsonObject]:
        """Return the policies beside a namespace's clusters."""
        found = self._reflectors["policies"].values()
        return [policy for policy in found if text(policy, "metadata", "namespace") == namespace]

    def policy_of(self, cluster: JsonObject) -> Policy:
        """Return the one policy of a cluster; raises Denied or Unavailable."""
        return policy_for(cluster, self.policies(text(cluster, "metadata", "namespace")), self._parsed_policy)

    def _parsed_policy(self, policy: JsonObject) -> Policy:
        """Parse a policy once a version: its settings keep their identity, by which providers keep what they read."""
        key, version = key_of(policy), text(policy, "metadata", "uid") + text(policy, "metadata", "resourceVersion")
        known = self._policies.get(key)
        if known is None or known[0] != version:
            known = (version, parse_policy(policy))
            self._policies[key] = known
        return known[1]

    def kubeconfig(self, key: ClusterKey) -> bytes | None:
        """Return the workload cluster's kubeconfig, or None while its Secret is absent or unreadable."""
        secret = self._reflectors["secrets"].get(f"{key}-kubeconfig")
        if secret is None:
            return None
        try:
            return base64.b64decode(text(secret, "data", "value"), validate=True) or None
        except (binascii.Error, ValueError):
            return None

    def authority(self, key: ClusterKey) -> Authority:
        """Return the cluster's CA; raises Unavailable that says what is missing."""
        secret = self._reflectors["secrets"].get(f"{key}-ca")
        version = text(secret, "metadata", "resourceVersion") if secret else ""
        known = self._authorities.get(key)
        if known is None or known[0] != version or not version:
            known = (version, load_authority(secret, key.partition("/")[2]))
            self._authorities[key] = known
        return known[1]

    def facts_of(self, cluster: JsonObject) -> ClusterFacts:
        """Make the value that providers see."""
        key = ClusterKey(key_of(cluster))
        namespace, _, name = key.partition("/")
        return ClusterFacts(
            name=name, namespace=namespace, uid=text(cluster, "metadata", "uid"), pins=self.authority(key).pins
        )

    def is_paused(self, cluster: JsonObject) -> bool:
        """Tell whether a Cluster is paused, as it is while clusterctl moves it."""
        return flag(cluster, "spec", "paused") or PAUSED_ANNOTATION in mapping(cluster, "metadata", "annotations")

    # Members

    def objects_of(self, cluster: ClusterKey, resource: MemberResource) -> list[JsonObject]:
        """Return the Machines or MachinePools of a cluster as they are, with their status."""
        return self._reflectors[resource].by_index("cluster", cluster)

    def object_at(self, resource: MemberResource, namespace: str, name: str) -> JsonObject | None:
        """Return one Machine or MachinePool as it is."""
        return self._reflectors[resource].get(f"{namespace}/{name}")

    def path_of(self, resource: MemberResource, namespace: str, name: str) -> str:
        """Return the path of a Machine or MachinePool in the version of Cluster API that is served."""
        return paths.named(CLUSTER_GROUP, self._versions[CLUSTER_GROUP], resource, name, namespace=namespace)

    async def live_member(self, member: Member) -> Member | None:
        """Read a Machine again, now; None when it is gone, is another by now, or no longer has the provider ID."""
        resource = "machinepools" if member.is_pool_instance else "machines"
        version = self._versions[CLUSTER_GROUP]
        try:
            found = await self.client.get(
                paths.named(CLUSTER_GROUP, version, resource, member.name, namespace=member.namespace)
            )
        except NotFound:
            return None
        members = pool_members(found) if member.is_pool_instance else machine_members(found)
        return next((m for m in members if m.uid == member.uid and m.provider_id == member.provider_id), None)

    async def infra_of(self, member: Member) -> JsonObject | None:
        """Return the infrastructure object of a Machine, from a cache that starts with its kind.

        None only where the Machine names none: what the platform says must be known before anything else is believed,
        so an object that cannot be read raises Unavailable. Nobody waits here for longer than a moment.
        """
        if member.infra is None:
            return None
        reference = member.infra
        kind = (reference.group, reference.kind)
        async with self._infra_locks.setdefault(kind, asyncio.Lock()):
            reflector = self._infra.get(kind)
            if reflector is None:
                reflector = self._infra[kind] = await self._watch_infra(reference)
        if not await reflector.wait_synced(SYNC_TIMEOUT):
            raise _no_platform(f"cannot list {reference.kind} in {reference.group}")
        found = reflector.get(f"{member.namespace}/{reference.name}")
        if found is None:
            raise _no_platform(f"{reference.kind} {reference.name} is not there")
        return found

    async def attestation_secret(self, member: Member) -> SecretBytes | None:
        """Read the ``challenge`` provider's per-Machine secret: Secret ``<machine>-attestation``, key ``secret``."""
        path = paths.core("secrets", member.name + SECRET_SUFFIX, namespace=member.namespace)
        try:
            secret = await self.client.get(path)
            value = base64.b64decode(text(secret, "data", "secret"), validate=True)
        except (NotFound, binascii.Error, ValueError):
            return None
        return SecretBytes(value) if value else None

    # Start and change

    def _start(
        self,
        name: str,
        path: str,
        on_change: Callable[[str, JsonObject | None], None],
        *,
        query: Mapping[str, str] | None = None,
        keep: Callable[[JsonObject], JsonObject] | None = None,
        required: bool = True,
    ) -> Reflector:
        reflector = Reflector(self.client, path, query=query, on_change=on_change, transform=keep)
        self._reflectors[name] = reflector
        self._tasks.create_task(reflector.run() if required else _if_served(reflector, self.client, path))
        return reflector

    def _capi(self, resource: str) -> str:
        return paths.collection(CLUSTER_GROUP, self._versions[CLUSTER_GROUP], resource, namespace=self._namespace)

    def _own(self, resource: str) -> str:
        return paths.collection(OWN_GROUP, OWN_VERSION, resource, namespace=self._namespace)

    async def _cluster_api_version(self) -> str:
        """Learn which version of Cluster API is served; waits for as long as it takes, and says for what."""
        while True:
            try:
                return await self._preferred_version(CLUSTER_GROUP)
            except NotFound:
                _LOG.warning("Cluster API is not installed in the management cluster; waiting for its CRDs")
            except ApiError as error:
                _LOG.warning("cannot reach the management cluster", extra=fields(error=str(error)))
            await asyncio.sleep(START_RETRY)

    async def _preferred_version(self, group: str) -> str:
        found = await self.client.get(f"/apis/{group}")
        return text(found, "preferredVersion", "version")

    async def _watch_infra(self, reference: InfraRef) -> Reflector:
        try:
            version = reference.version or await self._preferred_version(reference.group)
            served = await self.client.get(f"/apis/{reference.group}/{version}")
        except ApiError as error:
            raise _no_platform(f"cannot tell what {reference.group} serves: {error.reason}") from error
        resource = next((name for name, kind in _resources(served) if kind == reference.kind), None)
        if resource is None:
            raise _no_platform(f"{reference.group}/{version} serves no {reference.kind}")
        path = paths.collection(reference.group, version, resource, namespace=self._namespace)
        return self._start(f"{_INFRA}{reference.group}/{reference.kind}", path, _ignore, keep=_slim_infra)

    def _cluster_changed(self, key: str, _cluster: JsonObject | None) -> None:
        self._on_change(ClusterKey(key), None)

    def _machine_changed(self, key: str, machine: JsonObject | None) -> None:
        self.inventory.put_machine(key, machine)
        if machine is not None:
            names = [node_change(name) for member in machine_members(machine) for name in names_of(member)]
            self._member_changed(machine, [text(machine, "spec", "providerID"), *names])

    def _pool_changed(self, key: str, pool: JsonObject | None) -> None:
        self.inventory.put_pool(key, pool)
        if pool is not None:
            self._member_changed(pool, strings(pool, "spec", "providerIDList"))

    def _member_changed(self, member: JsonObject, concerned: Iterable[str]) -> None:
        cluster = cluster_key(text(member, "metadata", "namespace"), cluster_of(member))
        self._on_change(cluster, frozenset(concerned))

    def _policy_changed(self, key: str, policy: JsonObject | None) -> None:
        if policy is None:
            self._policies.pop(key, None)
        namespace = key.partition("/")[0]
        for cluster in list(self._reflectors["clusters"].values()):
            if text(cluster, "metadata", "namespace") == namespace:
                self._on_change(ClusterKey(key_of(cluster)), None)

    def _ledger_changed(self, key: str, ledger: JsonObject | None) -> None:
        self.inventory.put_ledger(key, ledger)

    def _secret_changed(self, key: str, secret: JsonObject | None) -> None:
        for suffix in _KEPT_SECRETS:
            if key.endswith(suffix):
                self._on_change(ClusterKey(key.removesuffix(suffix)), None)
        if secret is None:
            self._authorities.pop(ClusterKey(key.removesuffix("-ca")), None)


def _clusters_of(member: JsonObject) -> list[str]:
    return [cluster_key(text(member, "metadata", "namespace"), cluster_of(member))]


def _no_platform(detail: str) -> Unavailable:
    return Unavailable(
        Reason.PLATFORM_UNAVAILABLE,
        detail,
        remedy="let the controller get, list and watch the cluster's infrastructure objects, and see that they exist",
    )


async def _if_served(reflector: Reflector, client: ApiClient, path: str) -> None:
    """Run a reflector for a resource that a management cluster may not serve (MachinePool is a feature gate)."""
    try:
        await client.get(path, {"limit": "1"})
    except NotFound:
        return
    except ApiError:
        _LOG.info("cannot tell yet whether a resource is served", extra=fields(path=path))
    await reflector.run()


def _resources(served: JsonObject) -> Iterable[tuple[str, str]]:
    found = served.get("resources")
    for resource in found if isinstance(found, list) else []:
        if isinstance(resource, dict) and "/" not in text(resource, "name"):
            yield text(resource, "name"), text(resource, "kind")


def _slim_secret(secret: JsonObject) -> JsonObject:
    """Keep the kubeconfigs and CAs only; bootstrap data has no business in this process."""
    wanted = text(secret, "metadata", "name").endswith(_KEPT_SECRETS)
    return {"metadata": mapping(secret, "metadata"), "data": mapping(secret, "data") if wanted else {}}


def _slim_infra(infra: JsonObject) -> JsonObject:
    """Keep what providers look at."""
    meta = mapping(infra, "metadata")
    kept: JsonObject = {name: meta[name] for name in ("name", "namespace", "uid", "resourceVersion") if name in meta}
    kept["annotations"] = dict(text_map(meta, "annotations"))
    return {"metadata": kept}


def _ignore(_key: str, _object: JsonObject | None) -> None:
    """Nothing waits for an infrastructure object's change: a refused node files anew."""
