"""Leases as an API server keeps them, on virtual time, and views of them that lag behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy

from virtual import now

from nodeattest_kube.errors import AlreadyExists, Conflict, NotFound, Unreachable
from nodeattest_kube.jsontypes import version_of
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject


class LeaseServer:
    """Compare-and-swap on resourceVersion, and a history of every write."""

    def __init__(self) -> None:
        self.leases: dict[str, JsonObject] = {}
        self.version = 0
        self.history: list[tuple[float, dict[str, JsonObject]]] = [(0.0, {})]
        self.watchers: list[Callable[[], None]] = []
        self.calls: list[tuple[str, str, str]] = []
        """Who did what to which lease."""

    def write(self, name: str, lease: JsonObject | None) -> JsonObject:
        self.version += 1
        if lease is None:
            del self.leases[name]
            stored: JsonObject = {}
        else:
            stored = deepcopy(lease)
            metadata = stored["metadata"]
            assert isinstance(metadata, dict)
            metadata["resourceVersion"] = str(self.version)
            metadata.setdefault("uid", f"uid-{self.version}")
            self.leases[name] = stored
        self.history.append((now(), dict(self.leases)))
        for watcher in self.watchers:
            watcher()
        return deepcopy(stored)

    def at(self, moment: float) -> dict[str, JsonObject]:
        """Return the leases as they were then."""
        return next((state for when, state in reversed(self.history) if when <= moment), dict[str, JsonObject]())


class Wire:
    """One client's way to the server: it may hang, refuse, or lose answers; what hangs may arrive late."""

    def __init__(self, server: LeaseServer, who: str) -> None:
        self.server = server
        self.who = who
        self.refuses = False
        self.loses_answers = False
        self.held = asyncio.Event()
        self.held.set()
        """Cleared: requests hang, and arrive when it is set again."""
        self.late: list[asyncio.Task[None]] = []

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> JsonObject:
        assert query is None
        name = await self._arrive("get", path)
        if name not in self.server.leases:
            raise NotFound(404, "NotFound", path)
        return await self._answered(deepcopy(self.server.leases[name]))

    async def create(self, path: str, body: JsonObject) -> JsonObject:
        name = text(body, "metadata", "name")
        return await self._send(lambda: self._create(name, body), "create", f"{path}/{name}")

    async def replace(self, path: str, body: JsonObject) -> JsonObject:
        return await self._send(lambda: self._replace(path.rpartition("/")[2], body), "replace", path)

    async def delete(self, path: str, *, uid: str | None = None, resource_version: str | None = None) -> None:
        name = path.rpartition("/")[2]
        await self._send(lambda: self._delete(name, (uid or "", resource_version or "")), "delete", path)

    async def _send(self, write: Callable[[], JsonObject], verb: str, path: str) -> JsonObject:
        """A request that is on its way arrives, whatever becomes of the sender."""

        async def arrive() -> JsonObject:
            await self._arrive(verb, path)
            return write()

        request = asyncio.create_task(arrive())
        request.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await self._answered(await asyncio.shield(request))

    async def _arrive(self, verb: str, path: str) -> str:
        name = path.rpartition("/")[2]
        self.server.calls.append((self.who, verb, name))
        await asyncio.sleep(0.01)
        await self.held.wait()
        if self.refuses:
            raise Unreachable("down")
        return name

    async def _answered(self, answer: JsonObject) -> JsonObject:
        await asyncio.sleep(0.01)
        await self.held.wait()
        if self.loses_answers:
            raise Unreachable("reset")
        return answer

    def _create(self, name: str, body: JsonObject) -> JsonObject:
        if name in self.server.leases:
            raise AlreadyExists(409, "AlreadyExists", name)
        return self.server.write(name, body)

    def _replace(self, name: str, body: JsonObject) -> JsonObject:
        found = self.server.leases.get(name)
        if found is None:
            raise NotFound(404, "NotFound", name)
        if version_of(body) != version_of(found):
            raise Conflict(409, "Conflict", name)
        return self.server.write(name, body)

    def _delete(self, name: str, version: tuple[str, str]) -> JsonObject:
        found = self.server.leases.get(name)
        if found is None:
            raise NotFound(404, "NotFound", name)
        if version != version_of(found):
            raise Conflict(409, "Conflict", name)
        return self.server.write(name, None)


class LaggingView:
    """What a watch has told so far: always some while ago, never going back."""

    def __init__(self, server: LeaseServer) -> None:
        self._server = server
        self.lag = 0.05
        self._seen = 0.0
        self.synced = True

    def values(self) -> Iterable[JsonObject]:
        self._seen = max(self._seen, now() - self.lag)
        return list(self._server.at(self._seen).values())
