"""Reconciles the status of policies: one evaluation of a namespace, one write for each policy whose status differs.

Each write is against the version that was read, so two replicas do no harm. Whether a namespace has the webhook's
label, and the webhook's configuration, are read by name when its policies are evaluated.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from typing import Final

from nodeattest_controller.controllers.policy_status import decide
from nodeattest_controller.logs import fields
from nodeattest_controller.model import webhook_configuration
from nodeattest_controller.runtime.cluster_controller import ReconcilerDeps
from nodeattest_controller.runtime.conditions import ConditionStatus
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.informers import OWN_GROUP, OWN_VERSION
from nodeattest_controller.verification.verifiers import first_flaw
from nodeattest_kube import paths
from nodeattest_kube.errors import ApiError, Conflict, Forbidden, NotFound
from nodeattest_kube.events import EventLimiter, ObjectRef
from nodeattest_kube.workqueue import WorkQueue
from nodeattest_parsing.objects import condition, items, key_of, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied

log = logging.getLogger(__name__)
LABEL_RESYNC: Final = 300.0
"""Seconds between two evaluations of policies whose namespace must have the webhook's label; ``RECOUNT`` without it."""
SETTLE: Final = 1.0
"""Seconds from a change to the evaluation: changes that come together are evaluated together."""
RECOUNT: Final = 60.0
"""Seconds between two evaluations while policies are in conflict: certificates are issued and expire unannounced."""
LOG_PERIOD: Final = 600.0
"""Seconds between two log lines about one missing right."""
_WORKERS: Final = 4
"""Namespaces that are evaluated at one time: each waits for a read of the API server."""
_UNRENDERED: Final = frozenset({decide.PolicyReason.NAMESPACE_NOT_LABELLED, decide.PolicyReason.WEBHOOK_NOT_CALLED})
_SOON: Final = _UNRENDERED | {decide.PolicyReason.NAMESPACE_NOT_READ, decide.PolicyReason.WEBHOOK_NOT_READ}
"""What is looked at again each ``RECOUNT``: somebody is about to correct it."""
REMEDY: Final = "apply manifests/crd, manifests/rbac and manifests/webhook in the management cluster"
_LABELLED: Final = (
    "what was written while the webhook was not called is not rendered, control planes included; list it: kubectl get "
    "nodeattestationpolicies,kubeadmcontrolplanes,kubeadmconfigs -n {} -o yaml | nodeattest policy check -f -"
)
_WITH_EVENT: Final = frozenset({decide.PolicyReason.INVALID, decide.PolicyReason.CONFLICT, *_UNRENDERED})


