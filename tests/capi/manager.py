"""Runs the reconcilers of the tests' infrastructure provider: informers, one work queue, back-off.

Promises: an object's reconciler runs after each change of it, of what it owns, and of its Cluster, unless this
is paused; a failure is tried again with controller-runtime's back-off (5 ms, doubled up to 1000 s).
Source: controller-runtime pkg/handler; client-go util/workqueue default_rate_limiters.go.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast

from kinds import CLUSTER, CLUSTER_LABEL, KINDS, Kind, Object, name_of

from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import AlreadyExists, ApiError, NotFound
from nodeattest_kube.periodic import BackoffPolicy
from nodeattest_kube.reflector import Reflector
from nodeattest_kube.workqueue import WorkQueue

_BACKOFF: Final = BackoffPolicy(initial=0.005, cap=1000.0, jitter=0.0)
_WORKERS: Final = 4

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Access:
    """One namespace of an API server, read and written without a cache."""

    api: ApiClient
    namespace: str

    async def get(self, kind: Kind, name: str) -> Object | None:
        try:
            return cast("Object", await self.api.get(kind.path(self.namespace, name)))
        except NotFound:
            return None

    async def create(self, value: Object) -> Object:
        """Create an object; one of this name that exists stays as it is."""
        kind = KINDS[value["kind"]]
        try:
            return cast("Object", await self.api.create(kind.path(self.namespace), value))
        except AlreadyExists:
            return cast("Object", await self.api.get(kind.path(self.namespace, name_of(value))))

    async def patch(self, value: Object, subresource: str = "", /, **patch: Any) -> Object:
        """Merge these fields into an object, where they differ."""
        if _holds(value, patch):
            return value
        path = KINDS[value["kind"]].path(self.namespace, name_of(value), subresource)
        return cast("Object", await self.api.merge_patch(path, patch))

    async def status(self, value: Object, **status: Any) -> Object:
        """Merge these fields into an object's status."""
        return await self.patch(value, "status", status=status)


Reconcile = Callable[[Access, Object], Awaitable[float | None]]
"""Brings one object to its desired state; returns after how many seconds it is to run again at the latest."""


class Manager:
    """Runs reconcilers in a thread; as a context manager until the end of the block."""

    def __init__(self, kubeconfig: Path, namespace: str, reconcilers: Mapping[Kind, Reconcile]) -> None:
        self._kubeconfig, self._namespace = kubeconfig, namespace
        self._reconcilers = dict(reconcilers)
        self._informers: dict[Kind, Reflector] = {}
        self._queue: WorkQueue[tuple[Kind, str]] | None = None
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(lambda: self._task and self._task.cancel())
        self._thread.join(30)

    def _work(self) -> None:
        self._task = self._loop.create_task(self._run())
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)
        self._loop.close()

    async def _run(self) -> None:
        client = ApiClient.from_kubeconfig_file(self._kubeconfig, request_timeout=30)
        self._queue = WorkQueue(backoff=_BACKOFF)
        async with client, asyncio.TaskGroup() as tasks:
            for kind in {CLUSTER, *self._reconcilers}:  # a Cluster's pause and its end concern all that is its
                path = kind.path(self._namespace)
                changed = self._listener(kind)
                self._informers[kind] = Reflector(client, path, on_change=changed)
                tasks.create_task(self._informers[kind].run())
            access = Access(client, self._namespace)
            await self._queue.run(lambda key: self._reconcile(access, *key), _WORKERS)

    def _listener(self, kind: Kind) -> Callable[[str, Any], None]:
        owners: dict[str, list[Object]] = {}

        def changed(key: str, value: Any) -> None:
            self._add(kind, key.rpartition("/")[2])
            known = owners.pop(key, [])
            if value is not None:
                known = owners[key] = value["metadata"].get("ownerReferences", [])
            for each in known:
                self._add(KINDS.get(each["kind"]), each["name"])
            if kind is CLUSTER and value is not None:
                self._add_all(key.rpartition("/")[2])

        return changed

    def _add_all(self, cluster: str) -> None:
        for kind, informer in self._informers.items():
            for value in cast("list[Object]", list(informer.values())):
                if value["metadata"].get("labels", {}).get(CLUSTER_LABEL) == cluster:
                    self._add(kind, name_of(value))

    def _add(self, kind: Kind | None, name: str) -> None:
        if kind in self._reconcilers and self._queue is not None:
            self._queue.add((kind, name))

    async def _reconcile(self, access: Access, kind: Kind, name: str) -> None:
        queue = self._queue
        value = await access.get(kind, name)
        if queue is None or value is None:
            return
        try:
            if await _paused(access, value):
                return
            again = await self._reconcilers[kind](access, value)
        except (ApiError, OSError) as error:
            _log.warning("%s %s: %s; again in %.1f s", kind.kind, name, error, queue.retry((kind, name), error))
            return
        queue.forget((kind, name))
        if again is not None:
            queue.add_after((kind, name), again)


async def _paused(access: Access, value: Object) -> bool:
    """Tell whether an object's Cluster is paused, or has none yet."""
    labels = value["metadata"].get("labels", {})
    name = name_of(value) if value["kind"] == CLUSTER.kind else labels.get(CLUSTER_LABEL)
    cluster = await access.get(CLUSTER, name) if name else None
    return cluster is None or bool(cluster["spec"].get("paused"))


def _holds(value: Any, patch: Any) -> bool:
    if isinstance(patch, dict) and isinstance(value, dict):
        wanted, found = cast("Object", patch), cast("Object", value)
        return all(_holds(found.get(key), item) for key, item in wanted.items())
    return value == patch
