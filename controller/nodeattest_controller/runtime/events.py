"""Events on Machines and Clusters: what happened and why, where an operator looks first.

Events stay in the management cluster, so they carry expected and got; the CSR's condition does not. Writing one never
delays a verdict. A flood of refusals neither becomes a flood of Events nor hides others': token buckets for the
requester that caused it, for the requester's cluster, whose API server may invent requesters, for the object that it is
about and for the namespace drop the rest, in this order, so that what one of them drops is not taken from the next.
Source: client-go tools/record/events_cache.go has a bucket for a source and object.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import uuid4

from nodeattest_controller.logs import fields
from nodeattest_controller.model.objects import rfc3339
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient, ApiError
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_kube.rate_limiter import RateLimiter

__all__ = ["EventRecorder", "ObjectRef", "event_document"]

_LOG: Final = logging.getLogger(__name__)
_COMPONENT: Final = "node-attestation-controller"
SOURCE_BURST, SOURCE_RATE = 10, 1 / 60
"""Events that one requester may cause at once, and a second after that."""
CLUSTER_BURST, CLUSTER_RATE = 100, 1 / 6
"""The same that all requesters of one cluster may cause: a third of what a namespace takes."""
OBJECT_BURST, OBJECT_RATE = 25, 1 / 60
"""The same about one object; client-go has 25 and one in five minutes."""
NAMESPACE_BURST, NAMESPACE_RATE = 300, 1 / 2
"""The same in one namespace, ``Normal`` and ``Warning`` apart; a pool of hundreds of nodes may join at once."""
MESSAGE_LIMIT: Final = 1024
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
        now: Callable[[], datetime],
        instance: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._now = now
        self._instance = instance
        self._tasks: set[asyncio.Task[None]] = set()
        self._sources = RateLimiter(burst=SOURCE_BURST, per_second=SOURCE_RATE, clock=clock)
        self._clusters = RateLimiter(burst=CLUSTER_BURST, per_second=CLUSTER_RATE, clock=clock)
        self._objects = RateLimiter(burst=OBJECT_BURST, per_second=OBJECT_RATE, clock=clock)
        self._namespaces = RateLimiter(burst=NAMESPACE_BURST, per_second=NAMESPACE_RATE, clock=clock)

    def record(
        self, subject: ObjectRef, kind: str, reason: str, message: str, *, source: tuple[str, str] | None = None
    ) -> None:
        """Write an Event (``Normal`` or ``Warning``), unless a budget is spent.

        ``source`` names who caused a refusal, cluster and user, so that one requester's do not drown another's.
        """
        budgets = ((self._objects, (subject.uid, kind)), (self._namespaces, (subject.namespace, kind)))
        if source is not None and not (self._sources.take(source) and self._clusters.take(source[0])):
            return
        if not all(bucket.take(key) for bucket, key in budgets):
            return
        document = event_document(
            subject,
            kind=kind,
            reason=reason,
            message=message,
            now=self._now(),
            component=_COMPONENT,
            instance=self._instance,
        )
        task = asyncio.create_task(self._write(subject, document))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drain(self, timeout_seconds: float = 2.0) -> None:
        """Wait for what is under way, at shutdown."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_seconds)
        for task in self._tasks:
            task.cancel()

    async def _write(self, subject: ObjectRef, document: JsonObject) -> None:
        try:
            await self._client.create(paths.core_path("events", namespace=subject.namespace), document)
        except ApiError as error:
            _LOG.warning("could not write an event", extra=fields(subject=subject.name, error=error.reason))


def event_document(
    subject: ObjectRef, *, kind: str, reason: str, message: str, now: datetime, component: str, instance: str
) -> JsonObject:
    """Make the object of an Event."""
    stamp = rfc3339(now)
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
        "message": message[:MESSAGE_LIMIT],
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": instance,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
