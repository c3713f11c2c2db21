"""Reconciles the status of policies: one evaluation a namespace and change, one write a policy whose status differs.

Each write is against the version that was read, so two replicas do no harm. A failed write is logged with its remedy
once in ten minutes and repeated with back-off. Whether a namespace has the webhook's label, and the webhook's
configuration, are read by name when its policies are evaluated, at least every five minutes: no list is read.

A KubeadmControlPlane with machines stays as it is until its next roll-out, and until then each of its new machines is
made of it. So the control planes of at most ``MAX_READ`` Clusters are read, once a period.
Out of scope: what a status says (``decide``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import datetime
from typing import Final

from nodeattest_controller.controllers.policy_status.decide import (
    CALLED,
    DISABLED,
    READY,
    PolicyFinding,
    PolicyReason,
    Rendering,
    evaluate,
    namespace_not_read,
    not_labelled,
    refusals_end,
    rendering_of,
    status_patch,
    webhook_not_read,
)
from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model.machine_view import control_plane_ref
from nodeattest_controller.model.webhook_configuration import is_decided, is_disabled, needs_webhook, webhook_calls
from nodeattest_controller.runtime.conditions import ConditionStatus
from nodeattest_controller.runtime.guard import ClusterGuard
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.sources import OWN_GROUP, OWN_VERSION
from nodeattest_controller.verification.policy_validation import first_flaw
from nodeattest_kube import paths
from nodeattest_kube.errors import ApiError, Conflict, Forbidden, Malformed, NotFound
from nodeattest_kube.events import EventLimiter, EventRecorder, ObjectRef
from nodeattest_kube.workqueue import WorkQueue
from nodeattest_parsing.objects import condition, items, key_of, number, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied

log = logging.getLogger(__name__)
MAX_READ: Final = 200
"""Control planes of a namespace that are read at one time."""
_GROUP: Final = "controlplane.cluster.x-k8s.io"
_KIND: Final = "KubeadmControlPlane"
_RESOURCE: Final = "kubeadmcontrolplanes"


LABEL_RESYNC: Final = 300.0
"""Seconds between two evaluations of policies whose namespace must have the webhook's label; ``RECOUNT`` without it."""
SETTLE: Final = 1.0
"""Seconds from a change to the evaluation: changes that come together are evaluated together."""
RECOUNT: Final = 60.0
"""Seconds between two evaluations while policies are in conflict: certificates are issued and expire unannounced."""
LOG_PERIOD: Final = 600.0
"""Seconds between two lines about a policy whose status cannot be written."""
_WORKERS: Final = 4
"""Namespaces that are evaluated at one time: each waits for a read of the API server."""
_CONFIGURATIONS: Final = "mutatingwebhookconfigurations"
_SOON: Final = frozenset({PolicyReason.NAMESPACE_NOT_LABELLED, PolicyReason.WEBHOOK_NOT_CALLED})
"""What is looked at again each ``RECOUNT``: somebody is about to correct it."""
_OF_CONFIGURATION: Final = frozenset(
    {PolicyReason.VALID, PolicyReason.WEBHOOK_NOT_CALLED, PolicyReason.WEBHOOK_NOT_READ}
)
"""What the configuration says of a namespace that has the label."""
REMEDY: Final = "apply manifests/crd and manifests/rbac in the management cluster"
WEBHOOK_REMEDY: Final = "apply manifests/webhook in the management cluster"
_LABELLED: Final = (
    "what was written while the webhook was not called is not rendered, control planes included; list it: kubectl get "
    "nodeattestationpolicies,kubeadmcontrolplanes,kubeadmconfigs -n {} -o yaml | nodeattest policy check -f -"
)
_WITH_EVENT: Final = frozenset({PolicyReason.INVALID, PolicyReason.CONFLICT, *_SOON})
"""Reasons of which an Event tells."""


