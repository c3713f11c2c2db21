"""Objects that Machines refer to: infrastructure machines, host objects and KubeadmConfigs.

A kind is listed and watched from the first request that needs it. An object that cannot be read is ``Unavailable``,
never a pass. Source: apimachinery APIResourceList; a reference of cluster-api v1beta2 names a group only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final
from weakref import WeakValueDictionary

from nodeattest_controller.model import machine_view
from nodeattest_controller.model.infrastructure_kinds import HOSTS, HostReference, ObjectKey
from nodeattest_controller.model.kubeadm_config import KUBEADM_CONFIG, KeptConfig, kept_config, read_config, slim_config
from nodeattest_controller.model.node_names import is_named, names_of_host
from nodeattest_controller.model.policy import InfrastructurePolicy
from nodeattest_controller.runtime.informers import InformerSet
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Forbidden, NotFound
from nodeattest_kube.reflector import Reflector
from nodeattest_parsing.objects import items, mapping, object_identity, text, text_map
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers import identifiers
from nodeattest_providers.errors import Reason, Unavailable
from nodeattest_providers.identifiers import ANNOTATION_TPM_ENDORSEMENT_KEY


async def makes_machines(client: ApiClient, reference: machine_view.ContractReference, namespace: str) -> bool:
    """Read a MachinePool's infrastructure object for ``instances_have_machines``; what does not exist makes none.

    Raises ApiError.
    """
    try:
        infra = await client.get(await path_of_reference(client, reference, namespace))
    except NotFound:
        return False
    return machine_view.instances_have_machines(infra)


async def path_of_reference(client: ApiClient, reference: machine_view.ContractReference, namespace: str) -> str:
    """Return the path of an object; raises ApiError, NotFound if its kind is not served."""
    if not paths.is_segment(reference.name):
        raise _not_served(reference)
    version, resource = await served_resource(client, reference)
    return paths.object_path(reference.group, version, resource, reference.name, namespace=namespace)


async def served_resource(client: ApiClient, reference: machine_view.ContractReference) -> tuple[str, str]:
    """Return a version that serves a kind, and the kind's resource; raises ApiError, NotFound if none does.

    Infrastructure providers share a group: the group's preferred version does not serve all its kinds.
    """
    if not paths.is_segment(reference.group):
        raise _not_served(reference)
    versions = [reference.version]
    if not reference.version:
        served = await client.get(paths.api_group(reference.group))
        versions = [text(version, "version") for version in items(served, "versions")]
    for version in filter(paths.is_segment, versions):
        for resource in items(await client.get(paths.api_group(reference.group, version)), "resources"):
            if text(resource, "kind") == reference.kind and "/" not in text(resource, "name"):
                return version, text(resource, "name")
    raise _not_served(reference)


def _not_served(reference: machine_view.ContractReference) -> NotFound:
    where = f"{reference.group}/{reference.version}".rstrip("/")
    return NotFound(404, "NotFound", f"{where} serves no {reference.kind} {reference.name}".rstrip())


_TIMEOUT: Final = 1.0
"""Seconds for a list or a read; after that the request waits without a worker."""
_READS: Final = 4
"""Of pools' objects, at the same time."""
_DEPTH: Final = 6
_ELEMENTS: Final = 4


