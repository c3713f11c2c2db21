"""Acting on verdicts: one request, one reconcile, one step further.

A verdict is issued (``issue``), challenged, waited with or refused; nothing is left pending for ever: every wait ends,
where the API server lets it: one that refuses our writes is asked again, and an Event says so.
Before it is judged, a request pays (``budget``), and is closed where a newer one was certified (``duplicates``).
Approved is not proof: an approved request is verified again, and one that the ledger does not know is failed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from nodeattest_controller.controllers.csr.duplicates import Duplicates
from nodeattest_controller.controllers.csr.evaluator import Evaluator
from nodeattest_controller.controllers.csr.issuer import Issuer
from nodeattest_controller.controllers.csr.pending_age import PendingAges
from nodeattest_controller.controllers.csr.request_limiter import REMEDY, LimiterKey, OverBudget, RequestLimiter
from nodeattest_controller.controllers.kubelet_serving.evaluator import KubeletServingEvaluator
from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model import attestation as attestations
from nodeattest_controller.model.csr_request import CSRSummary, RequestState, summarize
from nodeattest_controller.model.kubelet_csr import requesting_node
from nodeattest_controller.model.objects import moment, text
from nodeattest_controller.runtime.csr_observer import CSRDenied, CSRObserver
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import OWN_GROUP, OWN_VERSION, ManagementCache, node_key
from nodeattest_controller.runtime.objectref import claimed_ref
from nodeattest_controller.runtime.workload_client import WorkloadClient
from nodeattest_kube import paths
from nodeattest_kube.client import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound
from nodeattest_kube.events import EventRecorder
from nodeattest_kube.jsontypes import JsonObject, parse_json
from nodeattest_providers.challenge_response import CHALLENGE_TTL
from nodeattest_providers.errors import ChallengeRequired, Denied, Reason, Unavailable
from nodeattest_providers.identifiers import printable
from nodeattest_providers.names import ANNOTATION_CHALLENGE, ANNOTATION_REASON, Purpose
from nodeattest_providers.verifier_interface import NodeRequest

__all__ = ["Reconciler", "Result"]

_LOG: Final = logging.getLogger(__name__)
EXPIRY_GRACE: Final = timedelta(seconds=60)
"""How long after a challenge's end its first request is closed: a second request filed in time may still be on its
way, and closing the first would refuse it."""

LONGEST_PAUSE: Final = 60.0
"""Seconds between two looks at a request that waits; what it waits for wakes it earlier."""
JITTER: Final = 0.25
"""At most this share of a pause is added at random, so that requests that came together do not come back together."""


@dataclass(frozen=True, slots=True)
class Result:
    """What the queue does next with the key."""

    again_after: float | None = None
    """Seconds; None: nothing more until the object changes."""
    waiting: bool = False
    """Whether a change in the management cluster should wake the key earlier."""
    provider_id: str = ""
    """Whose change; the one that the request names."""
    retry: bool = False
    """Whether to try again with the queue's growing pauses."""
    also: tuple[str, ...] = ()
    """Other requests of the cluster to look at, soon."""


_REFUSED: Final = (
    "an API server refuses what has to be done, and is asked again: {}; apply this version's RBAC manifests"
)
"""The log says the same with each attempt; where nobody looks there, an Event does."""
DONE: Final = Result()
RETRY: Final = Result(retry=True)


@dataclass(frozen=True, slots=True)
class _Task:
    """One look at one request: read and parsed once."""

    workload: WorkloadClient
    csr: JsonObject
    stored: CSRSummary
    request: NodeRequest | None = None
    """None for kubelet's own, and for one that is malformed."""
    unreadable: Denied | Unavailable | None = None
    """Why there is no request; a bug in a parser is told like any other, and ends like any other."""

    @property
    def username(self) -> str:
        """Who asks."""
        return text(self.csr, "spec", "username")

    @property
    def said(self) -> str:
        """What the request's annotation says of its wait."""
        return text(self.csr, "metadata", "annotations", ANNOTATION_REASON)


