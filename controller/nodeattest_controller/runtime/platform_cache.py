"""What the infrastructure provider says of machines: its objects, a kind at a time.

Promises: a kind is listed and watched once, from the first machine that names it: one that is there when its cluster is
connected, or whose request is looked at. Nobody waits for a first list: while it is read, objects are read one by one,
few at a time.
Leaves to others: how a kind is followed (``ManagementCache.start_watch``), which providers look at it (``facts``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Final
from weakref import WeakValueDictionary

from nodeattest_controller.model.machine_view import ContractReference, MachineView
from nodeattest_controller.model.objects import mapping, object_identity, text, text_map
from nodeattest_controller.runtime.informers import StartWatch
from nodeattest_controller.runtime.restmapper import makes_machines
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient, ApiError, NotFound
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_kube.reflector import Reflector
from nodeattest_providers.errors import Reason, Unavailable

__all__ = ["MOST_AHEAD", "PlatformCache"]

_READ_TIMEOUT: Final = 1.0
"""Seconds; after that the request waits, not its worker."""
_READS: Final = 4
_LONGEST_NAME: Final = 253
MOST_AHEAD: Final = 8
"""Kinds in all that are followed before a request asks: whoever makes Machines may name many."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """The cache of a kind, and where its objects are."""

    group: str
    version: str
    resource: str
    objects: Reflector
    reads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_READS))
    """Of single objects, while there is no list."""


class PlatformCache:
    """The caches of all kinds."""

    def __init__(self, client: ApiClient, start_watch: StartWatch) -> None:
        self._client = client
        self._start_watch = start_watch
        self._caches: dict[tuple[str, str], _Kind] = {}
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._reads = asyncio.Semaphore(_READS)
        """Of pools' objects."""

    async def object_of(self, member: MachineView) -> JsonObject | None:
        """Return the infrastructure object of a Machine, from a cache that starts with its kind.

        None only where the Machine names none: what the platform says must be known before anything else is believed,
        so an object that cannot be read raises Unavailable.
        """
        if member.infra is None:
            return None
        reference = member.infra
        kind = await self._cache(reference)
        if not kind.objects.synced:
            if kind.objects.last_error is not None:
                raise _no_platform(f"cannot list {reference.kind} in {reference.group}")
            return await self._read(kind, member.namespace, reference)
        found = kind.objects.get(f"{member.namespace}/{reference.name}")
        if found is None:
            raise _no_platform(f"{reference.kind} {reference.name} is not there")
        return found

    async def makes_machines(self, pool: MachineView) -> bool:
        """Tell whether a MachinePool's infrastructure provider has a Machine made for each instance, by a read."""
        if pool.pool_infra is None:
            return False
        async with _reading(pool.pool_infra, self._reads):
            return await makes_machines(self._client, pool.pool_infra, pool.namespace)

    async def follow(self, members: Iterable[MachineView]) -> None:
        """Start the caches of machines' infrastructure objects, of few kinds, where that is possible."""
        found = {(each.infra.group, each.infra.kind): each.infra for each in members if each.infra}
        for reference in islice(found.values(), max(0, MOST_AHEAD - len(self._caches))):
            with suppress(Unavailable):
                await self._cache(reference)

    async def _read(self, kind: _Kind, namespace: str, reference: ContractReference) -> JsonObject:
        """Read one object now."""
        path = paths.object_path(kind.group, kind.version, kind.resource, reference.name, namespace=namespace)
        async with _reading(reference, kind.reads):
            return _slim(await self._client.get(path))

    async def _cache(self, reference: ContractReference) -> _Kind:
        """Return the cache of a kind, which starts with the first call; raises Unavailable."""
        kind = (reference.group, reference.kind)
        async with self._locks.setdefault(kind, asyncio.Lock()):
            if kind not in self._caches:
                self._caches[kind] = await self._watch(reference)
            return self._caches[kind]

    async def _preferred_version(self, group: str) -> str:
        found = await self._client.get(paths.api_group(group))
        return text(found, "preferredVersion", "version")

    async def _watch(self, reference: ContractReference) -> _Kind:
        try:
            version = reference.version or await self._preferred_version(reference.group)
            served = await self._client.get(paths.api_group(reference.group, version))
            resource = next((name for name, kind in _resources(served) if kind == reference.kind), None)
            if resource is None:
                raise _no_platform(f"{reference.group}/{version} serves no {reference.kind}")
            objects = self._start_watch(reference.group, version, resource, keep=_slim)
            return _Kind(reference.group, version, resource, objects)
        except ValueError as error:
            raise _no_platform("its reference names a group, version or resource that is none") from error
        except ApiError as error:
            raise _no_platform(f"cannot tell what {reference.group} serves: {error.reason}") from error


def _slim(infra: JsonObject) -> JsonObject:
    """Keep what providers look at."""
    meta = mapping(infra, "metadata")
    return {"metadata": {**object_identity(meta), "annotations": dict(text_map(meta, "annotations"))}}


@asynccontextmanager
async def _reading(reference: ContractReference, reads: asyncio.Semaphore) -> AsyncGenerator[None]:
    """Read an object in the block, as one of few and for a moment; raises Unavailable."""
    if not paths.is_segment(reference.name) or len(reference.name) > _LONGEST_NAME:
        raise _no_platform("its reference has a name that is none")
    what = f"{reference.kind} {reference.name}"
    try:
        async with asyncio.timeout(_READ_TIMEOUT), reads:
            yield
    except TimeoutError as error:
        raise _no_platform(f"{what} could not be read in time") from error
    except NotFound as error:
        raise _no_platform(f"{what} is not there") from error
    except ApiError as error:
        raise _no_platform(f"cannot read {what}: {error.reason}") from error


def _no_platform(detail: str) -> Unavailable:
    return Unavailable(
        Reason.PLATFORM_UNAVAILABLE,
        detail,
        remedy="let the controller get, list and watch the cluster's infrastructure objects, and see that they exist",
    )


def _resources(served: JsonObject) -> Iterable[tuple[str, str]]:
    found = served.get("resources")
    for resource in found if isinstance(found, list) else []:
        if isinstance(resource, dict) and "/" not in text(resource, "name"):
            yield text(resource, "name"), text(resource, "kind")