class PlatformCache:
    """The caches of all kinds."""

    def __init__(self, client: ApiClient, caches: InformerSet) -> None:
        self._client = client
        self._informers = caches
        self._caches: dict[tuple[str, str], Reflector] = {}
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._reads = asyncio.Semaphore(_READS)

    async def holders_of_key(self, reference: machine_view.ContractReference, fingerprint: str) -> list[str]:
        """Return the namespace of each object of a kind that has an endorsement key; raises Unavailable."""
        objects = await self._listed(reference)
        return [text(found, "metadata", "namespace") for found in objects.by_index("key", fingerprint)]

    async def consumers(self, host: HostReference, consumer: str) -> list[JsonObject]:
        """Return the host objects that name an infrastructure machine (``HostReference.names``); raises Unavailable."""
        objects = await self._listed(machine_view.ContractReference(host.group, host.kind, ""))
        return objects.by_index("consumer", consumer) if consumer else []

    async def hosts_with_name(
        self, hosts: Iterable[HostReference], policy: InfrastructurePolicy, machine: machine_view.MachineView, name: str
    ) -> list[ObjectKey]:
        """Return the host objects of these kinds that name a node, in namespaces that count; raises Unavailable."""
        counting = {machine.namespace, *policy.host_namespaces}
        is_short = policy.short_node_names and "." not in name
        found: list[ObjectKey] = []
        for host in hosts:
            objects = await self._listed(machine_view.ContractReference(host.group, host.kind, ""))
            if any(name_.paths("machine") for name_ in host.node_names):  # it depends on the cluster's name
                names = ((each, names_of_host(each, host, machine.cluster_name)) for each in objects.values())
                named = [each for each, given in names if any(is_named(one, name, short=is_short) for one in given)]
            else:
                named = objects.by_index("label" if is_short else "name", name)
            keys = [
                ObjectKey(host.group, host.kind, text(each, "metadata", "namespace"), text(each, "metadata", "name"))
                for each in named
            ]
            found += [key for key in keys if key.namespace in counting]
        return found

    async def others_with(self, machine: machine_view.MachineView, provider_id: str) -> list[str]:
        """Return the other infrastructure machines of a Machine's cluster with a provider ID; raises Unavailable."""
        own = machine.infra
        if own is None:
            return []
        await self._listed(own)
        return [
            f"{name} {text(found, 'metadata', 'name')}"
            for (group, name), objects in self._caches.items()
            for found in objects.by_index("provider-id", provider_id)
            if text(found, "metadata", "namespace") == machine.namespace
            and text(found, "metadata", "labels", machine_view.CLUSTER_LABEL) in {machine.cluster_name, ""}
            and (group, name, text(found, "metadata", "name")) != (own.group, own.kind, own.name)
        ]

    async def _listed(self, reference: machine_view.ContractReference) -> Reflector:
        """Return all objects of a kind; the first call starts the cache. Raises Unavailable."""
        kind = (reference.group, reference.kind)
        async with self._locks.setdefault(kind, asyncio.Lock()):
            objects = self._caches.get(kind)
            if objects is None:
                objects = self._caches[kind] = await self._watch(reference)
        is_refused = not objects.synced and objects.last_error is not None  # nothing to wait for
        if not is_refused and await objects.wait_synced(_TIMEOUT):
            return objects
        if objects.last_error is not None:
            raise no_platform(f"cannot list {reference.kind} in {reference.group}")
        raise no_platform(f"{reference.kind} objects are being listed")

    async def get(self, reference: machine_view.ContractReference, namespace: str) -> JsonObject:
        """Return an object from the cache; raises Unavailable, because nothing is believed without it."""
        found = (await self._listed(reference)).get(f"{namespace}/{reference.name}")
        if found is None:
            raise no_platform(f"{reference.kind} {reference.name} is not there")
        return found

    async def makes_machines(self, pool: machine_view.MachineView) -> bool:
        """Tell whether a MachinePool's infrastructure provider has a Machine made for each instance, by a read."""
        if pool.pool_infra is None:
            return False
        what = f"{pool.pool_infra.kind} {pool.pool_infra.name}"
        try:
            async with asyncio.timeout(_TIMEOUT), self._reads:
                return await makes_machines(self._client, pool.pool_infra, pool.namespace)
        except TimeoutError as error:
            raise no_platform(f"{what} could not be read in time") from error
        except ApiError as error:
            raise no_platform(f"cannot read {what}: {error.reason}") from error

    async def _watch(self, reference: machine_view.ContractReference) -> Reflector:
        try:
            version, resource = await served_resource(self._client, reference)
            objects = self._informers.follow(reference.group, version, resource, slim_object)
        except ValueError as error:
            raise no_platform("its reference names a group, version or resource that is none") from error
        except NotFound as error:
            raise no_platform(f"{reference.group} serves no {reference.kind}") from error
        except ApiError as error:
            raise no_platform(f"cannot tell what {reference.group} serves: {error.reason}") from error
        objects.index("provider-id", lambda obj: _values(obj, "spec", "providerID"))
        objects.index("key", lambda obj: _values(obj, "metadata", "annotations", ANNOTATION_TPM_ENDORSEMENT_KEY))
        host = HOSTS.get((reference.group, reference.kind))
        if host is not None:
            objects.index("consumer", lambda obj: [host.names({"host": obj})])
            objects.index("name", lambda obj: names_of_host(obj, host))
            objects.index("label", lambda obj: [name.partition(".")[0] for name in names_of_host(obj, host)])
        return objects


def slim_object(infra: JsonObject) -> JsonObject:
    """Keep what expressions and providers can read: short texts and whole numbers, ``_DEPTH`` levels deep."""
    meta = mapping(infra, "metadata")
    kept: JsonObject = {
        **object_identity(meta),
        "annotations": dict(text_map(meta, "annotations")),
        "labels": dict(text_map(meta, "labels")),
        "owners": [text(owner, "uid") for owner in items(meta, "ownerReferences")],
    }
    return {"metadata": kept, "spec": _short(infra.get("spec"), _DEPTH), "status": _short(infra.get("status"), _DEPTH)}


def _values(obj: JsonObject, *path: str) -> list[str]:
    value = text(obj, *path)
    return [value] if value else []


def _short(value: JsonValue, depth: int) -> JsonValue:
    """Keep short texts and whole numbers, of a list the first elements; None in place of other values."""
    if isinstance(value, dict) and depth:
        found = {name: _short(each, depth - 1) for name, each in value.items()}
        return {name: each for name, each in found.items() if each is not None}
    if isinstance(value, list) and depth:
        return [_short(each, depth - 1) for each in value[:_ELEMENTS]]
    is_short = isinstance(value, str) and len(value) <= identifiers.MAX_PROVIDER_ID
    return value if is_short or (isinstance(value, int) and not isinstance(value, bool)) else None


def no_platform(detail: str) -> Unavailable:
    return Unavailable(
        Reason.PLATFORM_UNAVAILABLE,
        detail,
        remedy="let the controller get, list and watch the cluster's infrastructure objects, and see that they exist",
    )


