"""Kubernetes Events, written in the background; a failed write is only logged.

Token buckets limit what a user, a cluster (whose API server may invent users), an object and a namespace cause. They
are taken in this order, so that what one bucket refuses is not taken from the next.
Source: client-go tools/record/events_cache.go (a bucket for a source and object); core/v1 Event.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError
from nodeattest_kube.periodic import RateLimiter
from nodeattest_parsing.values import JsonObject, one_line

_log = logging.getLogger(__name__)
SOURCE_BURST, SOURCE_RATE = 10, 1 / 60
"""Events that one user may cause at once, and a second after that."""
CLUSTER_BURST, CLUSTER_RATE = 100, 1 / 6
"""The same for all users of one cluster: a third of what a namespace takes."""
OBJECT_BURST, OBJECT_RATE = 25, 1 / 60
"""The same about one object; client-go has 25 and one in five minutes."""
NAMESPACE_BURST, NAMESPACE_RATE = 300, 1 / 2
"""The same in one namespace, ``Normal`` and ``Warning`` apart; a pool of hundreds of nodes may join at once."""
_KEPT: Final = 1000
_MAX_MESSAGE: Final = 1024
"""Characters (kubernetes pkg/apis/core/validation/events.go)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRef:
    """The object an Event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


class EventRecorder:
    """Writes Events in the background."""

    def __init__(
        self,
        client: ApiClient,
        *,
        component: str,
        instance: str,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``component`` and ``instance`` name the program and the process that report; ``clock``: monotonic seconds."""
        self._client = client
        self._now = now
        self._component = component
        self._instance = instance
        self._tasks: set[asyncio.Task[None]] = set()
        self._buckets = (
            RateLimiter(burst=SOURCE_BURST, per_second=SOURCE_RATE, clock=clock),
            RateLimiter(burst=CLUSTER_BURST, per_second=CLUSTER_RATE, clock=clock),
            RateLimiter(burst=OBJECT_BURST, per_second=OBJECT_RATE, clock=clock),
            RateLimiter(burst=NAMESPACE_BURST, per_second=NAMESPACE_RATE, clock=clock),
        )

    def record(
        self, subject: ObjectRef, kind: str, reason: str, message: str, *, source: tuple[str, str] | None = None
    ) -> None:
        """Write an Event of type ``kind`` (``Normal`` or ``Warning``), unless a bucket is empty.

        ``source`` names who caused it, cluster and user, so that one user's Events do not displace another's.
        """
        keys = (source, source and source[0], (subject.uid, kind), (subject.namespace, kind))
        if not all(key is None or bucket.take(key) for bucket, key in zip(self._buckets, keys, strict=True)):
            return
        document = event_document(
            subject,
            kind=kind,
            reason=reason,
            message=message,
            now=self._now(),
            component=self._component,
            instance=self._instance,
        )
        task = asyncio.create_task(self._write(subject, document))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drain(self, timeout_seconds: float = 2.0) -> None:
        """Wait for Events that are being written, at shutdown."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_seconds)
        for task in self._tasks:
            task.cancel()

    async def _write(self, subject: ObjectRef, document: JsonObject) -> None:
        try:
            await self._client.create(paths.core_path("events", namespace=subject.namespace), document)
        except ApiError as error:
            _log.warning("cannot write an Event about %s %s: %s", subject.kind, subject.name, error.reason)


class EventLimiter:
    """Allows each log line or Event once in a period; what is over is forgotten once there is much of it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` is monotonic seconds."""
        self._clock = clock
        self._ends: dict[Hashable, float] = {}
        """Until when each key is not allowed again."""
        self._most = _KEPT

    def allow(self, key: Hashable, period: float) -> bool:
        """Return whether ``key`` is due; if so, it is not again within ``period`` seconds."""
        now = self._clock()
        if now < self._ends.get(key, now):
            return False
        self._ends[key] = now + period
        if len(self._ends) > self._most:
            self._ends = {each: end for each, end in self._ends.items() if end > now}
            self._most = max(_KEPT, 2 * len(self._ends))
        return True

    def __len__(self) -> int:
        return len(self._ends)


def event_document(
    subject: ObjectRef, *, kind: str, reason: str, message: str, now: datetime, component: str, instance: str
) -> JsonObject:
    """Make the object of an Event."""
    stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{subject.name}.{uuid4().hex[:16]}", "namespace": subject.namespace},
        "involvedObject": {
            "apiVersion": subject.api_version,
            "kind": subject.kind,
            "namespace": subject.namespace,
            "name": subject.name,
            "uid": subject.uid,
        },
        "type": kind,
        "reason": reason,
        "message": one_line(message, _MAX_MESSAGE),
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": instance,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
