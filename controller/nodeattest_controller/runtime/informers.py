"""The reflectors of one API server by name, what keeps them from being complete, and a bound on endless lists.

Nothing cached has ``metadata.managedFields``, half of what a Machine weighs: a write without it leaves it as it is.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from typing import Final

from nodeattest_controller.logs import fields
from nodeattest_kube import paths
from nodeattest_kube.client import WATCH_SECONDS, ApiClient
from nodeattest_kube.errors import ApiError, NotFound, TooLarge
from nodeattest_kube.memory_budget import MemoryPool
from nodeattest_kube.reflector import Reflector
from nodeattest_parsing.values import JsonObject

MOST: Final = 20_000
"""Things that are kept of one list: some times what a large cluster has."""
_CHARACTERS: Final = 400
"""Characters a thing, on the average: names have 253 at most."""


class ListLimit:
    """Counts what is kept in one look."""

    def __init__(self, what: str, most: int = MOST) -> None:
        self._what = what
        self._most = most
        self._things = 0
        self._characters = 0

    def take(self, *words: str) -> None:
        """Count one thing that is kept, with the words that are kept of it; raises TooLarge."""
        self._things += 1
        self._characters += sum(map(len, words))
        if self._things > self._most or self._characters > self._most * _CHARACTERS:
            raise TooLarge(200, f"the list of {self._what} does not end: more than {self._most} are not kept")


_LOG: Final = logging.getLogger(__name__)


MAX_OBJECTS: Final = 200_000
"""Of one kind, in all namespaces; of several, one namespace gets half of it."""


class InformerSet:
    """Starts caches and knows how they are; the tasks are its owner's."""

    def __init__(
        self, client: ApiClient, tasks: asyncio.TaskGroup, memory: MemoryPool, *, namespace: str | None
    ) -> None:
        """``namespace``: the only one that is watched, which may fill the memory; None: all, and each has its share."""
        self.client, self.memory, self.namespace = client, memory, namespace
        self.waits_for = ""
        """What is waited for before anything can be cached; empty when nothing is."""
        self._tasks = tasks
        self._required: dict[str, Reflector] = {}
        self._all: list[Reflector] = []

    def path(self, group: str, version: str, resource: str) -> str:
        """Return the path of a collection in what is watched."""
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
        """Start a cache.

        ``keep``: what is kept of an object, by default all.
        ``required``: nothing is complete without it; ``may_be_absent``: maybe nobody serves it.
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
        """Start the cache of a kind that nothing waits for, and whose changes wake nobody."""
        path = self.path(group, version, resource)
        return self.start(path, lambda _key, _obj: None, keep=keep, required=False, watch_seconds=watch_seconds)

    async def wait_synced(self) -> None:
        """Wait until all that is required has been read once."""
        for reflector in list(self._required.values()):
            await reflector.wait_synced(math.inf)

    @property
    def left_out(self) -> int:
        """How many objects of the server are in none of the caches, and should be."""
        return sum(reflector.left_out for reflector in self._all)

    def unhealthy(self) -> str | None:
        """Say what keeps the caches from being complete; None when nothing does."""
        if self.waits_for:
            return f"waiting for {self.waits_for}"
        if not self._required:
            return "not started"
        late = sorted(name for name, reflector in self._required.items() if not reflector.synced)
        return f"waiting for {', '.join(late)}" if late else None


def without_managed_fields(obj: JsonObject) -> JsonObject:
    """Leave out the API server's record of who wrote which field; an object without it comes back as it is."""
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