_RESOURCE: Final = "kubeadmconfigs"
CURRENT: Final = 60.0
"""Seconds since the watch's last sign of life within which it is believed. A watch lags by milliseconds, longer only if
the server hangs. A token whose Secret is deleted is refused within ten seconds anyway (TokenSuccessCacheTTL)."""
_WATCH_SECONDS: Final = (40, 50)
"""Shorter than ``CURRENT``, so that a server without changes is believed all the time."""


class KubeadmConfigs:
    """The KubeadmConfigs of the management cluster."""

    def __init__(self, client: ApiClient, caches: InformerSet) -> None:
        """``client`` is the management cluster's; the watch starts with the first read of a configuration."""
        self._client = client
        self._caches = caches
        self._watched: Reflector | None = None
        self._versions: dict[str, str] = {}

    async def tokens_of(self, member: machine_view.MachineView, token_id: str) -> KeptConfig:
        """Return the tokens that a machine's KubeadmConfig names; raises Unavailable. ``token_id``: the requester's."""
        if member.bootstrap is None:
            raise _unreadable("a machine without a bootstrap configuration", "name one in bootstrap.configRef")
        found = await self.find(member.bootstrap, member.namespace, lambda kept: token_id in kept.ids)
        return found.tokens()

    def naming(self, namespace: str, token_id: str) -> list[KeptConfig]:
        """Return the KubeadmConfigs of a namespace that name a token, by the watch."""
        watched = self._watched
        if watched is None or not watched.is_current(CURRENT):
            return []
        return [kept_config(slim) for slim in watched.by_index("token", f"{namespace}/{token_id}")]

    async def names_now(self, member: machine_view.MachineView, token_id: str) -> bool:
        """Return whether a machine's KubeadmConfig names a token, by a read; raises Unavailable."""
        if member.bootstrap is None:
            return False
        return token_id in read_config(await self.read(member.bootstrap, member.namespace)).ids

    async def follow(self) -> None:
        """Start the watch if KubeadmConfigs are served; else the first read of a configuration starts it."""
        if self._watched is None:
            with suppress(ApiError):
                version = await self._version(KUBEADM_CONFIG[0])
                if paths.is_segment(version) and self._watched is None:
                    self._watch(version)

    async def find(
        self, reference: machine_view.ContractReference, namespace: str, is_wished: Callable[[KeptConfig], bool]
    ) -> KeptConfig:
        """Return a KubeadmConfig from the watch if it is as wished, else read it; raises Unavailable."""
        watched = self._watched
        if watched is not None and reference.group == KUBEADM_CONFIG[0] and watched.is_current(CURRENT):
            found = watched.get(f"{namespace}/{reference.name}")
            kept = kept_config(found) if found is not None else None
            if kept is not None and is_wished(kept):
                return kept
        return read_config(await self.read(reference, namespace))

    async def read(self, reference: machine_view.ContractReference, namespace: str) -> JsonObject:
        """Read a whole KubeadmConfig now; raises Unavailable."""
        what = f"KubeadmConfig {reference.name}"
        if not (paths.is_segment(reference.name) and paths.is_segment(reference.group)):
            raise _unreadable(
                "a configuration's name or group that is none", "correct the Machine's bootstrap.configRef"
            )
        try:
            version = reference.version or await self._version(reference.group)
            if not paths.is_segment(version):
                raise _unreadable(f"{what}: its API version is none", "correct the Machine's bootstrap.configRef")
            path = paths.object_path(reference.group, version, _RESOURCE, reference.name, namespace=namespace)
            found = await self._client.get(path)
        except NotFound as error:
            self._versions.pop(reference.group, None)
            raise _unreadable(f"{what} is not there", "see that the bootstrap configuration exists") from error
        except Forbidden as error:
            raise _unreadable(f"{what} may not be read", "apply manifests/rbac in the management cluster") from error
        except ApiError as error:
            raise _unreadable(f"{what} cannot be read: {error.reason}", "see to the management cluster") from error
        if self._watched is None and reference.group == KUBEADM_CONFIG[0]:  # in a version that is served, as just seen
            self._watch(version)
        return found

    def _watch(self, version: str) -> None:
        group = KUBEADM_CONFIG[0]
        watched = self._caches.follow(group, version, _RESOURCE, slim_config, _WATCH_SECONDS)
        watched.index("token", _token_keys)
        self._watched = watched

    async def _version(self, group: str) -> str:
        """Return the served version; a v1beta2 reference names none."""
        if group not in self._versions:
            self._versions[group] = text(await self._client.get(paths.api_group(group)), "preferredVersion", "version")
        return self._versions[group]


def _token_keys(slim: JsonObject) -> list[str]:
    namespace = text(slim, "metadata", "namespace")
    return [f"{namespace}/{token_id}" for token_id in kept_config(slim).ids]


def _unreadable(detail: str, remedy: str) -> Unavailable:
    return Unavailable(Reason.BOOTSTRAP_CONFIG_UNREADABLE, detail, remedy=remedy)
