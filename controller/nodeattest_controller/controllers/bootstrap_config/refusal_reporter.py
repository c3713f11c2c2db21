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
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nodeattest_controller.controllers.bootstrap_config.decide import AdmissionOutcome, Refuse, Verdict
from nodeattest_controller.controllers.bootstrap_config.subject import Kind, Subject
from nodeattest_controller.logs import fields
from nodeattest_controller.model.policy import REFUSED_CONFIGURATIONS
from nodeattest_controller.runtime.conditions import update_status
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, NotFound
from nodeattest_kube.events import EventLimiter, EventRecorder, ObjectRef
from nodeattest_kube.rate_limiter import RateLimiter
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
_VERSION: Final = re.compile(r"v[0-9]{1,3}((alpha|beta)[0-9]{1,3})?", re.ASCII)
_DEPLOYMENT_LABEL: Final = "cluster.x-k8s.io/deployment-name"
_ACCEPTED: Final = frozenset({AdmissionOutcome.RENDERED, AdmissionOutcome.UNCHANGED, AdmissionOutcome.AUDITED})
_REMEDY: Final = "apply manifests/crd, manifests/rbac and manifests/webhook in the management cluster"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Owner:
    """What a bootstrap configuration is for, as the configuration claims it."""

    api_version: str
    resource: str
    ref: ObjectRef
    deployment: str
    """By the label on the configuration; empty where there is none."""

    def is_named_by(self, entry: JsonObject, cluster: str) -> bool:
        """Return whether an entry of the status is about it, or about another MachineSet of its MachineDeployment."""
        same = (text(entry, "kind"), text(entry, "name")) == (self.ref.kind, self.ref.name)
        sibling = bool(self.deployment) and text(entry, "deployment") == self.deployment
        return text(entry, "cluster") == cluster and (same or sibling)


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
        if isinstance(verdict, Refuse):
            if self._may_report(client, subject.namespace):
                self._start(client, self._refused(subject, owner, verdict.denied, cluster, policy))
        elif policy is not None and verdict.outcome in _ACCEPTED:
            named = any(owner.is_named_by(one, cluster) for one in items(policy, "status", REFUSED_CONFIGURATIONS))
            if named and self._may_report(client, subject.namespace):
                self._start(client, self._accepted(owner, cluster, policy))

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

    def _start(self, client: str, report: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(self._guarded(report))
        self._tasks[task] = client
        task.add_done_callback(self._tasks.pop)

    async def _guarded(self, report: Coroutine[None, None, None]) -> None:
        try:
            await report
        except ApiError as error:
            if self._limiter.allow(("failed", error.reason), EVENT_PERIOD):
                log.warning("cannot report a refused configuration", extra=fields(error=str(error), remedy=_REMEDY))

    async def _refused(
        self, subject: Subject, owner: _Owner, denied: Denied, cluster: str, policy: JsonObject | None
    ) -> None:
        ref = owner.ref
        group, _, version = owner.api_version.partition("/")
        try:
            path = paths.object_path(group, version, owner.resource, ref.name, namespace=ref.namespace)
            found = await self._client.get(path)
        except NotFound:
            return
        if text(found, "metadata", "uid") != ref.uid:
            return
        message = f"{subject.kind} for {ref.kind} {ref.name} is refused: {denied}"
        deployments = [one for one in items(found, "metadata", "ownerReferences") if _is_deployment(one)][:1]
        if self._limiter.allow((ref.uid, denied.reason), EVENT_PERIOD):
            for each in (ref, *(_ref(deployment, ref.namespace) for deployment in deployments)):
                self._events.record(each, "Warning", EVENT, message)
        if policy is None:
            return
        entry: JsonObject = {"cluster": cluster, "kind": ref.kind, "name": ref.name}
        for deployment in deployments:
            entry["deployment"] = text(deployment, "name")
        entry |= {"reason": str(denied.reason), "message": one_line(message, MAX_MESSAGE), "time": rfc3339(self._now())}
        await self._update(policy, lambda known: self._with(known, entry))

    async def _accepted(self, owner: _Owner, cluster: str, policy: JsonObject) -> None:
        await self._update(policy, lambda known: [one for one in known if not owner.is_named_by(one, cluster)])

    def _with(self, known: Sequence[JsonObject], entry: JsonObject) -> Sequence[JsonObject]:
        """Put an entry in the place of its predecessor; one that says the same stays for a while."""
        before = next((one for one in known if _key(one) == _key(entry)), None)
        since = moment(text(before, "time")) if before is not None else None
        is_young = since is not None and (self._now() - since).total_seconds() < REWRITE_SECONDS
        if before is not None and is_young and {**entry, "time": before.get("time")} == before:
            return known
        return [*(one for one in known if _key(one) != _key(entry)), entry][-MAX_REFUSED:]

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


def _owner_of(subject: Subject) -> _Owner | None:
    """Return who makes machines of a configuration; None where it names nobody that could be told."""
    references = items(subject.whole, "metadata", "ownerReferences")
    if subject.kind is Kind.CONTROL_PLANE:
        meta = mapping(subject.whole, "metadata")
        references = [{**meta, "apiVersion": subject.api_version, "kind": str(subject.kind)}]
    for reference in references:
        ref = _ref(reference, subject.namespace)
        group, _, version = ref.api_version.partition("/")
        resource = _OWNERS.get((group, ref.kind))
        if resource and ref.uid and paths.is_segment(ref.name) and _VERSION.fullmatch(version):
            label = text(subject.whole, "metadata", "labels", _DEPLOYMENT_LABEL)
            return _Owner(ref.api_version, resource, ref, label)
    return None


def _is_deployment(reference: JsonObject) -> bool:
    group = text(reference, "apiVersion").partition("/")[0]
    return (group, text(reference, "kind")) == ("cluster.x-k8s.io", "MachineDeployment")


def _key(entry: JsonObject) -> tuple[str, str, str]:
    return text(entry, "cluster"), text(entry, "kind"), text(entry, "name")


def _ref(reference: JsonObject, namespace: str) -> ObjectRef:
    return ObjectRef(
        api_version=text(reference, "apiVersion"),
        kind=text(reference, "kind"),
        namespace=namespace,
        name=text(reference, "name"),
        uid=text(reference, "uid"),
    )
