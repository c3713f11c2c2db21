"""Reports refused bootstrap configurations where their users look: Events on the owner, and the policy's status.

A review never waits for a report, and a dry run makes none. Whoever reaches the port can send a review that names an
owner, so the owner is read from the API server first. Reports are limited for each caller and namespace, so that no
namespace silences another and no stranger an API server. The owner's next attempt makes up for what is left out.
Out of scope: the end of a refusal that nobody repeats (``policy_status``).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from nodeattest_controller.controllers.bootstrap_config.subject import Subject
from nodeattest_controller.controllers.bootstrap_config.verdict import AdmissionOutcome, Verdict
from nodeattest_controller.logs import fields
from nodeattest_controller.model.policy import REFUSED_CONFIGURATIONS
from nodeattest_controller.runtime.conditions import update_status
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, NotFound
from nodeattest_kube.events import EventLimiter, EventRecorder, ObjectRef
from nodeattest_kube.periodic import RateLimiter
from nodeattest_parsing.objects import items, mapping, moment, rfc3339, text
from nodeattest_parsing.values import JsonObject, JsonValue, one_line
from nodeattest_providers.errors import Denied

EVENT: Final = "BootstrapConfigRefused"
MAX_REFUSED: Final = 16
"""Owners that a status names, the last ones; the CRD's maxItems."""
MAX_MESSAGE: Final = 1024
"""Characters; the CRD's maxLength."""
BURST, RATE = 20, 1 / 6
"""Reports of one caller about a namespace at once, and a second after that; each is a read and up to two writes."""
NAMESPACES: Final = 8
"""How many times that one caller has for all namespaces."""
EVENT_PERIOD: Final = 600.0
"""Seconds between two Events about the same refusal of one owner."""
REWRITE_SECONDS: Final = 300.0
"""Seconds after which an entry gets a new time although nothing else of it has changed."""
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
_DEPLOYMENT_LABEL: Final = "cluster.x-k8s.io/deployment-name"
_ACCEPTED: Final = frozenset({AdmissionOutcome.RENDERED, AdmissionOutcome.UNCHANGED, AdmissionOutcome.AUDITED})
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
        """Reports that are being written, each with the caller whose review it is about."""

    def observe(
        self, subject: Subject, verdict: Verdict, cluster: str, policy: JsonObject | None, *, client: str
    ) -> None:
        """Report a verdict on an object of a cluster; ``policy`` as it was read for it. Returns at once.

        ``client``: the address of the caller whose review it is.
        """
        owner = _owner_of(subject)
        if owner is None:
            return
        if verdict.outcome in _ACCEPTED:
            deployment = text(subject.whole, "metadata", "labels", _DEPLOYMENT_LABEL)
            known = items(policy or {}, "status", REFUSED_CONFIGURATIONS)
            is_due = any(_is_about(entry, owner, deployment, cluster) for entry in known)
        else:
            is_due = verdict.outcome is AdmissionOutcome.DENIED
        if is_due and self._may_report(client, subject.namespace):
            task = asyncio.create_task(self._report(subject, verdict, owner, cluster, policy))
            self._tasks[task] = client
            task.add_done_callback(self._tasks.pop)

    async def drain(self, timeout_seconds: float = 2.0) -> None:
        """Wait for reports that are being written, at shutdown."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_seconds)
        for task in self._tasks:
            task.cancel()
        await self._events.drain(timeout_seconds)

    def _may_report(self, client: str, namespace: str) -> bool:
        own = sum(each == client for each in self._tasks.values())
        has_task = len(self._tasks) < _MAX_TASKS and own < _MAX_TASKS_OF_CALLER
        return has_task and self._of_namespace.take(f"{client} {namespace}") and self._of_caller.take(client)

    async def _report(
        self, subject: Subject, verdict: Verdict, ref: ObjectRef, cluster: str, policy: JsonObject | None
    ) -> None:
        try:
            if verdict.denied is not None and not verdict.passes:
                await self._refused(subject, verdict.denied, ref, cluster, policy)
            elif policy is not None:
                deployment = text(subject.whole, "metadata", "labels", _DEPLOYMENT_LABEL)
                await self._update(
                    policy, lambda known: [entry for entry in known if not _is_about(entry, ref, deployment, cluster)]
                )
        except NotFound:
            return
        except ApiError as error:
            if self._limiter.allow(("failed", error.reason), EVENT_PERIOD):
                log.warning("cannot report a refused configuration", extra=fields(error=str(error), remedy=_REMEDY))

    async def _refused(
        self, subject: Subject, denied: Denied, ref: ObjectRef, cluster: str, policy: JsonObject | None
    ) -> None:
        group, _, version = ref.api_version.partition("/")
        path = paths.object_path(group, version, _OWNERS[group, ref.kind], ref.name, namespace=ref.namespace)
        owner = await self._client.get(path)
        if text(owner, "metadata", "uid") != ref.uid:
            return
        message = one_line(f"{subject.kind} for {ref.kind} {ref.name} is refused: {denied}", MAX_MESSAGE)
        entry: JsonObject = {
            "cluster": cluster,
            "kind": ref.kind,
            "name": ref.name,
            "reason": str(denied.reason),
            "message": message,
            "time": rfc3339(self._now()),
        }
        references = items(owner, "metadata", "ownerReferences")
        deployments = [_ref(each, ref.namespace) for each in references if _group_kind(each) == _DEPLOYMENT][:1]
        for deployment in deployments:
            entry["deployment"] = deployment.name
        if self._limiter.allow((ref.uid, denied.reason), EVENT_PERIOD):
            for each in (ref, *deployments):
                self._events.record(each, "Warning", EVENT, message)
        if policy is not None:
            await self._update(policy, lambda known: self._with(known, entry))

    def _with(self, known: Sequence[JsonObject], entry: JsonObject) -> Sequence[JsonObject]:
        """Put an entry in the place of its predecessor; one that says the same stays for a while."""
        others = [one for one in known if _key(one) != _key(entry)]
        for before in known:
            since = moment(text(before, "time"))
            is_young = since is not None and (self._now() - since).total_seconds() < REWRITE_SECONDS
            if is_young and {**entry, "time": before["time"]} == before:
                return known
        return [*others, entry][-MAX_REFUSED:]

    async def _update(self, policy: JsonObject, change: Callable[[Sequence[JsonObject]], Sequence[JsonObject]]) -> None:
        """Change the status of the policy by compare-and-swap; raises ApiError."""
        group, _, version = text(policy, "apiVersion").partition("/")
        name, namespace = text(policy, "metadata", "name"), text(policy, "metadata", "namespace")
        path = paths.object_path(group, version, "nodeattestationpolicies", name, namespace=namespace)

        def patch_of(found: JsonObject) -> JsonObject | None:
            known = items(found, "status", REFUSED_CONFIGURATIONS)
            wanted: list[JsonValue] = [*change(known)]
            if wanted == known:
                return None
            meta: JsonObject = {"resourceVersion": text(found, "metadata", "resourceVersion")}
            return {"metadata": meta, "status": {REFUSED_CONFIGURATIONS: wanted}}

        await update_status(self._client, path, policy, patch_of)


def _owner_of(subject: Subject) -> ObjectRef | None:
    """Return who makes machines of a configuration, as it claims; None where it names nobody that could be told."""
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


def _is_about(entry: JsonObject, owner: ObjectRef, deployment: str, cluster: str) -> bool:
    """Return whether an entry of the status is about an owner, or another MachineSet of its MachineDeployment."""
    sibling = bool(deployment) and text(entry, "deployment") == deployment
    return _key(entry) == (cluster, owner.kind, owner.name) or (sibling and text(entry, "cluster") == cluster)


def _key(entry: JsonObject) -> tuple[str, str, str]:
    return text(entry, "cluster"), text(entry, "kind"), text(entry, "name")


def _group_kind(reference: JsonObject) -> tuple[str, str]:
    return text(reference, "apiVersion").partition("/")[0], text(reference, "kind")


def _ref(reference: JsonObject, namespace: str) -> ObjectRef:
    names = {field: text(reference, field) for field in ("kind", "name", "uid")}
    return ObjectRef(api_version=text(reference, "apiVersion"), namespace=namespace, **names)
