"""The reflectors of one API server by name, and what keeps them from being complete.

Promises: nothing cached has ``metadata.managedFields``, half of what a Machine weighs: nobody reads it here, and a
write that does not have it leaves it as it is (apimachinery pkg/util/managedfields).
Keys, and short texts that many objects have, are one in memory. All reflectors together keep at most ``memory``.
Leaves to others: what is cached, and what a change means.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from nodeattest_controller.logs import fields
from nodeattest_kube.client import WATCH_SECONDS, ApiClient, ApiError, NotFound
from nodeattest_kube.jsontypes import JsonObject, JsonValue
from nodeattest_kube.memory_budget import MemoryPool
from nodeattest_kube.reflector import Reflector

__all__ = ["InformerSet", "SharedTexts", "StartWatch", "always", "without_managed_fields"]

_LOG: Final = logging.getLogger(__name__)


MAX_OBJECTS: Final = 200_000
"""Of one kind, in all namespaces; of several, one namespace gets half of it."""
_SHARED_LENGTH: Final = 64
"""Characters of a text that may be in many objects: kinds, namespaces, names of clusters, times, reasons."""
_SHARED_TEXTS: Final = 4096
"""Texts of a generation; what many objects have comes again before as many others have come."""
_SHARED_DEPTH: Final = 16
"""Levels of an object that are looked into; a Machine has six."""


class StartWatch(Protocol):
    """Starts a cache that nothing waits for."""

    def __call__(
        self,
        group: str,
        version: str,
        resource: str,
        *,
        keep: Callable[[JsonObject], JsonObject],
        watch_seconds: tuple[int, int] = WATCH_SECONDS,
    ) -> Reflector:
        """Follow a kind in the management cluster; ``keep`` says what is kept of an object."""
        ...


class InformerSet:
    """Starts caches and knows how they are; the tasks are its owner's."""

    def __init__(self, client: ApiClient, tasks: asyncio.TaskGroup, memory: MemoryPool, *, shares: bool = True) -> None:
        """``shares``: namespaces are of different tenants; without it the one that is watched may fill the memory."""
        self.client = client
        self._memory = memory
        self._shares = shares
        self.waits_for = ""
        """What is waited for before anything can be cached; empty when nothing is."""
        self._tasks = tasks
        self._texts = SharedTexts()
        self._required: dict[str, Reflector] = {}
        self._all: list[Reflector] = []

    def start(
        self,
        name: str,
        path: str,
        on_change: Callable[[str, JsonObject | None], None],
        *,
        query: Mapping[str, str] | None = None,
        keep: Callable[[JsonObject], JsonObject] | None = None,
        rest: Callable[[JsonObject], JsonObject] = lambda obj: obj,
        packs: Callable[[JsonObject], bool] = lambda _obj: False,
        required: bool = True,
        may_be_absent: bool = False,
        watch_seconds: tuple[int, int] = WATCH_SECONDS,
    ) -> Reflector:
        """Start a cache.

        ``keep``: what ``on_change`` is told of an object; ``rest``: what is kept of this after that, by default all,
        and ``packs`` whether packed, which costs each reader 10 µs.
        ``required``: nothing is complete without it; ``may_be_absent``: maybe nobody serves it.
        """

        def kept(obj: JsonObject) -> JsonObject:
            return self._texts.share(without_managed_fields(keep(obj) if keep is not None else obj))

        reflector = Reflector(
            self.client,
            path,
            query=query,
            on_change=on_change,
            transform=kept,
            rest=rest,
            packs=packs,
            max_objects=MAX_OBJECTS,
            max_bytes=self._memory,
            shares=self._shares,
            watch_seconds=watch_seconds,
        )
        self._all.append(reflector)
        if required:
            self._required[name] = reflector
        self._tasks.create_task(_if_served(reflector, self.client, path) if may_be_absent else reflector.run())
        return reflector

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


class SharedTexts:
    """Lets equal keys and short texts be one in memory: two thirds of what a Machine takes are in all Machines.

    A text is forgotten here once two generations of others have come: names and UIDs are in few objects, and a table of
    all of them would weigh as much as they do.
    """

    def __init__(self, most: int = _SHARED_TEXTS) -> None:
        self._most = most
        self._texts: dict[str, str] = {}
        self._older: dict[str, str] = {}

    def share(self, obj: JsonObject) -> JsonObject:
        """Return an equal object whose texts are those that others have."""
        return {sys.intern(name): self._value(value, _SHARED_DEPTH) for name, value in obj.items()}

    def _value(self, value: JsonValue, depth: int) -> JsonValue:
        match value:
            case str():
                if len(value) > _SHARED_LENGTH:
                    return value
                return self._texts[value] if value in self._texts else self._add(value)
            case dict() if depth:
                return {sys.intern(name): self._value(each, depth - 1) for name, each in value.items()}
            case list() if depth:
                return [self._value(each, depth - 1) for each in value]
            case _:
                return value

    def _add(self, text: str) -> str:
        known = self._texts[text] = self._older.get(text, text)
        if len(self._texts) >= self._most:
            self._texts, self._older = {}, self._texts
        return known

    def __len__(self) -> int:
        return len(self._texts) + len(self._older)


def without_managed_fields(obj: JsonObject) -> JsonObject:
    """Leave out the API server's record of who wrote which field; an object without it comes back as it is."""
    meta = obj.get("metadata")
    if not isinstance(meta, dict) or "managedFields" not in meta:
        return obj
    return {**obj, "metadata": {name: value for name, value in meta.items() if name != "managedFields"}}


def always(_obj: JsonObject) -> bool:
    """Keep objects packed, whatever they are."""
    return True


async def _if_served(reflector: Reflector, client: ApiClient, path: str) -> None:
    """Run a reflector for a resource that a management cluster may not serve (MachinePool is a feature gate)."""
    try:
        await client.get(path, {"limit": "1"})
    except NotFound:
        return
    except ApiError:
        _LOG.info("cannot tell yet whether a resource is served", extra=fields(path=path))
    await reflector.run()
