"""Reports refused bootstrap configurations where their users look: Events on the owner, and the policy's status.

A MachineSet that cannot make a bootstrap configuration stays without Machines, and its users see nothing of the
webhook's answer. Promises: a review never waits for a report, and a dry run makes none; an owner is read from the API
server before it is written about, because whoever reaches the port can send a review that names one; look-ups and
reports are limited in number, for each caller and namespace, so that no namespace silences another, and reviews that
others make up silence no API server's; what is left out is made up for by the owner's next attempt.
Leaves to others: the decision (``decide``), the end of a refusal that nobody repeats (``policy_status``).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nodeattest_controller.controllers.bootstrap_config.decide import (
    AdmissionOutcome,
    Allow,
    Change,
    Refuse,
    Verdict,
)
from nodeattest_controller.controllers.bootstrap_config.subject import Kind, Subject
from nodeattest_controller.logs import fields
from nodeattest_controller.model.objects import items, moment, rfc3339, text
from nodeattest_controller.model.policy import REFUSED_CONFIGURATIONS
from nodeattest_controller.runtime.conditions import update_status
from nodeattest_kube import client as paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, NotFound
from nodeattest_kube.events import EventLimiter, EventRecorder, ObjectRef
from nodeattest_kube.fair_queue import RateLimiter
from nodeattest_parsing.values import JsonObject, JsonValue, one_line
from nodeattest_providers.errors import Denied

EVENT: Final = "BootstrapConfigRefused"
MAX_REFUSED: Final = 16
"""Owners that a status names, the last ones; the CRD's maxItems."""
MAX_MESSAGE: Final = 1024
"""Characters; the CRD's maxLength."""
BURST, RATE = 20, 1 / 6
"""Reports of a namespace at once, and a second after that; each is up to four writes."""
LOOKUP_BURST, LOOKUP_RATE = 40, 1.0
"""The same of look-ups: each is one read, of whatever owner a review names."""
NAMESPACES: Final = 8
"""How many times a namespace's share all namespaces have together, by the reviews of one caller."""
_REMEMBERED: Final = 1000
"""Callers' namespaces whose shares are counted; one that is forgotten has a whole share again."""
EVENT_PERIOD: Final = 600.0
"""Seconds between two Events about the same refusal of one owner."""
REWRITE_SECONDS: Final = 300.0
"""Seconds after which an entry gets a new time although nothing else of it has changed."""
_MOST_TASKS: Final = 16
_MOST_TASKS_OF_CALLER: Final = _MOST_TASKS // 2
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

_LOG: Final = logging.getLogger(__name__)


class _Budget:
    """Of each caller: a share for each namespace, and a larger one for all together."""

    def __init__(self, burst: int, per_second: float, clock: Callable[[], float]) -> None:
        self._each = RateLimiter(burst=burst, per_second=per_second, clock=clock, remembered=_REMEMBERED)
        self._all = RateLimiter(
            burst=burst * NAMESPACES, per_second=per_second * NAMESPACES, clock=clock, remembered=_REMEMBERED
        )

    def take(self, caller: str, namespace: str) -> bool:
        """Take one of both; a namespace without any left takes nothing of the others'."""
        return self._each.take(f"{caller} {namespace}") and self._all.take(caller)


@dataclass(frozen=True, slots=True)
class _Owner:
    """What a bootstrap configuration is for, as the configuration claims it."""

    group: str
    version: str
    kind: str
    name: str
    uid: str
    deployment: str
    """By the label on the configuration; empty where there is none."""

    def is_named_by(self, entry: JsonObject) -> bool:
        """Tell whether an entry of the status is about it, or about another MachineSet of its MachineDeployment."""
        same = (text(entry, "kind"), text(entry, "name")) == (self.kind, self.name)
        return same or bool(self.deployment and text(entry, "deployment") == self.deployment)


