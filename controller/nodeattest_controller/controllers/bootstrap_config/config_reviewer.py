"""Reviews KubeadmConfigs and KubeadmControlPlanes: reads facts of the management cluster if needed, and decides.

No answer is kept, so an object that follows its Cluster and policy by a millisecond meets both. If facts cannot be
read, a change of machines' configuration is not decided, so that its creator tries again; everything else passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from nodeattest_controller.controllers.bootstrap_config import admission_review
from nodeattest_controller.controllers.bootstrap_config.decide import (
    LEFT_WITHOUT,
    Render,
    Subject,
    decide,
    needs_machines,
    needs_no_facts,
    subject_of,
)
from nodeattest_controller.model.attestation_object import parse_attestation
from nodeattest_controller.model.machine_view import CLUSTER_LABEL, CONTROL_PLANE_LABEL, cluster_paused
from nodeattest_controller.model.policy import Policy, policy_for, selecting
from nodeattest_controller.runtime.cluster_controller import PERIOD
from nodeattest_controller.runtime.informers import CLUSTER_GROUP, OWN_GROUP, OWN_VERSION
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, NotFound
from nodeattest_kube.events import EventLimiter, EventRecorder, ObjectRef
from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason, Unavailable

PATH: Final = "/mutate-bootstrap-config"
EVENT: Final = "BootstrapConfigRefused"
_MAX_RECORDS: Final = 1000
"""Of a cluster that several policies select. With more, none is taken for the one that most machines joined under."""
_PAGE: Final = 100
"""Records in one answer: about 1 MiB, which is parsed in the event loop."""


@dataclass(frozen=True, slots=True)
class RenderFacts:
    """A Cluster, and what selects it."""

    cluster: JsonObject = field(repr=False)
    policy: Policy | Denied
    """Denied: the policy that selects it cannot be used."""
    paused: bool


class FactReader:
    """Reads facts; every method raises ``ApiError``."""

    def __init__(self, client: ApiClient, *, namespace: str | None, now: Callable[[], datetime]) -> None:
        """``namespace``: the only one whose Clusters are served; None: all."""
        self._client = client
        self.namespace = namespace
        self._now = now

    async def of(self, subject: Subject) -> RenderFacts | None:
        """Return what is known of the subject's cluster; None if it has none, or one that no policy selects."""
        if self.namespace not in {None, subject.namespace} or not paths.is_segment(subject.namespace):
            return None
        policies = await self._list(OWN_GROUP, OWN_VERSION, "nodeattestationpolicies", subject.namespace)
        cluster = await self._cluster(subject) if policies else None
        if cluster is None:
            return None
        several = len(selecting(cluster, policies)) > 1
        recorded = await self._policies_recorded(cluster) if several else None
        paused = cluster_paused(cluster) or subject.paused
        try:
            policy = policy_for(cluster, policies, recorded=None if recorded is None else recorded.__getitem__)
        except Denied as denied:
            return RenderFacts(cluster, denied, paused)
        except Unavailable as unavailable:
            if unavailable.reason is not Reason.POLICY_MISSING:
                raise
            return None
        return RenderFacts(cluster, policy, paused)

    async def has_machines(self, cluster: JsonObject) -> bool:
        namespace, name = text(cluster, "metadata", "namespace"), text(cluster, "metadata", "name")
        path = paths.collection_path(CLUSTER_GROUP, await self._served(), "machines", namespace=namespace)
        query = {"labelSelector": f"{CLUSTER_LABEL}={name},{CONTROL_PLANE_LABEL}", "limit": "1"}
        return bool(items(await self._client.get(path, query), "items"))

    async def _policies_recorded(self, cluster: JsonObject) -> Counter[str] | None:
        """Count a cluster's machines by the policy of their valid certificate; None: too many."""
        namespace, name = text(cluster, "metadata", "namespace"), text(cluster, "metadata", "name")
        path = paths.collection_path(OWN_GROUP, OWN_VERSION, "machineattestations", namespace=namespace)
        found, now = Counter[str](), self._now()
        async with aclosing(self._client.pages(path, {"labelSelector": f"{CLUSTER_LABEL}={name}"}, _PAGE)) as pages:
            async for page in pages:
                found.update(parse_attestation(ledger).policy_at(now) for ledger in items(page, "items"))
                if found.total() > _MAX_RECORDS:
                    return None
        return found

    async def _cluster(self, subject: Subject) -> JsonObject | None:
        """Find the Cluster by the subject's label or owner; a control plane without, by the Cluster's reference."""
        if not subject.cluster and not subject.is_control_plane:
            return None  # nobody uses it yet; a user labels it first, by an update
        version, namespace = await self._served(), subject.namespace
        if subject.cluster:
            return await self._object(version, "clusters", subject.cluster, namespace)
        clusters = await self._list(CLUSTER_GROUP, version, "clusters", namespace) if version else ()
        return next((cluster for cluster in clusters if subject.is_control_plane_of(cluster)), None)

    async def requesters(self, subject: Subject) -> list[ObjectRef]:
        """Return the MachineSet that has a new configuration made, and its MachineDeployment."""
        namespace = subject.namespace
        found = await self._object(await self._served(), "machinesets", subject.owner("MachineSet"), namespace)
        if found is None:
            return []
        itself: JsonObject = {**found, **mapping(found, "metadata")}
        owners = [owner for owner in items(itself, "ownerReferences") if owner.get("kind") == "MachineDeployment"]
        return [
            ObjectRef(
                api_version=text(each, "apiVersion"),
                kind=text(each, "kind"),
                namespace=namespace,
                name=text(each, "name"),
                uid=text(each, "uid"),
            )
            for each in (itself, *owners[:1])
        ]

    async def _object(self, version: str, resource: str, name: str, namespace: str) -> JsonObject | None:
        if not version or not paths.is_segment(name):  # API servers validate names after their webhooks
            return None
        path = paths.object_path(CLUSTER_GROUP, version, resource, name, namespace=namespace)
        with suppress(NotFound):
            return await self._client.get(path)
        return None

    async def _list(self, group: str, version: str, resource: str, namespace: str) -> list[JsonObject]:
        path, found = paths.collection_path(group, version, resource, namespace=namespace), list[JsonObject]()
        with suppress(NotFound):
            async for page in self._client.pages(path):
                found += items(page, "items")
        return found

    async def _served(self) -> str:
        """Return the served version of Cluster API; read each time, because an upgrade changes it."""
        with suppress(NotFound):
            return text(await self._client.get(f"/apis/{CLUSTER_GROUP}"), "preferredVersion", "version")
        return ""


