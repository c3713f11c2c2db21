"""Reports refused bootstrap configurations: Events on the owner and its MachineDeployment, and the policy's status.

A review never waits for a report. Anybody who reaches the port can send a review that names an owner, so the owner is
read first. Each caller has limits, by namespace and in all, so no stranger silences an API server. The owner's next
attempt makes up for a report that is left out, and ``policy_status`` removes old entries.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from datetime import datetime
from typing import Final

from nodeattest_controller.controllers.bootstrap_config.decide import Subject
from nodeattest_controller.logs import fields
from nodeattest_controller.model.policy import REFUSED_CONFIGURATIONS
from nodeattest_controller.runtime.conditions import update_status
from nodeattest_controller.runtime.informers import OWN_GROUP, OWN_VERSION
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, NotFound
from nodeattest_kube.events import EventLimiter, EventRecorder, ObjectRef
from nodeattest_kube.periodic import RateLimiter
from nodeattest_parsing.objects import items, mapping, rfc3339, text
from nodeattest_parsing.values import JsonObject, JsonValue, one_line
from nodeattest_providers.errors import Denied

EVENT: Final = "BootstrapConfigRefused"
MAX_REFUSED: Final = 16
"""Owners in a policy's status, the latest ones; the CRD's maxItems."""
MAX_MESSAGE: Final = 1024
"""Characters; the CRD's maxLength."""
BURST, RATE = 20, 1 / 6
"""Reports of one caller about a namespace at once, and a second after that; each is a read and up to four writes."""
NAMESPACES: Final = 8
"""One caller's limit for all namespaces is so many times higher."""
PERIOD: Final = 600.0
"""Seconds between two reports of the same refusal of one owner."""
_MAX_TASKS: Final = 16
_MAX_TASKS_OF_CALLER: Final = _MAX_TASKS // 2
_OWNERS: Final = {
    ("cluster.x-k8s.io", "MachineSet"): "machinesets",
    ("cluster.x-k8s.io", "MachinePool"): "machinepools",
    ("cluster.x-k8s.io", "Machine"): "machines",
    ("controlplane.cluster.x-k8s.io", "KubeadmControlPlane"): "kubeadmcontrolplanes",
}
"""Resources of the kinds that bootstrap configurations are made for."""
_DEPLOYMENT: Final = ("cluster.x-k8s.io", "MachineDeployment")
_VERSION: Final = re.compile(r"v[0-9]{1,3}((alpha|beta)[0-9]{1,3})?", re.ASCII)
_REMEDY: Final = "apply manifests/crd, manifests/rbac and manifests/webhook in the management cluster"

log = logging.getLogger(__name__)


class RefusalReporter:
    """Reports of one replica's webhook."""

    def __init__(
        self, client: ApiClient, *, events: EventRecorder, now: Callable[[], datetime], clock: Callable[[], float]
    ) -> None:
        """``clock`` is monotonic seconds."""
        self._client = client
        self._events = events
        self._now = now
        self._of_namespace = RateLimiter(burst=BURST, per_second=RATE, clock=clock)
        self._of_caller = RateLimiter(burst=NAMESPACES * BURST, per_second=NAMESPACES * RATE, clock=clock)
        self._limiter = EventLimiter(clock)
        self._tasks: dict[asyncio.Task[None], str] = {}
        """Reports that are being written, and each one's caller."""

    def report(self, subject: Subject, denied: Denied, *, cluster: str, policy: str, client: str) -> None:
        """Report a refusal; returns at once. ``policy``: its name, or empty; ``client``: the caller's address."""
        owner = _owner_of(subject)
        own = sum(each == client for each in self._tasks.values())
        if owner is None or len(self._tasks) >= _MAX_TASKS or own >= _MAX_TASKS_OF_CALLER:
            return
        if self._of_namespace.take(f"{client} {subject.namespace}") and self._of_caller.take(client):
            task = asyncio.create_task(self._report(subject, denied, owner, cluster, policy))
            self._tasks[task] = client
            task.add_done_callback(self._tasks.pop)

    async def drain(self, timeout_seconds: float = 2.0) -> None:
        """Wait for reports that are being written, at shutdown."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_seconds)
        for task in self._tasks:
            task.cancel()
        await self._events.drain(timeout_seconds)

    async def _report(self, subject: Subject, denied: Denied, ref: ObjectRef, cluster: str, policy: str) -> None:
        group, _, version = ref.api_version.partition("/")
        path = paths.object_path(group, version, _OWNERS[group, ref.kind], ref.name, namespace=ref.namespace)
        try:
            owner = await self._client.get(path)
            if text(owner, "metadata", "uid") != ref.uid or not self._limiter.allow((ref.uid, denied.reason), PERIOD):
                return
            message = one_line(f"{subject.kind} for {ref.kind} {ref.name} is refused: {denied}", MAX_MESSAGE)
            references = items(owner, "metadata", "ownerReferences")
            deployments = [_ref(each, ref.namespace) for each in references if _group_kind(each) == _DEPLOYMENT]
            for each in (ref, *deployments[:1]):
                self._events.record(each, "Warning", EVENT, message)
            if policy:
                entry: JsonObject = {"cluster": cluster, "kind": ref.kind, "name": ref.name}
                entry |= {"reason": str(denied.reason), "message": message, "time": rfc3339(self._now())}
                await self._add(policy, ref.namespace, entry)
        except NotFound:
            return
        except ApiError as error:
            if self._limiter.allow(("failed", error.reason), PERIOD):
                log.warning("cannot report a refused configuration", extra=fields(error=str(error), remedy=_REMEDY))

    async def _add(self, policy: str, namespace: str, entry: JsonObject) -> None:
        """Add an entry to the policy's status in place of the owner's earlier one; raises ApiError."""
        path = paths.object_path(OWN_GROUP, OWN_VERSION, "nodeattestationpolicies", policy, namespace=namespace)

        def with_entry(found: JsonObject) -> JsonObject:
            known = items(found, "status", REFUSED_CONFIGURATIONS)
            others = [one for one in known if any(one.get(key) != entry[key] for key in ("cluster", "kind", "name"))]
            wanted: list[JsonValue] = [*others, entry]
            meta: JsonObject = {"resourceVersion": text(found, "metadata", "resourceVersion")}
            return {"metadata": meta, "status": {REFUSED_CONFIGURATIONS: wanted[-MAX_REFUSED:]}}

        await update_status(self._client, path, await self._client.get(path), with_entry)


def _owner_of(subject: Subject) -> ObjectRef | None:
    """Return the claimed owner; None if it is of no kind that machines are made for."""
    references = items(subject.whole, "metadata", "ownerReferences")
    if subject.is_control_plane:
        references = [{**mapping(subject.whole, "metadata"), **subject.whole}]
    for reference in references:
        ref = _ref(reference, subject.namespace)
        version = ref.api_version.partition("/")[2]
        is_known = _group_kind(reference) in _OWNERS and _VERSION.fullmatch(version)
        if is_known and ref.uid and paths.is_segment(ref.name):
            return ref
    return None


def _group_kind(reference: JsonObject) -> tuple[str, str]:
    return text(reference, "apiVersion").partition("/")[0], text(reference, "kind")


def _ref(reference: JsonObject, namespace: str) -> ObjectRef:
    names = {field: text(reference, field) for field in ("kind", "name", "uid")}
    return ObjectRef(api_version=text(reference, "apiVersion"), namespace=namespace, **names)
