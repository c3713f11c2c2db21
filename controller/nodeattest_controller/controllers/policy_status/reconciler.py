"""Keeps the status of policies: one look a namespace and change, one write a policy that says something else now.

Promises: no write without a difference, each against the version that was judged, so that two replicas do no harm and a
restart writes nothing; what cannot be written is logged with its remedy once in ten minutes and tried with back-off.
Leaves what is said to ``status``.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final

from nodeattest_controller.controllers.policy_status.decide import (
    READY,
    PolicyFinding,
    PolicyReason,
    evaluate,
    status_patch,
)
from nodeattest_controller.controllers.policy_status.validate import first_flaw
from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model.objects import condition, items, key_of, number, text
from nodeattest_controller.runtime.events import EventRecorder, ObjectRef
from nodeattest_controller.runtime.management_cache import OWN_GROUP, OWN_VERSION, ManagementCache
from nodeattest_controller.runtime.ownership import Ownership
from nodeattest_kube import paths
from nodeattest_kube.client import ApiError, Conflict, Forbidden, NotFound
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_kube.workqueue import WorkQueue
from nodeattest_providers.errors import Denied

__all__ = ["PolicyStatusReconciler"]

_LOG: Final = logging.getLogger(__name__)
SETTLE: Final = 1.0
"""Seconds from a change to the look: what changes together is told together."""
ANOTHERS_TURN: Final = 30.0
"""Seconds until a replica looks again that does not do what is of no one cluster: it may by then."""
LOG_PERIOD: Final = 600.0
"""Seconds between two lines about a policy whose status cannot be written."""
REMEDY: Final = "apply manifests/crd and manifests/rbac in the management cluster"


class PolicyStatusReconciler:
    """Writes the status of every policy."""

    def __init__(
        self,
        management: ManagementCache,
        *,
        ownership: Ownership,
        events: EventRecorder,
        metrics: Metrics,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._management = management
        self._ownership = ownership
        self._events = events
        self._metrics = metrics
        self._now = now
        self._clock = clock
        self._queue: WorkQueue[str] = WorkQueue()
        self._flaws: dict[str, tuple[str, Denied | None]] = {}
        """By policy: the version that was read, and what was wrong with it."""
        self._counts: dict[str, Counter[str]] = {}
        self._logged: dict[str, float] = {}

    def changed(self, namespace: str) -> None:
        """Hear that a policy or a Cluster of a namespace changed."""
        self._queue.add_after(namespace, SETTLE)

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            await self._queue.run(self._look, 1)
        finally:
            self._queue.shut_down()

    async def _look(self, namespace: str) -> None:
        policies = self._management.policies(namespace)
        if policies and not self._ownership.owns_management():
            self._queue.add_after(namespace, ANOTHERS_TURN)
            return
        self._forget_others(namespace, policies)
        found = evaluate(policies, self._management.clusters_in(namespace), self._flaw_of)
        self._count(namespace, found.values())
        errors = [error for policy in policies if (error := await self._tell(policy, found[_name(policy)]))]
        if any(not isinstance(error, Conflict) for error in errors):
            self._queue.retry(namespace)
        elif errors:  # somebody wrote meanwhile; the cache is about to say what
            self._queue.add_after(namespace, SETTLE)
        else:
            self._queue.forget(namespace)

    async def _tell(self, policy: JsonObject, finding: PolicyFinding) -> ApiError | None:
        patch = status_patch(policy, finding, self._now())
        if patch is None:
            return None
        path = paths.object_path(
            OWN_GROUP, OWN_VERSION, "nodeattestationpolicies", _name(policy),
            namespace=text(policy, "metadata", "namespace"), subresource="status",
        )  # fmt: skip
        try:
            await self._management.client.merge_patch(path, patch)
        except NotFound:
            return None  # deleted meanwhile; a CRD without the subresource serves no status column either
        except ApiError as error:
            self._complain(policy, error)
            return error
        self._announce(policy, finding)
        return None

    def _announce(self, policy: JsonObject, finding: PolicyFinding) -> None:
        before = condition(items(policy, "status", "conditions"), READY)
        if before is not None and before.get("reason") == finding.why:
            return
        _LOG.info("policy", extra=fields(policy=key_of(policy), reason=str(finding.why), message_=finding.message))
        if finding.why in {PolicyReason.INVALID, PolicyReason.CONFLICT}:
            self._events.record(_subject(policy), "Warning", f"Policy{finding.why}", finding.message)

    def _complain(self, policy: JsonObject, error: ApiError) -> None:
        if isinstance(error, Conflict):
            return
        key, now = key_of(policy), self._clock()
        if now < self._logged.get(key, now):
            return
        self._logged[key] = now + LOG_PERIOD
        remedy = REMEDY if isinstance(error, Forbidden) else ""
        _LOG.warning("cannot write a policy's status", extra=fields(policy=key, error=str(error), remedy=remedy))

    def _flaw_of(self, policy: JsonObject) -> Denied | None:
        """Read a policy once a generation: its status is ours, and what it says changes no spec."""
        key = key_of(policy)
        version = f"{text(policy, 'metadata', 'uid')}/{number(policy, 'metadata', 'generation')}"
        known = self._flaws.get(key)
        if known is None or known[0] != version:
            known = self._flaws[key] = version, self._read(policy)
        return known[1]

    def _read(self, policy: JsonObject) -> Denied | None:
        try:
            return first_flaw(self._management.parsed_policy(policy))
        except Denied as denied:
            return denied

    def _forget_others(self, namespace: str, policies: Iterable[JsonObject]) -> None:
        """Drop what was kept of policies that are gone."""
        there = {key_of(policy) for policy in policies}
        gone = [key for key in self._flaws if key.partition("/")[0] == namespace and key not in there]
        for key in gone:
            self._flaws.pop(key, None)
            self._logged.pop(key, None)

    def _count(self, namespace: str, found: Iterable[PolicyFinding]) -> None:
        counted = Counter(str(finding.why) for finding in found)
        if counted:
            self._counts[namespace] = counted
        else:
            self._counts.pop(namespace, None)
        self._metrics.policies(sum(self._counts.values(), Counter[str]()))


def _name(policy: JsonObject) -> str:
    return text(policy, "metadata", "name")


def _subject(policy: JsonObject) -> ObjectRef:
    return ObjectRef(
        api_version=f"{OWN_GROUP}/{OWN_VERSION}",
        kind="NodeAttestationPolicy",
        namespace=text(policy, "metadata", "namespace"),
        name=_name(policy),
        uid=text(policy, "metadata", "uid"),
    )
