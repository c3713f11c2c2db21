"""Restarts a controller that a bug ended, after a back-off, and nothing else with it; passes changes to subscribers.

Subscribers register after construction, so no part refers to one that does not exist yet, and must not block.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

from nodeattest_controller.logs import fields
from nodeattest_controller.runtime.cluster_controller import ClusterController, ClusterRunner
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_kube.client import ApiClient
from nodeattest_kube.periodic import BackoffPolicy, notify

_LOG: Final = logging.getLogger(__name__)
RESTART: Final = BackoffPolicy(initial=5.0, cap=300.0, jitter=0.25)
_HEALTHY: Final = 600.0
"""Seconds that a controller must run until its next bug counts as a first one."""


async def supervise(
    name: str,
    run: Callable[[], Awaitable[None]],
    *,
    cluster: ClusterKey | None = None,
    backoff: BackoffPolicy = RESTART,
) -> None:
    """Run until ``run`` returns or this is cancelled; start it again after a bug."""
    failures = 0
    while True:
        started = time.monotonic()
        error = await _end_of(run)
        if error is None:
            return
        failures = 1 if time.monotonic() - started > _HEALTHY else failures + 1
        delay = backoff.delay(failures, random.random, error)
        where = {"controller": name, "delay": round(delay, 1)} | ({"cluster": cluster} if cluster else {})
        _LOG.error("a bug ended a controller; it starts again: please report it", exc_info=error, extra=fields(**where))
        await asyncio.sleep(delay)


async def _end_of(run: Callable[[], Awaitable[None]]) -> BaseException | None:
    """Run in a task of its own; returns the bug that ended it, and drops one that comes of being cancelled.

    Only a task of its own tells them apart: a TaskGroup in which a bug came up leaves its task looking as if somebody
    had cancelled it (``Task.cancelling``), up to Python 3.12.
    """
    running = asyncio.ensure_future(run())
    try:
        await asyncio.wait([running])
    except asyncio.CancelledError:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        raise
    return running.exception()


class SupervisedRunner:
    """One controller in one connected cluster; each start makes its runner anew."""

    def __init__(
        self, controller: ClusterController, key: ClusterKey, client: ApiClient, *, backoff: BackoffPolicy = RESTART
    ) -> None:
        self._controller = controller
        self._key = key
        self._client = client
        self._backoff = backoff
        self._runner: ClusterRunner | None = None
        self._task = asyncio.create_task(supervise(controller.name, self._run, cluster=key, backoff=backoff))

    @property
    def is_healthy(self) -> bool:
        """Whether the controller runs, its informers are complete, and nothing keeps them from being up to date."""
        if self._task.done():
            return not self._task.cancelled()  # it has nothing to do in this cluster
        if self._runner is None:
            return False
        return self._runner.synced and self._runner.last_error is None

    def changed(self, keys: frozenset[str] | None) -> None:
        """Pass a change on; while the controller is down there is nobody to pass it to, and its start reads all."""
        if self._runner is not None:
            notify(self._runner.changed, keys)

    async def close(self) -> None:
        """End the controller and wait for it."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        self._runner = self._controller.for_cluster(self._key, self._client)
        try:
            if self._runner is not None:
                await self._runner.run()
        finally:
            self._runner = None


ClusterChanged = Callable[[ClusterKey, frozenset[str] | None], None]
"""Gets a cluster, and the provider IDs and names (``sources.node_key``) of the machines that changed; None: any may
have changed, or the Cluster, its policy, its kubeconfig or its CA."""


class ChangeBus:
    """Subscribers of each kind of change."""

    def __init__(self) -> None:
        self._clusters: list[ClusterChanged] = []
        self._policies: list[Callable[[str], None]] = []

    def subscribe_clusters(self, subscriber: ClusterChanged) -> None:
        """Have a subscriber notified of changed clusters."""
        self._clusters.append(subscriber)

    def subscribe_policies(self, subscriber: Callable[[str], None]) -> None:
        """Have a subscriber notified of a namespace whose policies changed."""
        self._policies.append(subscriber)

    def cluster_changed(self, cluster: ClusterKey, keys: frozenset[str] | None) -> None:
        """Notify of a changed cluster."""
        for subscriber in self._clusters:
            notify(subscriber, cluster, keys)

    def policies_changed(self, namespace: str) -> None:
        """Notify of changed policies."""
        for subscriber in self._policies:
            notify(subscriber, namespace)
