"""Events on Machines and Clusters: what happened and why, where an operator looks first.

Events stay in the management cluster, so they carry expected and got; the CSR's condition does not. Writing one never
delays a verdict, and a flood of refusals cannot become a flood of Events: a token bucket a cluster drops the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import uuid4

from nodeattest_controller.logs import fields
from nodeattest_controller.objects import rfc3339
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient, ApiError
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["EventRecorder", "Subject"]

_LOG: Final = logging.getLogger(__name__)
BURST: Final = 25
"""Events a cluster may write at once; client-go's default burst (tools/record/events_cache.go)."""
REFILL: Final = 1 / 30
"""Events a second after that; hence ten denials in five minutes still show."""
MESSAGE_LIMIT: Final = 1024
"""Characters (kubernetes pkg/apis/core/validation/events.go)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The object an Event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


class EventRecorder:
    """Writes Events in the background."""

    def __init__(self, client: ApiClient, *, now: Callable[[], datetime], instance: str) -> None:
        self._client = client
        self._now = now
        self._instance = instance
        self._tasks: set[asyncio.Task[None]] = set()
        self._budgets: dict[str, tuple[float, float]] = {}

    def record(self, subject: Subject, kind: str, reason: str, message: str) -> None:
        """Write an Event (``Normal`` or ``Warning``); drops it when the subject's namespace has spent its budget."""
        if not self._allowed(f"{subject.namespace}/{kind}"):
            return
        task = asyncio.create_task(self._write(subject, self._document(subject, kind, reason, message)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drain(self, timeout_seconds: float = 2.0) -> None:
        """Wait for what is under way, at shutdown."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_seconds)
        for task in self._tasks:
            task.cancel()

    def _allowed(self, budget: str) -> bool:
        now = self._now().timestamp()
        tokens, last = self._budgets.get(budget, (float(BURST), now))
        tokens = min(BURST, tokens + max(now - last, 0.0) * REFILL)
        self._budgets[budget] = (tokens - 1 if tokens >= 1 else tokens, now)
        return tokens >= 1

    async def _write(self, subject: Subject, document: JsonObject) -> None:
        try:
            await self._client.create(paths.core("events", namespace=subject.namespace), document)
        except ApiError as error:
            _LOG.warning("could not write an event", extra=fields(subject=subject.name, error=error.reason))

    def _document(self, subject: Subject, kind: str, reason: str, message: str) -> JsonObject:
        stamp = rfc3339(self._now())
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
            "source": {"component": "node-attestation-controller"},
            "reportingComponent": "node-attestation-controller",
            "reportingInstance": self._instance,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
