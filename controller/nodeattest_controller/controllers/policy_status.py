"""Reconciles the status of policies: whether one admits anybody, which Clusters it rules, and which it shares.

A namespace is evaluated as a whole, and each status that differs is written against the version that was read, so two
replicas do no harm. The Namespace, for the webhook's label, and the webhook's configuration are read by name.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Final

from nodeattest_controller.logs import fields
from nodeattest_controller.model import webhook_configuration
from nodeattest_controller.model.policy import ruling_policy, selecting
from nodeattest_controller.runtime.cluster_controller import PERIOD, ReconcilerDeps
from nodeattest_controller.runtime.conditions import Condition, ConditionStatus, Severity, with_condition
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.informers import OWN_GROUP, OWN_VERSION
from nodeattest_controller.verification.verifiers import first_flaw
from nodeattest_kube import paths
from nodeattest_kube.errors import ApiError, Conflict, Forbidden, NotFound
from nodeattest_kube.events import EventLimiter, ObjectRef
from nodeattest_kube.store import BATCH, in_batches
from nodeattest_kube.workqueue import WorkQueue
from nodeattest_parsing.objects import condition, items, key_of, mapping, number, strings, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Denied

READY: Final = "Ready"
MAX_CONFLICTS: Final = 32
"""Clusters that a status names; the CRD's maxItems."""
MAX_RIVALS: Final = 8
_MAX_LISTED: Final = 4


class PolicyReason(StrEnum):
    """The condition's reason."""

    VALID = "Valid"
    SELECTS_NOTHING = "SelectsNothing"
    INVALID = "Invalid"
    CONFLICT = "Conflict"
    NAMESPACE_NOT_LABELLED = "NamespaceNotLabelled"
    NAMESPACE_NOT_READ = "NamespaceNotRead"
    WEBHOOK_NOT_CALLED = "WebhookNotCalled"
    WEBHOOK_NOT_READ = "WebhookNotRead"
    RENDERING_DISABLED = "RenderingDisabled"


_UNRENDERED: Final = frozenset({PolicyReason.NAMESPACE_NOT_LABELLED, PolicyReason.WEBHOOK_NOT_CALLED})
_AMISS: Final = _UNRENDERED | {PolicyReason.NAMESPACE_NOT_READ}
"""Reasons of a rendering for which a policy is not Ready; others are told beside what the policy admits."""
_NOT_READY: Final = frozenset({PolicyReason.INVALID, PolicyReason.CONFLICT, *_AMISS})


@dataclass(frozen=True, slots=True)
class Rendering:
    """Whether the webhook renders what is created in a namespace."""

    reason: PolicyReason = PolicyReason.VALID
    message: str = ""
    """Empty: the controller has no webhook, or it is called."""


CALLED: Final = Rendering()
_NOT_RENDERED: Final = "new machines join without attestation, or not at all"


def rendering_of(
    name: str, namespace: JsonObject | None, calls: webhook_configuration.WebhookCalls | None = None
) -> Rendering:
    """Evaluate a Namespace, None where it may not be read, and where it has the label the webhook's configuration."""
    reason, message = PolicyReason.VALID, ""
    if namespace is None:
        reason = PolicyReason.NAMESPACE_NOT_READ
        message = (
            f"it is not known whether new machines are rendered: the controller could not read the namespace {name}, "
            "and tries again; its log has the error"
        )
    elif not webhook_configuration.is_decided(namespace):
        reason = PolicyReason.NAMESPACE_NOT_LABELLED
        remedy = webhook_configuration.label_command(name)
        message = f"{_NOT_RENDERED}: expected {webhook_configuration.EXPECTED}, got one without; {remedy}"
    elif webhook_configuration.is_disabled(namespace):
        reason = PolicyReason.RENDERING_DISABLED
        message = (
            "the namespace's label says disabled, so the webhook renders nothing here: machines join by configuration "
            "that nodeattest render wrote, or not at all"
        )
    elif calls is not None and calls.why_not:
        reason = PolicyReason.WEBHOOK_NOT_CALLED
        message = (
            f"{_NOT_RENDERED}: expected a webhook that API servers call for bootstrap configuration of this namespace; "
            f"got none: {calls.why_not}; kubectl apply -k manifests/webhook"
        )
    elif calls is not None and calls.why_unknown:
        reason = PolicyReason.WEBHOOK_NOT_READ
        message = f"whether API servers call the webhook for this namespace is not known: {calls.why_unknown}"
    elif calls is not None and calls.weakness:
        message = f"the webhook is called, but {calls.weakness}: while it does not answer, new machines join without"
        message += " attestation"
    return Rendering(reason, message)


