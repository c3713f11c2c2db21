"""Makes the cache of a replica that shares clusters complete for those that it takes over.

Promises: each object of the cluster is whole in the cache, in the version that a list saw which began after the call;
clusters of one namespace that are taken over together share lists, because each costs the API server a look at every
object of the kind in the namespace; what a cluster's objects are like, and whether they change, delays others of its
namespace by lists at most, and those of another namespace by one.
Leaves to others: of which clusters objects are kept whole (``served_clusters``), and following them (``Reflector``).
Source: ADR 50.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from nodeattest_controller.model.machine_view import CLUSTER_LABEL
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.served_clusters import is_summary
from nodeattest_kube.backoff import BackoffPolicy
from nodeattest_kube.batches import in_batches
from nodeattest_kube.next_read import NextRead
from nodeattest_kube.reflector import PartialList, Reflector

__all__ = ["LIST_RETRY", "LONGEST_VALUE", "MOST_NAMED", "Takeover"]

LIST_RETRY: Final = BackoffPolicy(initial=0.2, cap=10.0, jitter=0.25)
"""Between two comparisons of the cache with the API server; a watch lags by milliseconds, but each is a whole LIST."""
MOST_NAMED: Final = 64
"""Clusters that one list's selector names; of more, all of the namespace is listed."""
LONGEST_VALUE: Final = 63
"""Characters of a label's value (apimachinery pkg/util/validation); a name may have more, but no selector."""
_AT_ONCE: Final = 2
"""Lists at the same time: Leases are renewed beside them, by an API server that may be slow."""


@dataclass(frozen=True, slots=True)
class _Together:
    """The clusters of a namespace that are taken over."""

    names: set[str] = field(default_factory=set[str])
    reads: dict[str, NextRead[PartialList | None]] = field(default_factory=dict[str, NextRead[PartialList | None]])
    """By the path of a collection."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One list at a time: a namespace whose clusters are listed again and again delays itself."""


class Takeover:
    """The clusters that one replica is taking over."""

    def __init__(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._sleep = sleep
        self._under_way: dict[str, _Together] = {}
        """By namespace."""
        self._lists = asyncio.Semaphore(_AT_ONCE)

    async def complete(
        self, cluster: ClusterKey, collections: Iterable[tuple[Reflector, str]], *, all_of: Reflector
    ) -> None:
        """Wait until the cache has each object of a cluster whole; raises ApiError.

        ``collections`` come with their paths; no object of ``all_of`` may be left out for want of room.
        """
        namespace, _, name = cluster.partition("/")
        together = self._under_way.setdefault(namespace, _Together())
        together.names.add(name)
        try:
            for objects, path in collections:
                await self._complete(cluster, together, objects, path, may_lack=objects is not all_of)
        finally:
            together.names.discard(name)
            if not together.names:
                self._under_way.pop(namespace, None)

    async def _complete(
        self, cluster: ClusterKey, together: _Together, objects: Reflector, path: str, *, may_lack: bool
    ) -> None:
        """Read the objects of a cluster until the cache has each of them whole.

        By the label, of which the API server knows; where not all of them have it, by listing the namespace. A kind
        that nobody serves, or that is not listed yet, is whole once it is.
        """
        name, failures = cluster.partition("/")[2], 0
        unlabelled = len(name) > LONGEST_VALUE
        while objects.synced or objects.is_listing:
            if failures or unlabelled:
                read = await self._read(together, objects, path, None if unlabelled else [name])
            else:
                read = await self._read_together(together, objects, path)
            if read is not None and cluster not in read.behind:
                summaries = any([is_summary(obj) async for obj in in_batches(objects.each("cluster", cluster))])
                if not summaries and (may_lack or all(map(objects.get, read.keys.get(cluster, [])))):
                    return
                unlabelled |= summaries
            failures += 1
            await self._sleep(LIST_RETRY.delay(failures, random.random, None))

    async def _read_together(self, together: _Together, objects: Reflector, path: str) -> PartialList | None:
        """Read by a list that begins now the objects of all that are taken over; who asks meanwhile shares the next."""

        async def read() -> PartialList | None:
            names = sorted(name for name in together.names if len(name) <= LONGEST_VALUE)
            few = names if len(names) <= MOST_NAMED else None
            return await self._read(together, objects, path, few) if names else None

        return await together.reads.setdefault(path, NextRead(read)).read()

    async def _read(
        self, together: _Together, objects: Reflector, path: str, names: list[str] | None
    ) -> PartialList | None:
        """Read the objects of clusters, by their names, or all of the namespace."""
        async with together.turn, self._lists:
            selector = f"{CLUSTER_LABEL} in ({','.join(names)})" if names is not None else None
            return await objects.read_again(path, selector, index="cluster")