class PolicyStatusReconciler:
    """Writes the status of every policy."""

    def __init__(
        self,
        management: ManagementCache,
        *,
        guard: ClusterGuard,
        events: EventRecorder,
        metrics: Metrics,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
        recount: float = RECOUNT,
        has_webhook: bool = False,
        configuration: str = "",
        is_rendered: Callable[[JsonObject], bool] = lambda _control_plane: True,
        label_resync: float = LABEL_RESYNC,
    ) -> None:
        """``has_webhook``: controller ``bootstrap-config`` runs, and namespaces of policies need its label.

        ``configuration``: the name of the webhook's MutatingWebhookConfiguration. ``is_rendered``: whether new machines
        of a control plane run the agent.
        """
        self._management = management
        self._guard = guard
        self._events = events
        self._metrics = metrics
        self._now = now
        self._recount = recount
        self._has_webhook = has_webhook
        self._label_resync = label_resync
        self._configuration = configuration
        self._renderings: dict[str, Rendering] = {}
        """By namespace: what was read last of label and configuration."""
        self._clock = clock
        self._is_rendered = is_rendered
        self._unrendered: dict[str, tuple[frozenset[str], float]] = {}
        """By namespace: Clusters whose control plane is not rendered, and when they were read."""
        self._queue: WorkQueue[str] = WorkQueue(metrics=metrics.queues.named("policy-status"))
        self._flaws: dict[str, tuple[str, Denied | None]] = {}
        """By policy: the version that was read, and what was wrong with it."""
        self._counts: dict[str, Counter[str]] = {}
        self._limiter = EventLimiter(clock)

    def changed(self, namespace: str) -> None:
        """Take in that a policy of a namespace changed."""
        self._queue.add_after(namespace, SETTLE)

    def cluster_changed(self, cluster: ClusterKey, keys: frozenset[str] | None) -> None:
        """Take in that a Cluster changed."""
        if keys is None:
            self.changed(cluster.partition("/")[0])

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            await self._queue.run(self._reconcile, _WORKERS)
        except asyncio.CancelledError:
            self._queue.shut_down()
            raise

    async def _reconcile(self, namespace: str) -> None:
        if not self._guard.leads():
            self._queue.forget(namespace)  # another replica writes it, and this one ends
            return
        policies = self._management.policies(namespace)
        self._forget_others(namespace, policies)
        clusters = self._management.clusters_in(namespace)
        before = self._renderings.get(namespace)
        rendering, unread = await self._rendering_in(namespace, policies)
        if before is None or before.reason is not rendering.reason:  # what was written meanwhile may be unrendered
            self._unrendered.pop(namespace, None)
        found = await evaluate(
            policies,
            clusters,
            self._flaw_of,
            self._management.machines_under,
            rendering=rendering,
            unrendered=await self._unrendered_in(namespace, policies, clusters),
        )
        self._count(namespace, found.values())
        errors = [error for policy in policies if (error := await self._write(policy, found[_name(policy)]))]
        failures = [error for error in (unread, *errors) if error is not None and not isinstance(error, Conflict)]
        if failures:
            self._queue.retry(namespace, max(failures, key=lambda error: error.retry_after or 0.0))
        elif errors:  # another writer was faster; the cache is about to have its version
            self._queue.add_after(namespace, SETTLE)
        else:
            self._queue.forget(namespace)
            ends = [end for policy in policies if (end := refusals_end(policy, self._now())) is not None]
            if ends:
                self._queue.add_after(namespace, min(ends) + SETTLE)
            if rendering.reason in _SOON or any(finding.conflicts for finding in found.values()):
                self._queue.add_after(namespace, self._recount)
            elif namespace in self._renderings:
                self._queue.add_after(namespace, self._label_resync)

    # The webhook

    async def _rendering_in(self, namespace: str, policies: Sequence[JsonObject]) -> tuple[Rendering, ApiError | None]:
        """Read what the webhook does in a namespace; return also the error for which to look again soon.

        What was read last holds on through an outage; without the right to read it, it is unknown.
        """
        if not self._has_webhook or not any(map(needs_webhook, policies)):
            self._renderings.pop(namespace, None)
            return CALLED, None
        known = self._renderings.get(namespace)
        try:
            found = await self._management.client.get(paths.core_path("namespaces", namespace))
        except ApiError as error:
            remedy = WEBHOOK_REMEDY if isinstance(error, Forbidden) else ""
            self._warn(("namespace", namespace), "cannot read a namespace's labels", error, remedy, namespace=namespace)
            holds = known is not None and not isinstance(error, Forbidden)
            rendering = known if known is not None and holds else namespace_not_read(namespace)
            self._renderings[namespace] = rendering
            return rendering, error
        error = None
        if not is_decided(found):
            rendering = not_labelled(namespace)
        elif is_disabled(found):
            rendering = DISABLED
        else:
            rendering, error = await self._called_for(found, known)
        self._renderings[namespace] = rendering
        return rendering, error

    async def _called_for(self, namespace: JsonObject, known: Rendering | None) -> tuple[Rendering, ApiError | None]:
        """Read whether API servers call the webhook for a namespace that has the label."""
        try:
            return rendering_of(webhook_calls(await self._read_configuration(), namespace)), None
        except Forbidden as error:
            return webhook_not_read(str(error)), None
        except ApiError as error:
            holds = known is not None and known.reason in _OF_CONFIGURATION
            return known if known is not None and holds else webhook_not_read(str(error)), error

    async def _read_configuration(self) -> JsonObject | None:
        """Read the MutatingWebhookConfiguration, which may be written meanwhile by others; None: there is none."""
        path = paths.object_path("admissionregistration.k8s.io", "v1", _CONFIGURATIONS, self._configuration)
        try:
            return await self._management.client.get(path)
        except NotFound:
            return None

    async def _unrendered_in(
        self, namespace: str, policies: Sequence[JsonObject], clusters: Sequence[JsonObject]
    ) -> frozenset[str] | None:
        """Name the Clusters whose control plane is not rendered, or cannot be read; None: not known."""
        if not self._has_webhook or not any(map(needs_webhook, policies)):
            self._unrendered.pop(namespace, None)
            return None
        known = self._unrendered.get(namespace)
        if known is not None and self._clock() - known[1] < self._label_resync:
            return known[0]
        try:
            found = await self._read_control_planes(namespace, clusters)
        except ApiError as error:
            remedy = WEBHOOK_REMEDY if isinstance(error, Forbidden) else ""
            about = ("control planes", namespace)
            self._warn(about, "cannot read control planes", error, remedy, namespace=namespace)
            return None if known is None or isinstance(error, Forbidden) else known[0]
        self._unrendered[namespace] = found, self._clock()
        return found

    async def _read_control_planes(self, namespace: str, clusters: Sequence[JsonObject]) -> frozenset[str]:
        """Read each by name; one that is too large counts as not rendered and hides no other. Raises ApiError."""
        named = {text(one, "metadata", "name"): control_plane_ref(one) for one in clusters}
        ours = [(name, one) for name, one in sorted(named.items()) if one and (one.group, one.kind) == (_GROUP, _KIND)]
        served, left = "", set[str]()
        for name, reference in ours[:MAX_READ]:
            if not reference.version and not served:
                served = text(await self._management.client.get(paths.api_group(_GROUP)), "preferredVersion", "version")
            version = reference.version or served
            if not all(map(paths.is_segment, (version, reference.name))):
                continue
            path = paths.object_path(_GROUP, version, _RESOURCE, reference.name, namespace=namespace)
            try:
                if not self._is_rendered(await self._management.client.get(path)):
                    left.add(name)
            except NotFound:  # it will be rendered when it is created
                continue
            except Malformed:
                left.add(name)
        return frozenset(left)

    # The status

    async def _write(self, policy: JsonObject, finding: PolicyFinding) -> ApiError | None:
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
            if not isinstance(error, Conflict):
                remedy = REMEDY if isinstance(error, Forbidden) else ""
                key = key_of(policy)
                self._warn(key, "cannot write a policy's status", error, remedy, policy=key)
            return error
        self._report(policy, finding)
        return None

    def _report(self, policy: JsonObject, finding: PolicyFinding) -> None:
        before = condition(items(policy, "status", "conditions"), READY)
        if before is not None and before.get("reason") == finding.why:
            return
        log.info("policy", extra=fields(policy=key_of(policy), reason=str(finding.why), message_=finding.message))
        was_unrendered = before is not None and before.get("reason") in _SOON
        if was_unrendered and finding.condition.status is ConditionStatus.TRUE:
            message = _LABELLED.format(text(policy, "metadata", "namespace"))
            self._events.record(_subject(policy), "Warning", "PolicyLeftUnrendered", message)
        if finding.why in _WITH_EVENT:
            self._events.record(_subject(policy), "Warning", f"Policy{finding.why}", finding.message)

    def _warn(self, about: Hashable, message: str, error: ApiError, remedy: str, **more: object) -> None:
        """Log trouble once in ten minutes."""
        if self._limiter.allow(about, LOG_PERIOD):
            log.warning(message, extra=fields(error=str(error), remedy=remedy, **more))

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