@dataclass(frozen=True, slots=True)
class SharedCluster:
    """A Cluster that several policies select; all by name."""

    name: str
    rivals: tuple[str, ...]
    ruling: str
    """The policy that goes on, because the cluster's machines joined under it; empty: none, and no node joins."""
    meaning: str


@dataclass(frozen=True, slots=True)
class PolicyFinding:
    """The evaluation of one policy."""

    why: PolicyReason
    message: str
    clusters: int
    conflicts: tuple[SharedCluster, ...]

    @property
    def condition(self) -> Condition:
        """Whether the policy lets anybody in where it selects a Cluster."""
        status = ConditionStatus.FALSE if self.why in _NOT_READY else ConditionStatus.TRUE
        if self.why is PolicyReason.NAMESPACE_NOT_READ:
            status = ConditionStatus.UNKNOWN
        return Condition(READY, status, self.why, self.message, Severity.ERROR)


async def evaluate(
    policies: Sequence[JsonObject],
    clusters: Sequence[JsonObject],
    flaw_of: Callable[[JsonObject], Denied | None],
    machines_under: Callable[[JsonObject, str], int],
    rendering: Rendering = CALLED,
) -> Mapping[str, PolicyFinding]:
    """Evaluate the policies of one namespace, beside its Clusters, in slices: each is compared with each; by name.

    ``machines_under`` counts the machines of a Cluster that joined under a policy.
    """
    flaws: dict[str, Denied | None] = {}
    async for policy in in_batches(policies, 1):
        flaws[text(policy, "metadata", "name")] = flaw_of(policy)
    ruled = dict.fromkeys(flaws, 0)
    shared: dict[str, list[SharedCluster]] = {name: [] for name in ruled}
    in_order = sorted(clusters, key=lambda one: text(one, "metadata", "name"))
    async for cluster in in_batches(in_order, max(1, BATCH // max(1, len(policies)))):
        selected_by = selecting(cluster, policies)
        names = sorted(text(policy, "metadata", "name") for policy in selected_by)
        if len(names) == 1:
            ruled[names[0]] += 1
            continue
        ruling = ruling_policy(selected_by, partial(machines_under, cluster))
        meaning = f"{ruling} goes on, its machines joined under it" if ruling else "no node joins"
        if flaws.get(ruling) is not None:
            meaning = f"no node joins, because its machines joined under {ruling}, which is {PolicyReason.INVALID}"
            ruling = ""
        for name in names:
            rivals = tuple(other for other in names if other != name)
            shared[name].append(SharedCluster(text(cluster, "metadata", "name"), rivals, ruling, meaning))
    found: dict[str, PolicyFinding] = {}
    async for policy in in_batches(policies, 1):
        name = text(policy, "metadata", "name")
        needed = rendering if webhook_configuration.needs_webhook(policy) else CALLED
        found[name] = _finding(policy, flaws[name], ruled[name], tuple(shared[name]), needed)
    return found


def status_patch(policy: JsonObject, finding: PolicyFinding, now: datetime) -> JsonObject | None:
    """Make the merge patch of ``/status`` for a finding; None where the status has it already."""
    conflicts: list[JsonValue] = [
        {
            "cluster": shared.name,
            "policies": [*shared.rivals[:MAX_RIVALS]],
            **({"ruling": shared.ruling} if shared.ruling else {}),
        }
        for shared in finding.conflicts[:MAX_CONFLICTS]
    ]
    wanted: JsonObject = {
        "observedGeneration": number(policy, "metadata", "generation") or 0,
        "clusters": finding.clusters,
        "conflicts": conflicts,
    }
    known = mapping(policy, "status")
    status: JsonObject = {name: value for name, value in wanted.items() if known.get(name) != value}
    status |= mapping(with_condition(policy, finding.condition, now) or {}, "status")
    if not status:
        return None
    return {"metadata": {"resourceVersion": text(policy, "metadata", "resourceVersion")}, "status": status}


def _finding(
    policy: JsonObject,
    flaw: Denied | None,
    clusters: int,
    conflicts: tuple[SharedCluster, ...],
    rendering: Rendering,
) -> PolicyFinding:
    why, message = PolicyReason.VALID, _admits(policy)
    if flaw is not None:
        why, message = PolicyReason.INVALID, f"no node joins: expected {flaw.expected}, got {flaw.got}; {flaw.remedy}"
    elif conflicts:
        why, message = PolicyReason.CONFLICT, _conflict(conflicts)
    elif rendering.reason in _AMISS:
        why, message = rendering.reason, rendering.message
    elif not clusters:
        why = PolicyReason.SELECTS_NOTHING
        message = f"no Cluster of this namespace has the labels of clusterSelector; {message}"
    elif rendering.message:
        why, message = rendering.reason, f"{message}; {rendering.message}"
    return PolicyFinding(why, message, clusters, conflicts)


def _admits(policy: JsonObject) -> str:
    named = ", ".join(strings(policy, "spec", "authorizedAttestors")) or "nobody: authorizedAttestors is empty"
    audit = text(policy, "spec", "enforcement") == "Audit"
    return f"admits {named}" + ("; Audit: what hardening would change is reported and left" if audit else "")


def _conflict(conflicts: Sequence[SharedCluster]) -> str:
    shown = "; ".join(f"{one.name} (also {_some(one.rivals)}): {one.meaning}" for one in conflicts[:_MAX_LISTED])
    more = f" and {len(conflicts) - _MAX_LISTED} more" if len(conflicts) > _MAX_LISTED else ""
    return (
        f"another policy selects the same Clusters: {shown}{more}; "
        "narrow the clusterSelectors so that one policy remains"
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_LISTED]) + (", …" if len(names) > _MAX_LISTED else "")


log = logging.getLogger(__name__)
LABEL_RESYNC: Final = 300.0
"""Seconds between two evaluations of policies whose namespace must have the webhook's label; ``RECOUNT`` without it."""
SETTLE: Final = 1.0
"""Seconds from a change to the evaluation: changes that come together are evaluated together."""
RECOUNT: Final = 60.0
"""Seconds between two evaluations while policies are in conflict: certificates are issued and expire unannounced."""
_WORKERS: Final = 4
_SOON: Final = _AMISS | {PolicyReason.WEBHOOK_NOT_READ}
"""What is looked at again each ``RECOUNT``: somebody is about to correct it."""
REMEDY: Final = "apply manifests/crd, manifests/rbac and manifests/webhook in the management cluster"
_LABELLED: Final = (
    "what was written while the webhook was not called is not rendered, control planes included; list it: kubectl get "
    "nodeattestationpolicies,kubeadmcontrolplanes,kubeadmconfigs -n {} -o yaml | nodeattest policy check -f -"
)
_WITH_EVENT: Final = frozenset({PolicyReason.INVALID, PolicyReason.CONFLICT, *_UNRENDERED})


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
        self._metrics.policies(dict.fromkeys(PolicyReason, 0))
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
        rendering, needs_label = CALLED, False
        if self._configuration is not None and any(map(webhook_configuration.needs_webhook, policies)):
            rendering, needs_label = await self._read_rendering(namespace, self._configuration), True
        found = await evaluate(policies, clusters, self._flaw_of, self._management.machines_under, rendering)
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

    async def _read_rendering(self, namespace: str, configuration: str) -> Rendering:
        """Read what the webhook does in a namespace; without the right to, that is unknown. Raises ApiError."""
        client = self._management.client
        try:
            found = await client.get(paths.core_path("namespaces", namespace))
        except Forbidden as error:
            self._warn("cannot read a namespace's labels", error, namespace)
            return rendering_of(namespace, None)
        if not webhook_configuration.is_decided(found) or webhook_configuration.is_disabled(found):
            return rendering_of(namespace, found)
        group, resource = "admissionregistration.k8s.io", "mutatingwebhookconfigurations"
        try:
            calls = webhook_configuration.webhook_calls(
                await client.get(paths.object_path(group, "v1", resource, configuration)), found
            )
        except NotFound:
            calls = webhook_configuration.webhook_calls(None, found)
        except Forbidden as error:
            calls = webhook_configuration.WebhookCalls(why_unknown=str(error))
        return rendering_of(namespace, found, calls)

    async def _write(self, policy: JsonObject, finding: PolicyFinding) -> None:
        """Write a status that differs, and report its reason where that is new; raises ApiError."""
        patch = status_patch(policy, finding, self._now())
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
        before = condition(items(policy, "status", "conditions"), READY) or {}
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
        if self._limiter.allow((message, namespace), PERIOD):
            remedy = REMEDY if isinstance(error, Forbidden) else ""
            log.warning(message, extra=fields(error=str(error), remedy=remedy, namespace=namespace))

    def _flaw_of(self, policy: JsonObject) -> Denied | None:
        try:
            return first_flaw(self._management.parsed_policy(policy))
        except Denied as denied:
            return denied

    def _count(self, namespace: str, found: Iterable[PolicyFinding]) -> None:
        self._counts[namespace] = Counter(str(finding.why) for finding in found)
        if not self._counts[namespace]:
            del self._counts[namespace]
        self._metrics.policies({reason: sum(one[reason] for one in self._counts.values()) for reason in PolicyReason})