class RefusalReporter:
    """Reports of one replica's webhook."""

    def __init__(
        self,
        client: ApiClient,
        *,
        events: EventRecorder,
        now: Callable[[], datetime],
        clock: Callable[[], float],
    ) -> None:
        """``clock`` is monotonic seconds."""
        self._client = client
        self._events = events
        self._now = now
        self._lookups = _Budget(LOOKUP_BURST, LOOKUP_RATE, clock)
        self._reports = _Budget(BURST, RATE, clock)
        self._limiter = EventLimiter(clock)
        self._tasks: dict[asyncio.Task[None], str] = {}
        """Reports that are being written, each with the caller whose review it is about."""

    def observe(
        self, subject: Subject, verdict: Verdict, cluster: str, policy: JsonObject | None, *, client: str
    ) -> None:
        """Take in a verdict on an object of a cluster; ``policy`` as it was read for it. Returns at once.

        ``client``: the address of the caller whose review it is.
        """
        owner = _owner_of(subject)
        if owner is None:
            return
        match verdict:
            case Refuse(denied):
                if self._has_task(client) and self._lookups.take(client, subject.namespace):
                    self._start(client, self._refused(subject, owner, denied, cluster, policy, client=client))
            case Change() | Allow():
                known = items(policy or {}, "status", REFUSED_CONFIGURATIONS)
                named = any(_is_of(one, cluster, owner) for one in known)
                wanted = policy is not None and named and verdict.outcome in _ACCEPTED
                may = policy is not None and wanted and self._has_task(client)
                if policy is not None and may and self._reports.take(client, subject.namespace):
                    self._start(client, self._accepted(owner, cluster, policy))

    async def drain(self, timeout_seconds: float = 2.0) -> None:
        """Wait for reports that are being written, at shutdown."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_seconds)
        for task in self._tasks:
            task.cancel()
        await self._events.drain(timeout_seconds)

    def _has_task(self, client: str) -> bool:
        own = sum(each == client for each in self._tasks.values())
        return len(self._tasks) < _MOST_TASKS and own < _MOST_TASKS_OF_CALLER

    def _start(self, client: str, report: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(self._guarded(report))
        self._tasks[task] = client
        task.add_done_callback(self._tasks.pop)

    async def _guarded(self, report: Coroutine[None, None, None]) -> None:
        try:
            await report
        except ApiError as error:
            if self._limiter.allow(("failed", error.reason), EVENT_PERIOD):
                remedy = "apply manifests/crd, manifests/rbac and manifests/webhook in the management cluster"
                _LOG.warning("cannot report a refused configuration", extra=fields(error=str(error), remedy=remedy))

    async def _refused(
        self, subject: Subject, owner: _Owner, denied: Denied, cluster: str, policy: JsonObject | None, *, client: str
    ) -> None:
        found = await self._live(owner, subject.namespace)
        if found is None or not self._reports.take(client, subject.namespace):
            return
        deployments = [one for one in items(found, "metadata", "ownerReferences") if _is_deployment(one)][:1]
        message = f"{subject.kind} for {owner.kind} {owner.name} is refused: {denied}"
        if self._limiter.allow((owner.uid, denied.reason), EVENT_PERIOD):
            self._events.record(_ref(found, owner.kind), "Warning", EVENT, message)
            for deployment in deployments:
                self._events.record(_ref_of(deployment, subject.namespace), "Warning", EVENT, message)
        if policy is None:
            return
        entry: JsonObject = {"cluster": cluster, "kind": owner.kind, "name": owner.name}
        for deployment in deployments:
            entry["deployment"] = text(deployment, "name")
        entry |= {"reason": str(denied.reason), "message": one_line(message, MAX_MESSAGE), "time": rfc3339(self._now())}
        await self._update(policy, lambda known: self._with(known, entry))

    async def _accepted(self, owner: _Owner, cluster: str, policy: JsonObject) -> None:
        await self._update(policy, lambda known: [one for one in known if not _is_of(one, cluster, owner)])

    async def _live(self, owner: _Owner, namespace: str) -> JsonObject | None:
        resource = _OWNERS[owner.group, owner.kind]
        path = paths.object_path(owner.group, owner.version, resource, owner.name, namespace=namespace)
        try:
            found = await self._client.get(path)
        except NotFound:
            return None
        return found if text(found, "metadata", "uid") == owner.uid else None

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
    meta = subject.whole.get("metadata")
    label = text(subject.whole, "metadata", "labels", _DEPLOYMENT_LABEL)
    references = items(subject.whole, "metadata", "ownerReferences")
    if subject.kind is Kind.CONTROL_PLANE and isinstance(meta, dict):
        references = [{**meta, "apiVersion": subject.api_version, "kind": str(subject.kind)}]
    for reference in references:
        group, _, version = text(reference, "apiVersion").partition("/")
        name, uid = text(reference, "name"), text(reference, "uid")
        known = (group, text(reference, "kind")) in _OWNERS
        if known and uid and paths.is_segment(name) and _VERSION.fullmatch(version):
            return _Owner(group, version, text(reference, "kind"), name, uid, label)
    return None


def _is_deployment(reference: JsonObject) -> bool:
    group = text(reference, "apiVersion").partition("/")[0]
    return (group, text(reference, "kind")) == ("cluster.x-k8s.io", "MachineDeployment")


def _is_of(entry: JsonObject, cluster: str, owner: _Owner) -> bool:
    return text(entry, "cluster") == cluster and owner.is_named_by(entry)


def _key(entry: JsonObject) -> tuple[str, str, str]:
    return text(entry, "cluster"), text(entry, "kind"), text(entry, "name")


def _ref(found: JsonObject, kind: str) -> ObjectRef:
    return ObjectRef(
        api_version=text(found, "apiVersion"),
        kind=kind,
        namespace=text(found, "metadata", "namespace"),
        name=text(found, "metadata", "name"),
        uid=text(found, "metadata", "uid"),
    )


def _ref_of(reference: JsonObject, namespace: str) -> ObjectRef:
    return ObjectRef(
        api_version=text(reference, "apiVersion"),
        kind=text(reference, "kind"),
        namespace=namespace,
        name=text(reference, "name"),
        uid=text(reference, "uid"),
    )