class Reconciler:
    """Brings one request one step further."""

    def __init__(
        self,
        management: ManagementCache,
        judge: Evaluator,
        issuer: Issuer,
        *,
        kubelet_serving: KubeletServingEvaluator,
        purposes: frozenset[Purpose],
        events: EventRecorder,
        metrics: Metrics,
        observers: Sequence[CSRObserver],
        wait_limit: float,
        ages: PendingAges,
        budgets: RequestLimiter,
        chance: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        """``purposes`` are those whose requests are acted on; ``chance`` draws from [0, 1)."""
        self._management = management
        self._judge = judge
        self._issuer = issuer
        self._kubelet_serving = kubelet_serving
        self._purposes = purposes
        self._events = events
        self._metrics = metrics
        self._observers = observers
        self._wait_limit = timedelta(seconds=wait_limit)
        self._ages = ages
        self._budgets = budgets
        self._duplicates = Duplicates()
        self._chance = chance
        self._now = now

    async def reconcile(self, workload: WorkloadClient, name: str) -> Result:
        """Judge the request as the cache has it and act; raises ApiError for the queue's back-off."""
        csr = workload.requests.get(name)
        stored = summarize(csr) if csr else None
        if csr is None or stored is None or not stored.is_open:
            self._settled(stored.uid if stored else "")
            return DONE
        if stored.purpose not in self._purposes:
            return DONE
        task = _Task(workload, csr, stored) if stored.is_kubelets else self._parsed(workload, csr, stored)
        try:
            return await (self._step_of_kubelets(task) if stored.is_kubelets else self._step(task))
        except (Conflict, AlreadyExists, NotFound):
            return await self._look_again(task)
        except (Forbidden, Invalid) as refused:
            self._warn(task, Reason.API_UNAVAILABLE, f"CSR {printable(stored.name)}: {_REFUSED.format(refused)}")
            raise

    def _parsed(self, workload: WorkloadClient, csr: JsonObject, stored: CSRSummary) -> _Task:
        try:
            return _Task(workload, csr, stored, request=self._judge.parse_request(csr))
        except Denied as malformed:
            return _Task(workload, csr, stored, unreadable=malformed)
        except Exception:  # noqa: BLE001 - a bug in one request must not leave it pending for ever
            _LOG.exception("bug", extra=fields(cluster=workload.key, csr=printable(stored.name)))
            return _Task(workload, csr, stored, unreadable=_bug())

    async def _step_of_kubelets(self, named: _Task) -> Result:
        """Read one of kubelet's own whole after it has paid; the cache has only who asks and since when."""
        workload, stored = named.workload, named.stored
        if not self._kubelet_serving.approves(workload.key):
            return DONE
        paid = True
        try:
            self._enter(named)
        except OverBudget as over:
            if self._age(named) <= self._wait_limit:
                return await self._shed(named, over)
            paid = False  # its time is over, and refusing it takes all of it
        csr = await self._kubelet_serving.read(workload, stored)
        return DONE if csr is None else await self._step(_Task(workload, csr, stored), paid=paid)

    async def _step(self, task: _Task, *, paid: bool = False) -> Result:
        try:
            if not paid:
                self._enter(task)
            return await self._decide(task)
        except OverBudget as over:
            return await self._shed(task, over)
        except ChallengeRequired as challenge:
            return await self._challenge(task, challenge)
        except Unavailable as unavailable:
            return await self._wait(task, unavailable)
        except Denied as denied:
            return await self._refuse(task, denied)
        except ApiError:
            raise
        except Exception:  # noqa: BLE001 - a bug in one request must not leave it pending for ever
            _LOG.exception("bug", extra=fields(cluster=task.workload.key, csr=printable(task.stored.name)))
            return await self._wait(task, _bug())

    async def _decide(self, task: _Task) -> Result:
        """Approve what is sound, and sign it where it is ours to sign; raises the other verdicts."""
        workload, csr, stored = task.workload, task.csr, task.stored
        if task.unreadable is not None:
            raise task.unreadable
        if task.request is None:
            await self._kubelet_serving.approve(workload, csr)
            self._settled(stored.uid)
            return DONE
        started = self._now()
        proven = await self._judge.evaluate(workload, task.request, stored.state)
        self._metrics.verification_seconds(stored.provider, (self._now() - started).total_seconds())
        await self._issuer.issue(workload, csr, stored, proven)
        self._settled(stored.uid)
        asked = moment(text(proven.first, "metadata", "creationTimestamp")) if proven.first else None
        return Result(also=self._duplicates.certified(workload.key, proven.request, asked or proven.request.created))

    def _enter(self, task: _Task) -> None:
        """Let a request pay for its judgement; raises OverBudget or Denied. An approved one is only finished."""
        request, cluster = task.request, task.workload.key
        if task.stored.state is not RequestState.PENDING or task.unreadable is not None:
            return
        if request is not None:
            self._duplicates.check(cluster, request)
        node_name = request.csr.node_name if request is not None else task.username
        payer = LimiterKey(cluster=cluster, username=task.username, node_name=node_name, uid=task.stored.uid)
        self._budgets.admit(payer, (self._wait_limit - self._age(task)).total_seconds())

    def _settled(self, uid: str) -> None:
        self._ages.forget(uid)
        self._budgets.forget(uid)
        self._duplicates.forget(uid)

    # Shed, challenge, wait, refuse

    async def _shed(self, task: _Task, over: OverBudget) -> Result:
        """Let a request wait for its turn, and end it when none came in time."""
        workload = task.workload
        left = (self._wait_limit - self._age(task)).total_seconds()
        if left < 0:
            return await self._refuse(task, over.denied(), judged=False)
        if over.news:
            self._metrics.verdict(task.stored.provider, "shed", Reason.REQUESTER_OVER_BUDGET)
        if over.warn:
            _LOG.warning("over budget", extra=fields(cluster=workload.key, user=task.username, detail=over.detail))
            self._warn(task, Reason.REQUESTER_OVER_BUDGET, f"{printable(task.username)}: {over.denied()}")
        said = f"{Reason.REQUESTER_OVER_BUDGET}: {REMEDY}"
        if over.tell and task.said != said:
            await workload.publish_annotations(task.csr, {ANNOTATION_REASON: said})
        end = left + 0.5 + self._chance()
        return Result(again_after=end if over.delay is None else min(over.delay, end))

    async def _challenge(self, task: _Task, challenge: ChallengeRequired) -> Result:
        """Publish the challenge unless it stands there already; close the request when nobody answered in time."""
        workload, csr, stored = task.workload, task.csr, task.stored
        left = CHALLENGE_TTL + EXPIRY_GRACE - self._age(task)
        if left <= timedelta(0):
            return await self._refuse(task, _unanswered(), judged=False)
        found = text(csr, "metadata", "annotations", ANNOTATION_CHALLENGE)
        if not _same_challenge(found, challenge.challenge):
            if found:
                self._metrics.foreign_challenge()
                _LOG.warning("overwriting a foreign challenge", extra=fields(cluster=workload.key, csr=stored.name))
            await workload.publish_annotations(
                csr, {ANNOTATION_CHALLENGE: challenge.challenge, **challenge.annotations}
            )
            self._metrics.verdict(stored.provider, "challenge", "")
        return Result(again_after=left.total_seconds() + 0.5)

    def _age(self, task: _Task) -> timedelta:
        created = moment(text(task.csr, "metadata", "creationTimestamp")) or self._now()
        return self._ages.age(task.stored.uid, created)

    async def _wait(self, task: _Task, unavailable: Unavailable) -> Result:
        """Leave the request pending for now, and end it when it waited too long."""
        workload, stored = task.workload, task.stored
        age = self._age(task)
        if age > self._wait_limit:
            denied = Denied(
                unavailable.reason,
                expected=f"an answer within {self._wait_limit}",
                got=unavailable.detail,
                remedy=unavailable.remedy,
            )
            return await self._refuse(task, denied, judged=False)
        said = f"{unavailable.reason}: {unavailable.remedy}"
        if task.said != said:
            self._metrics.verdict(stored.provider, "wait", unavailable.reason)
            _LOG.info(
                "waiting",
                extra=fields(
                    cluster=workload.key, csr=stored.name, reason=unavailable.reason, detail=unavailable.detail
                ),
            )
            await workload.publish_annotations(task.csr, {ANNOTATION_REASON: said})
        pause = max(unavailable.retry_after, min(age.total_seconds() / 2, LONGEST_PAUSE))
        pause *= 1 + JITTER * self._chance()
        left = (self._wait_limit - age).total_seconds() + 0.5
        return Result(again_after=min(pause, left), waiting=True, provider_id=_waits_for(task))

    async def _refuse(self, task: _Task, denied: Denied, *, judged: bool = True) -> Result:
        """Deny for good; the condition carries reason and remedy, the Event and the log expected and got as well."""
        workload, csr, stored = task.workload, task.csr, task.stored
        if stored.is_kubelets and self._kubelet_serving.only_reports(workload.key):
            return self._report(task, denied)
        if stored.state is RequestState.APPROVED:
            await workload.fail(csr, denied.reason, denied.remedy, denied.annotations)
        else:
            await workload.deny(csr, denied.reason, denied.remedy, denied.annotations)
        self._settled(stored.uid)
        self._metrics.verdict(stored.provider, "deny", denied.reason)
        _LOG.warning(
            "refused",
            extra=fields(
                cluster=workload.key,
                csr=stored.name,
                user=task.username,
                reason=denied.reason,
                expected=denied.expected,
                got=denied.got,
            ),
        )
        self._warn(task, denied.reason, f"CSR {printable(stored.name)}: {denied}")
        if task.request is not None:
            verdict = replace(_refused(workload.key, task.request, denied, self._now()), judged=judged)
            for observer in self._observers:
                observer.refused(verdict)
        return DONE

    def _report(self, task: _Task, denied: Denied) -> Result:
        """Say what Enforce would refuse, and leave kubelet's own request to whoever decides it today."""
        stored = task.stored
        self._settled(stored.uid)
        self._metrics.verdict(stored.provider, "ignore", denied.reason)
        _LOG.info("audit", extra=fields(cluster=task.workload.key, csr=stored.name, reason=denied.reason))
        self._warn(task, denied.reason, f"CSR {printable(stored.name)}: Audit: Enforce would deny it: {denied}")
        return DONE

    def _warn(self, task: _Task, reason: Reason, message: str) -> None:
        """Tell operators, on the Machine that the request names, or else on the Cluster."""
        cluster, request = task.workload.key, task.request
        named = request.csr.provider_id if request else self._kubelet_serving.provider_id_of(cluster, task.csr)
        subject = claimed_ref(self._management, cluster, named)
        if subject is not None:
            self._events.record(subject, "Warning", reason, message, source=(cluster, task.username))

    async def _look_again(self, task: _Task) -> Result:
        """Somebody wrote first, or something is gone: read what there is now, and judge anew after a pause."""
        live = await task.workload.read_request(task.stored.name)
        if live is None or text(live, "metadata", "uid") != task.stored.uid:
            self._settled(task.stored.uid)
            return DONE
        self._metrics.ledger_conflict()
        if task.request is not None:
            await self._refresh_ledger(task.workload.key, task.request)
        return RETRY

    async def _refresh_ledger(self, cluster: ClusterKey, request: NodeRequest) -> None:
        namespace, _, cluster_name = cluster.partition("/")
        name = attestations.attestation_name(cluster_name, request.csr.provider_id)
        path = paths.object_path(OWN_GROUP, OWN_VERSION, "machineattestations", name, namespace=namespace)
        try:
            found = await self._management.client.get(path)
        except NotFound:
            self._management.inventory.put_ledger(f"{namespace}/{name}", None)
            return
        self._management.inventory.put_ledger(f"{namespace}/{name}", found)


def _refused(cluster: ClusterKey, request: NodeRequest, denied: Denied, now: datetime) -> CSRDenied:
    return CSRDenied(
        cluster=cluster,
        provider_id=request.csr.provider_id,
        node_name=request.csr.node_name,
        username=request.username,
        by_node=request.username == f"system:node:{request.csr.node_name}" and "system:nodes" in request.groups,
        provider=request.evidence.provider,
        purpose=request.purpose,
        reason=denied.reason,
        message=str(denied),
        at=now,
    )


def _waits_for(task: _Task) -> str:
    """Name whose change wakes the request."""
    if task.stored.is_kubelets:
        return node_key(requesting_node(task.csr))
    return task.request.csr.provider_id if task.request else ""


def _same_challenge(published: str, derived: str) -> bool:
    """Compare what both replicas derive alike (nonce and request); blob and secret carry fresh randomness."""
    try:
        left, right = parse_json(published.encode()), parse_json(derived.encode())
    except ValueError:
        return False
    random_parts = {"blob", "secret"}
    return {k: v for k, v in left.items() if k not in random_parts} == {
        k: v for k, v in right.items() if k not in random_parts
    }


def _bug() -> Unavailable:
    return Unavailable(
        Reason.INTERNAL_ERROR,
        "the controller failed on this request; its log has the details",
        remedy="report it with the controller's log",
    )


def _unanswered() -> Denied:
    return Denied(
        Reason.CHALLENGE_EXPIRED,
        expected=f"a second request within {int(CHALLENGE_TTL.total_seconds())} s",
        got="none",
        remedy="file a new first request",
    )