class PolicyStatusReconciler:
    """Writes the status of every policy."""

    def __init__(
        self,
        deps: ReconcilerDeps,
        configuration: str | None,
        *,
        recount: float = RECOUNT,
        label_resync: float = LABEL_RESYNC,
    ) -> None:
        """Take part; ``configuration`` names the webhook's MutatingWebhookConfiguration, None: there is no webhook."""
        self._management, self._guard, self._events = deps.management, deps.guard, deps.events
        self._metrics, self._now = deps.metrics, deps.now
        self._configuration = configuration
        self._recount, self._label_resync = recount, label_resync
        self._queue: WorkQueue[str] = WorkQueue(metrics=deps.metrics.queues.named("policy-status"))
        self._counts: dict[str, Counter[str]] = {}
        self._limiter = EventLimiter(deps.clock)

    def changed(self, namespace: str) -> None:
        self._queue.add_after(namespace, SETTLE)

    def cluster_changed(self, cluster: ClusterKey, keys: frozenset[str] | None) -> None:
        if keys is None:
            self.changed(cluster.partition("/")[0])

    async def run(self) -> None:
        try:
            await self._queue.run(self._reconcile, _WORKERS)
        except asyncio.CancelledError:
            self._queue.shut_down()
            raise

    async def _reconcile(self, namespace: str) -> None:
        if not self._guard.leads():
            self._queue.forget(namespace)  # another replica writes it, and this one ends
            return
        try:
            again_after = await self._evaluate(namespace)
        except Conflict:  # another writer was faster; the cache is about to have its version
            again_after = SETTLE
        except ApiError as error:
            self._warn("cannot evaluate policies, or write their status", error, namespace)
            self._queue.retry(namespace, error)
            return
        self._queue.forget(namespace)
        if again_after is not None:
            self._queue.add_after(namespace, again_after)

    async def _evaluate(self, namespace: str) -> float | None:
        """Evaluate the policies of a namespace; returns the seconds until the next time. Raises ApiError."""
        policies, clusters = self._management.policies(namespace), self._management.clusters_in(namespace)
        rendering, needs_label = decide.CALLED, False
        if self._configuration is not None and any(map(webhook_configuration.needs_webhook, policies)):
            rendering, needs_label = await self._read_rendering(namespace, self._configuration), True
        found = await decide.evaluate(policies, clusters, self._flaw_of, self._management.machines_under, rendering)
        self._count(namespace, found.values())
        errors: list[ApiError] = []
        for policy in policies:
            try:
                await self._write(policy, found[text(policy, "metadata", "name")])
            except ApiError as error:  # which keeps no other policy from its status
                errors.append(error)
        if errors:
            raise next((error for error in errors if not isinstance(error, Conflict)), errors[0])
        if rendering.reason in _SOON or any(finding.conflicts for finding in found.values()):
            return self._recount
        return self._label_resync if needs_label else None

    async def _read_rendering(self, namespace: str, configuration: str) -> decide.Rendering:
        """Read what the webhook does in a namespace; without the right to, that is unknown. Raises ApiError."""
        client = self._management.client
        try:
            found = await client.get(paths.core_path("namespaces", namespace))
        except Forbidden as error:
            self._warn("cannot read a namespace's labels", error, namespace)
            return decide.rendering_of(namespace, None)
        if not webhook_configuration.is_decided(found) or webhook_configuration.is_disabled(found):
            return decide.rendering_of(namespace, found)
        group, resource = "admissionregistration.k8s.io", "mutatingwebhookconfigurations"
        try:
            calls = webhook_configuration.webhook_calls(
                await client.get(paths.object_path(group, "v1", resource, configuration)), found
            )
        except NotFound:
            calls = webhook_configuration.webhook_calls(None, found)
        except Forbidden as error:
            calls = webhook_configuration.WebhookCalls(why_unknown=str(error))
        return decide.rendering_of(namespace, found, calls)

    async def _write(self, policy: JsonObject, finding: decide.PolicyFinding) -> None:
        """Write a status that differs, and report its reason where that is new; raises ApiError."""
        patch = decide.status_patch(policy, finding, self._now())
        if patch is None:
            return
        name, namespace = text(policy, "metadata", "name"), text(policy, "metadata", "namespace")
        path = paths.object_path(
            OWN_GROUP, OWN_VERSION, "nodeattestationpolicies", name, namespace=namespace, subresource="status"
        )
        try:
            await self._management.client.merge_patch(path, patch)
        except NotFound:
            return  # deleted meanwhile; a CRD without the subresource serves no status column either
        before = condition(items(policy, "status", "conditions"), decide.READY) or {}
        if before.get("reason") == finding.why:
            return
        log.info("policy", extra=fields(policy=key_of(policy), reason=str(finding.why), message_=finding.message))
        subject = ObjectRef(
            api_version=f"{OWN_GROUP}/{OWN_VERSION}",
            kind="NodeAttestationPolicy",
            namespace=namespace,
            name=name,
            uid=text(policy, "metadata", "uid"),
        )
        if before.get("reason") in _UNRENDERED and finding.condition.status is ConditionStatus.TRUE:
            self._events.record(subject, "Warning", "PolicyLeftUnrendered", _LABELLED.format(namespace))
        if finding.why in _WITH_EVENT:
            self._events.record(subject, "Warning", f"Policy{finding.why}", finding.message)

    def _warn(self, message: str, error: ApiError, namespace: str) -> None:
        if self._limiter.allow((message, namespace), LOG_PERIOD):
            remedy = REMEDY if isinstance(error, Forbidden) else ""
            log.warning(message, extra=fields(error=str(error), remedy=remedy, namespace=namespace))

    def _flaw_of(self, policy: JsonObject) -> Denied | None:
        try:
            return first_flaw(self._management.parsed_policy(policy))
        except Denied as denied:
            return denied

    def _count(self, namespace: str, found: Iterable[decide.PolicyFinding]) -> None:
        self._counts[namespace] = Counter(str(finding.why) for finding in found)
        if not self._counts[namespace]:
            del self._counts[namespace]
        self._metrics.policies(sum(self._counts.values(), Counter[str]()))