class ConfigReviewer:
    """Reviews bootstrap configurations."""

    def __init__(self, reader: FactReader, render: Render, events: EventRecorder, clock: Callable[[], float]) -> None:
        self._reader = reader
        self._render = render
        self._events = events
        self._limiter = EventLimiter(clock)

    def review(self, question: admission_review.AdmissionReview) -> admission_review.Verdict | None:
        """Decide without facts; None if they are needed."""
        subject = _subject(question, question.target)
        if question.operation is None or subject is None:
            return admission_review.UNCONCERNED
        return needs_no_facts(subject, _before(question))

    async def review_with_facts(self, question: admission_review.AdmissionReview) -> admission_review.Verdict:
        """Decide on what ``review`` did not; raises ``ApiError`` and ``Unavailable``.

        A paused cluster is being moved: clusterctl creates its objects again, as they are.
        """
        subject, before = _subject(question, question.target), _before(question)
        facts = await self._reader.of(subject) if subject is not None else None
        if subject is None or facts is None or facts.paused:
            return admission_review.UNCONCERNED
        verdict = await self._decide(subject, before, facts)
        if not verdict.passes and verdict.denied is not None and not question.dry_run:
            await self._report(subject, verdict.denied)
        return verdict

    async def _report(self, subject: Subject, denied: Denied) -> None:
        """Record why a MachineSet gets no Machine: Cluster API shows it in deprecated conditions only.

        Anybody who reaches the port can send a review, so Events are about objects that exist, one each in ``PERIOD``.
        """
        with suppress(ApiError):
            for ref in await self._reader.requesters(subject):
                if self._limiter.allow((ref.uid, denied.reason), PERIOD):
                    self._events.record(ref, "Warning", EVENT, f"{subject.kind} is refused: {denied}")

    def without_facts(self, question: admission_review.AdmissionReview, error: str) -> admission_review.Verdict:
        """Decide if the facts cannot be read: an update passes that changes nothing that machines are made of."""
        subject, before = _subject(question, question.target), _before(question)
        unavailable = admission_review.Verdict(admission_review.AdmissionOutcome.UNAVAILABLE, unread=error)
        if subject is None or before is None or subject.cluster != before.cluster or subject.changes(before):
            return unavailable
        return admission_review.Verdict(admission_review.AdmissionOutcome.LEFT)

    async def _decide(self, subject: Subject, before: Subject | None, facts: RenderFacts) -> admission_review.Verdict:
        policy, cluster = facts.policy, facts.cluster
        if isinstance(policy, Denied):
            if before is not None and not subject.changes(before):
                return admission_review.Verdict(admission_review.AdmissionOutcome.LEFT, (LEFT_WITHOUT,), policy)
            return admission_review.Verdict(admission_review.AdmissionOutcome.DENIED, denied=policy)
        matters = policy.enforce and needs_machines(subject, before)
        has_machines = matters and await self._reader.has_machines(cluster)
        return decide(subject, before, policy=policy, cluster=cluster, has_machines=has_machines, render=self._render)


def _subject(question: admission_review.AdmissionReview, whole: JsonObject) -> Subject | None:
    return subject_of(whole, group=question.group, kind=question.kind, namespace=question.namespace, name=question.name)


def _before(question: admission_review.AdmissionReview) -> Subject | None:
    return _subject(question, question.before) if question.before is not None else None
