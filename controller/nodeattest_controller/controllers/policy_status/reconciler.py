"""Finds the control planes that are not rendered: what the webhook was not called for, or what is older than it.

A KubeadmControlPlane with machines stays as it is until its next roll-out, and until then each of its new machines is
made of it. What else machines are made of is written anew for each, and the webhook sees it.
Promises: one ``get`` for each Cluster, of the first ``MAX_READ`` by name, and not again within the period; None where
they may not be read. One that cannot be read for what it is (too large) counts as not rendered: it hides no other.

Reconciles the status of policies: one evaluation a namespace and change, one write a policy whose status differs.

Promises: no write without a difference, each against the version that was read, so that two replicas do no harm and a
restart writes nothing; a failed write is logged with its remedy once in ten minutes and repeated with back-off; a
replica that does not lead writes and counts nothing. Whether a namespace has the webhook's label,
and the webhook's configuration, are read by name when its policies are evaluated, at least every five minutes: no list
is read. No policy is called valid while that could not be read for ten minutes, or not at all; it is tried again with
back-off.
Leaves to others: what a status says (``decide``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from nodeattest_controller.controllers.policy_status.decide import (
    READY,
    NamespaceRendering,
    PolicyFinding,
    PolicyReason,
    RenderingState,
    evaluate,
    refusals_end,
    rendering_of,
    status_patch,
)
from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model.machine_view import ContractReference, control_plane_ref
from nodeattest_controller.model.webhook_configuration import is_decided, is_disabled, needs_webhook, webhook_calls
from nodeattest_controller.runtime.conditions import ConditionStatus
from nodeattest_controller.runtime.guard import Ownership
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.sources import OWN_GROUP, OWN_VERSION
from nodeattest_controller.verification.policy_validation import first_flaw
from nodeattest_kube import client as paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Conflict, Forbidden, Malformed, NotFound
from nodeattest_kube.events import EventLimiter, EventRecorder, ObjectRef
from nodeattest_kube.fair_queue import WorkQueue
from nodeattest_parsing.objects import condition, items, key_of, number, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied

_LOG: Final = logging.getLogger(__name__)
MAX_READ: Final = 200
"""Control planes of a namespace that are read at one time."""
_GROUP: Final = "controlplane.cluster.x-k8s.io"
_KIND: Final = "KubeadmControlPlane"
_RESOURCE: Final = "kubeadmcontrolplanes"
_REMEDY: Final = "apply manifests/webhook in the management cluster"


class UnrenderedControlPlanes:
    """What was found in each namespace, and when."""

    def __init__(
        self,
        client: ApiClient,
        *,
        is_rendered: Callable[[JsonObject], bool],
        clock: Callable[[], float],
        period: float,
    ) -> None:
        self._client = client
        self._renders = is_rendered
        self._clock = clock
        self._period = period
        self._found: dict[str, tuple[Mapping[str, str] | None, float]] = {}

    async def unrendered(self, namespace: str, clusters: Sequence[JsonObject]) -> Mapping[str, str] | None:
        """Name the Clusters whose control plane is not rendered; None: not known.

        Each with why its control plane could not be read; empty where it was.
        """
        known = self._found.get(namespace)
        if known is not None and self._clock() - known[1] < self._period:
            return known[0]
        try:
            found = await self._read(namespace, clusters)
        except ApiError as error:
            found = None if known is None or isinstance(error, Forbidden) else known[0]
            remedy = _REMEDY if isinstance(error, Forbidden) else ""
            more = fields(namespace=namespace, error=str(error), remedy=remedy)
            _LOG.log(logging.DEBUG if known is not None else logging.WARNING, "cannot read control planes", extra=more)
        self._found[namespace] = found, self._clock()
        return found

    def forget(self, namespace: str) -> None:
        """Drop what was found in a namespace."""
        self._found.pop(namespace, None)

    async def _read(self, namespace: str, clusters: Sequence[JsonObject]) -> Mapping[str, str]:
        named = {text(one, "metadata", "name"): control_plane_ref(one) for one in clusters}
        ours = {name: one for name, one in sorted(named.items()) if one and (one.group, one.kind) == (_GROUP, _KIND)}
        version, left = "", dict[str, str]()
        for name, reference in list(ours.items())[:MAX_READ]:
            if not reference.version and not version:
                version = text(await self._client.get(paths.api_group(_GROUP)), "preferredVersion", "version")
            try:
                if not await self._is_rendered(replace(reference, version=reference.version or version), namespace):
                    left[name] = ""
            except Malformed as error:
                _LOG.debug("cannot read a control plane", extra=fields(namespace=namespace, error=str(error)))
                left[name] = error.reason
        return left

    async def _is_rendered(self, reference: ContractReference, namespace: str) -> bool:
        """Return whether a control plane is rendered; one that is not there yet will be."""
        if not all(map(paths.is_segment, (reference.version, reference.name))):
            return True
        path = paths.object_path(_GROUP, reference.version, _RESOURCE, reference.name, namespace=namespace)
        try:
            return self._renders(await self._client.get(path))
        except NotFound:
            return True


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
_RENDERING_HOLDS: Final = 600.0
"""Seconds for which the webhook counts as called after label and configuration were read last."""
_MUTATING: Final = "mutatingwebhookconfigurations"
_OF_CALLED: Final = frozenset({RenderingState.NO_MATTER, RenderingState.PASSED_OVER, RenderingState.NOT_READ})
"""With what does not make a policy's condition False."""
_OF_CONFIGURATION: Final = _OF_CALLED | {RenderingState.NOT_CALLED}
"""What the configuration says of a namespace that has the label."""
_SOON: Final = frozenset({RenderingState.NOT_LABELLED, RenderingState.NOT_CALLED})
"""States that are looked at again each ``RECOUNT``: somebody is about to correct them."""
_UNRENDERED: Final = frozenset({PolicyReason.NAMESPACE_NOT_LABELLED, PolicyReason.WEBHOOK_NOT_CALLED})
REMEDY: Final = "apply manifests/crd and manifests/rbac in the management cluster"
_LABEL_REMEDY: Final = "apply manifests/webhook in the management cluster"
_LABELLED: Final = (
    "what was written while the webhook was not called is not rendered, control planes included; list it: kubectl get "
    "nodeattestationpolicies,kubeadmcontrolplanes,kubeadmconfigs -n {} -o yaml | nodeattest policy check -f -"
)
_WITH_EVENT: Final = frozenset({PolicyReason.INVALID, PolicyReason.CONFLICT, *_UNRENDERED})
"""Reasons of which an Event tells."""


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
        self._ownership = ownership
        self._events = events
        self._metrics = metrics
        self._now = now
        self._recount = recount
        self._has_webhook = has_webhook
        self._label_resync = label_resync
        self._configuration = configuration
        self._renderings: dict[str, tuple[NamespaceRendering, float]] = {}
        """By namespace: what was read last of label and configuration, and when."""
        self._clock = clock
        self._control_planes = UnrenderedControlPlanes(
            management.client, is_rendered=is_rendered, clock=clock, period=label_resync
        )
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
        if not self._ownership.leads():
            self._queue.forget(namespace)  # another replica writes it, and this one ends
            return
        policies = self._management.policies(namespace)
        self._forget_others(namespace, policies)
        clusters = self._management.clusters_in(namespace)
        before = self._renderings.get(namespace)
        rendering, unread = await self._rendering_in(namespace, policies)
        if before is None or before[0].state is not rendering.state:  # what was written meanwhile may be unrendered
            self._control_planes.forget(namespace)
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
            if rendering.state in _SOON or any(finding.conflicts for finding in found.values()):
                self._queue.add_after(namespace, self._recount)
            elif rendering.state is not RenderingState.NO_MATTER or namespace in self._renderings:
                self._queue.add_after(namespace, self._label_resync)

    async def _unrendered_in(
        self, namespace: str, policies: Sequence[JsonObject], clusters: Sequence[JsonObject]
    ) -> Mapping[str, str] | None:
        if not self._has_webhook or not any(map(needs_webhook, policies)):
            self._control_planes.forget(namespace)
            return None
        return await self._control_planes.unrendered(namespace, clusters)

    async def _rendering_in(
        self, namespace: str, policies: Sequence[JsonObject]
    ) -> tuple[NamespaceRendering, ApiError | None]:
        """Read what the webhook does in a namespace; return also the error for which to look again soon.

        What was read lately holds on through an outage; what was not is unknown.
        """
        if not self._has_webhook or not any(map(needs_webhook, policies)):
            self._renderings.pop(namespace, None)
            return NamespaceRendering(), None
        try:
            found = await self._management.client.get(paths.core_path("namespaces", namespace))
        except ApiError as error:
            self._report_unread(namespace, error)
            unread = NamespaceRendering(RenderingState.UNKNOWN)
            return self._known_of(namespace, error, unread, replaced=_OF_CALLED), error
        if not is_decided(found) or is_disabled(found):
            state = RenderingState.DISABLED if is_disabled(found) else RenderingState.NOT_LABELLED
            rendering = NamespaceRendering(state)
        else:
            try:
                rendering = rendering_of(webhook_calls(await self._read_configuration(), found))
            except ApiError as error:
                retried = None if isinstance(error, Forbidden) else error
                unread = NamespaceRendering(RenderingState.NOT_READ, str(error))
                if self._renderings.get(namespace, (unread, 0.0))[0].state not in _OF_CONFIGURATION:
                    return unread, retried  # the label is there now
                known = self._known_of(namespace, error, unread, replaced=_OF_CONFIGURATION)
                return known, retried
        self._renderings[namespace] = rendering, self._clock()
        return rendering, None

    def _known_of(
        self, namespace: str, error: ApiError, unread: NamespaceRendering, *, replaced: Container[RenderingState]
    ) -> NamespaceRendering:
        """Return what was read of a namespace last; ``replaced``: of these states what is late counts as unread."""
        known, since = self._renderings.get(namespace, (unread, 0.0))
        late = isinstance(error, Forbidden) or self._clock() - since > _RENDERING_HOLDS
        return unread if late and known.state in replaced else known

    async def _read_configuration(self) -> JsonObject | None:
        """Read the MutatingWebhookConfiguration, which may be written meanwhile by others; None: there is none."""
        path = paths.object_path("admissionregistration.k8s.io", "v1", _MUTATING, self._configuration)
        try:
            return await self._management.client.get(path)
        except NotFound:
            return None

    def _report_unread(self, namespace: str, error: ApiError) -> None:
        if self._limiter.allow(("namespace", namespace), LOG_PERIOD):
            remedy = _LABEL_REMEDY if isinstance(error, Forbidden) else ""
            _LOG.warning(
                "cannot read a namespace's labels", extra=fields(namespace=namespace, error=str(error), remedy=remedy)
            )

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
            self._report_failure(policy, error)
            return error
        self._report(policy, finding)
        return None

    def _report(self, policy: JsonObject, finding: PolicyFinding) -> None:
        before = condition(items(policy, "status", "conditions"), READY)
        if before is not None and before.get("reason") == finding.why:
            return
        _LOG.info("policy", extra=fields(policy=key_of(policy), reason=str(finding.why), message_=finding.message))
        was_unrendered = before is not None and before.get("reason") in _UNRENDERED
        if was_unrendered and finding.condition.status is ConditionStatus.TRUE:
            message = _LABELLED.format(text(policy, "metadata", "namespace"))
            self._events.record(_subject(policy), "Warning", "PolicyLeftUnrendered", message)
        if finding.why in _WITH_EVENT:
            self._events.record(_subject(policy), "Warning", f"Policy{finding.why}", finding.message)

    def _report_failure(self, policy: JsonObject, error: ApiError) -> None:
        key = key_of(policy)
        if isinstance(error, Conflict) or not self._limiter.allow(key, LOG_PERIOD):
            return
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
