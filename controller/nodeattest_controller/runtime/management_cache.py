"""The management cluster as the controller sees it: caches of the objects that verdicts depend on.

Reads are from memory. ``live_member`` and the record's compare-and-swap query the API server, where an old answer would
do harm. The caches take half of the container's memory (Linux cgroup-v2 ``memory.max``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from nodeattest_controller.model.certificate_authority import CertificateAuthority, load_authority
from nodeattest_controller.model.machine_view import (
    CLUSTER_LABEL,
    CLUSTER_RECORD,
    MachineResource,
    MachineView,
    machine_view,
)
from nodeattest_controller.model.policy import Policy, parse_attestation_policy, policy_for, selects
from nodeattest_controller.runtime import informers
from nodeattest_controller.runtime.indexes import AttestationOrder, ClusterKey, Inventory
from nodeattest_controller.runtime.references import PlatformCache
from nodeattest_kube import paths
from nodeattest_kube.answers import version_of
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Conflict, NotFound
from nodeattest_kube.events import ObjectRef
from nodeattest_kube.reflector import Reflector
from nodeattest_kube.store import MemoryPool
from nodeattest_parsing.objects import items, key_of, mapping, number, object_identity, text
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.verifier_interface import ClusterFacts

_CGROUP: Final = Path("/sys/fs/cgroup")
_FILES: Final = ("memory.max", "memory/memory.limit_in_bytes")
"""The memory limit in versions 2 and 1."""
_MAX_MEMORY: Final = 1 << 30
"""Bytes."""


def cache_memory(cgroup: Path = _CGROUP) -> int:
    """Return half of the container's memory limit, in bytes."""
    memory = _MAX_MEMORY
    for name in _FILES:
        with suppress(OSError, ValueError):  # "max" is no number
            memory = min(memory, int((cgroup / name).read_text(encoding="ascii")) // 2)
    return memory


CLUSTER_API_ONLY: Final = ("ClusterAPI",)
_SECRET_SUFFIXES: Final = ("-kubeconfig", "-ca")
"""Of the Secrets that are read, after the cluster's name."""
_MORE_ROOM: Final = "raise the controller's memory limit, or delete what the namespace does not need"


class ManagementCache:
    """Caches and the few live reads of the management cluster."""

    def __init__(
        self,
        client: ApiClient,
        *,
        namespace: str | None,
        inventory: Collection[str] = CLUSTER_API_ONLY,
        memory: int | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """``inventory``: the names of sources. ``memory``: bytes of all objects; None: by the container's limit."""
        self.client = client
        self.inventory = Inventory()
        self.attestation_order = AttestationOrder(self.inventory.put_attestation)
        self.changes: Final = informers.ChangeBus()
        self._machines: dict[MachineResource, informers.InformerRef] = {}
        """The kinds that machines are read from, by the sources."""
        self._sources = tuple(
            source(self.inventory, self.changes, self._machines)
            for name, source in informers.SOURCES.items()
            if name in inventory
        )
        self._now = now
        self._reflectors: dict[str, Reflector] = {}
        self._policies: dict[str, tuple[str, Policy | Denied]] = {}
        """By the version of the spec; an invalid policy is not parsed twice, either."""
        self._policy_versions: dict[str, str] = {}
        """By policy, the version of the spec that its clusters were notified of."""
        self._authorities: dict[ClusterKey, tuple[str, CertificateAuthority | Unavailable]] = {}
        """By the Secret's version; an invalid CA is not parsed twice, either."""
        self._tasks = asyncio.TaskGroup()
        pool = MemoryPool(memory if memory is not None else cache_memory())
        self.caches: Final = informers.InformerSet(client, self._tasks, pool, namespace=namespace)
        self.platforms = PlatformCache(client, self.caches)

    async def run(self, ready: asyncio.Event) -> None:
        """Fill the caches, set ``ready``, and keep them fresh until cancelled."""
        async with self._tasks:
            for source in self._sources:
                await source.start(self.caches)
            start, kept = self.caches.start, self._reflectors
            own = partial(self.caches.path, informers.OWN_GROUP, informers.OWN_VERSION)
            kept["policies"] = start(own("nodeattestationpolicies"), self._policy_changed)
            kept["policies"].index("namespace", informers.namespaces)
            kept["ledgers"] = start(own("machineattestations"), self.attestation_order.shown)
            secrets = paths.core_path("secrets", namespace=self.caches.namespace)
            query = {"labelSelector": CLUSTER_LABEL}
            kept["secrets"] = start(secrets, self._secret_changed, query=query, keep=_slim_secret)
            await self.caches.wait_synced()
            ready.set()

    # Clusters and what belongs to them

    def cluster(self, key: ClusterKey) -> JsonObject | None:
        """Return a Cluster, or a ClusterRecord if no Cluster has that name."""
        found = (source.cluster(key) for source in self._sources)
        return next((cluster for cluster in found if cluster is not None), None)

    def clusters_in(self, namespace: str) -> list[JsonObject]:
        found = {key_of(one): one for source in reversed(self._sources) for one in source.clusters_in(namespace)}
        return list(found.values())

    def policies(self, namespace: str) -> list[JsonObject]:
        return self._reflectors["policies"].by_index("namespace", namespace)

    def policy_of(self, cluster: JsonObject) -> Policy:
        """Return the one policy of a cluster; raises Denied or Unavailable."""
        policies = self.policies(text(cluster, "metadata", "namespace"))
        return policy_for(
            cluster, policies, self.parsed_policy, recorded=lambda policy: self.machines_under(cluster, policy)
        )

    def machines_under(self, cluster: JsonObject, policy: str) -> int:
        """Count the machines of a cluster that joined under a policy and have a valid certificate."""
        return self.inventory.machines_under(ClusterKey(key_of(cluster)), policy, self._now())

    def opts_in(self, cluster: JsonObject) -> bool:
        """Return whether a policy selects a cluster; also an invalid one, so that requests get the reason."""
        return any(selects(policy, cluster) for policy in self.policies(text(cluster, "metadata", "namespace")))

    def check_attestations(self, cluster: ClusterKey) -> None:
        """Raise Unavailable while a MachineAttestation of the namespace has no room in the cache.

        Its node name, key or TPM would seem to belong to nobody.
        """
        if (lack := self._lack_of_room(cluster.partition("/")[0])) is not None:
            raise Unavailable(Reason.API_UNAVAILABLE, lack, remedy=_MORE_ROOM)

    async def check_ledgers(self, cluster: ClusterKey) -> None:
        """Raise ApiError unless the cache has each record of a cluster in the API server's version.

        A controller that takes a cluster over calls it: the former controller's last writes may still be on their way.
        It does not wait, because the records of one namespace may never find room.
        """
        namespace, _, name = cluster.partition("/")
        if (lack := self._lack_of_room(namespace)) is not None:
            raise ApiError(503, "ServiceUnavailable", f"{lack}: {_MORE_ROOM}")
        path = paths.collection_path(
            informers.OWN_GROUP, informers.OWN_VERSION, "machineattestations", namespace=namespace
        )
        async for page in self.client.pages(path, {"labelSelector": f"{CLUSTER_LABEL}={name}"}):
            for attestation in items(page, "items"):
                if self.attestation_order.known(key_of(attestation)) != version_of(attestation):
                    raise Conflict(409, "Conflict", f"the cache lacks the newest version of {key_of(attestation)}")

    def _lack_of_room(self, namespace: str) -> str | None:
        """Return a message if the cache left out a MachineAttestation of a namespace."""
        lacks = self._reflectors["ledgers"].lacks_any_of(namespace)
        return f"the controller has no room for all MachineAttestations of namespace {namespace}" if lacks else None

    def parsed_policy(self, policy: JsonObject) -> Policy:
        """Parse a policy once a generation; raises Denied. Providers cache what they read by the settings' identity."""
        key, version = key_of(policy), _spec_version(policy)
        known = self._policies.get(key)
        if known is None or known[0] != version:
            known = self._policies[key] = version, _parsed_or_denied(policy)
        if isinstance(known[1], Denied):
            raise _copy_of(known[1])
        return known[1]

    def kubeconfig(self, key: ClusterKey) -> bytes | None:
        """Return the workload cluster's kubeconfig; None if its Secret is absent or unreadable."""
        secret = self._reflectors["secrets"].get(f"{key}-kubeconfig")
        if secret is None:
            return None
        try:
            return decode_base64(text(secret, "data", "value")) or None
        except ValueError:
            return None

    def authority(self, key: ClusterKey) -> CertificateAuthority:
        """Return the cluster's CA; raises Unavailable."""
        secret = self._reflectors["secrets"].get(f"{key}-ca")
        if secret is None:
            return load_authority(None, key.partition("/")[2])  # raises
        version = text(secret, "metadata", "resourceVersion")
        known = self._authorities.get(key)
        if known is None or known[0] != version or not version:
            try:
                known = (version, load_authority(secret, key.partition("/")[2]))
            except Unavailable as error:
                error.__cause__ = error.__context__ = None  # their frames hold the Secret
                known = (version, error)
            self._authorities[key] = known
        if isinstance(known[1], Unavailable):
            raise known[1].with_traceback(None)
        return known[1]

    def facts_of(self, cluster: JsonObject) -> ClusterFacts:
        return ClusterFacts(uid=text(cluster, "metadata", "uid"), pins=self.authority(ClusterKey(key_of(cluster))).pins)

    # Members

    def objects_of(self, cluster: ClusterKey, resource: MachineResource) -> Iterator[JsonObject]:
        """Yield the Machines, MachinePools or MachineRecords of a cluster."""
        kept = self._machines.get(resource)
        return kept.objects.each("cluster", cluster) if kept is not None else iter(())

    def object_at(self, resource: MachineResource, namespace: str, name: str) -> JsonObject | None:
        kept = self._machines.get(resource)
        return kept.objects.get(f"{namespace}/{name}") if kept is not None else None

    def path_of(self, resource: MachineResource, namespace: str, name: str) -> str:
        """Return the path of one of these in the served version; raises KeyError if none of them is read."""
        kept = self._machines.get(resource)
        if kept is None:
            raise KeyError(resource)
        return paths.object_path(kept.group, kept.version, resource, name, namespace=namespace)

    async def live_member(self, member: MachineView) -> MachineView | None:
        """Read a Machine now; None if it is gone, is another object, or no longer has the provider ID."""
        group, _, version = member.api_version.partition("/")
        try:
            found = await self.client.get(
                paths.object_path(group, version, member.resource, member.name, namespace=member.namespace)
            )
        except NotFound:
            return None
        now = machine_view(found, member.kind, member.provider_id)
        if now is None or now.uid != member.uid:
            return None
        if now.provider_id:
            return now
        return now.with_provider_id(member.provider_id, member.provider_id_source, prefix=member.provider_id_prefix)

    async def secret(self, namespace: str, name: str) -> JsonObject | None:
        try:
            return await self.client.get(paths.core_path("secrets", name, namespace=namespace))
        except NotFound:
            return None

    # Start and change

    async def ask_attestation(
        self, namespace: str, name: str, ask: Callable[[str], Awaitable[JsonObject]]
    ) -> JsonObject:
        """Send a read or write of a MachineAttestation, and index the answer unless it is old; raises ApiError."""
        key = f"{namespace}/{name}"
        before = self.attestation_order.known(key)
        try:
            answer = await ask(
                paths.object_path(
                    informers.OWN_GROUP, informers.OWN_VERSION, "machineattestations", name, namespace=namespace
                )
            )
        except NotFound:
            self.attestation_order.answered(key, before, None)
            raise
        self.attestation_order.answered(key, before, answer)
        return answer

    def _policy_changed(self, key: str, policy: JsonObject | None) -> None:
        namespace = key.partition("/")[0]
        version = _spec_version(policy) if policy is not None else ""
        if policy is None:
            self._policies.pop(key, None)
        if version != self._policy_versions.get(key):  # not for a status alone, which is ours
            for cluster in self.clusters_in(namespace):
                self.changes.cluster_changed(ClusterKey(key_of(cluster)), None)
        if version:
            self._policy_versions[key] = version
        else:
            self._policy_versions.pop(key, None)
        self.changes.policies_changed(namespace)

    def _secret_changed(self, key: str, secret: JsonObject | None) -> None:
        for suffix in _SECRET_SUFFIXES:
            if key.endswith(suffix):
                self.changes.cluster_changed(ClusterKey(key.removesuffix(suffix)), None)
        if secret is None:
            self._authorities.pop(ClusterKey(key.removesuffix("-ca")), None)


def _spec_version(policy: JsonObject) -> str:
    """Return a version that changes with the spec; without a generation, with any write."""
    generation = number(policy, "metadata", "generation")
    version = str(generation) if generation is not None else text(policy, "metadata", "resourceVersion")
    return f"{text(policy, 'metadata', 'uid')}/{version}"


def _parsed_or_denied(policy: JsonObject) -> Policy | Denied:
    try:
        return parse_attestation_policy(policy)
    except Denied as denied:
        return _copy_of(denied)  # without the frames, which hold the policy


def _copy_of(denied: Denied) -> Denied:
    """Make an exception that no other task raises."""
    return Denied(denied.reason, expected=denied.expected, got=denied.got, remedy=denied.remedy)


def _slim_secret(secret: JsonObject) -> JsonObject:
    """Keep kubeconfigs and CAs only, no bootstrap data."""
    meta = mapping(secret, "metadata")
    identity: JsonObject = {"metadata": object_identity(meta)}
    is_read = text(meta, "name").endswith(_SECRET_SUFFIXES)
    return {**identity, "data": mapping(secret, "data")} if is_read else identity


def member_ref(member: MachineView) -> ObjectRef:
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
