"""How long a request has been waiting, whatever the controller's own clock says.

``creationTimestamp`` is the API server's clock. Where ours is ahead of it, a fresh request would look old and be closed
at once; so an age is never more than the time since this process first saw the request. (Whether a challenge was
answered in time is another matter: that compares two timestamps of the API server, in the provider's verifier.)

Acts on a request: one reconcile takes one request one step further.

An evaluation ends in a certificate (``issuer``), a challenge, a wait or a denial. Nothing stays pending forever: every
wait ends, where the API server lets it; one that refuses the writes is asked again, and an Event says so.
Before a request is evaluated, its requester's rate limits are asked (``request_limiter``), and it is closed where a
newer one was certified (``duplicates``). Approved is not proof: an approved request is evaluated again, and one without
a certificate on record is failed.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from nodeattest_controller.controllers.csr.checks import Duplicates
from nodeattest_controller.controllers.csr.evaluator import Evaluator
from nodeattest_controller.controllers.csr.issuer import AttestationConflict, Issuer
from nodeattest_controller.controllers.csr.request_limiter import REMEDY, LimiterKey, OverBudget, RequestLimiter
from nodeattest_controller.controllers.kubelet_serving.evaluator import KubeletServingEvaluator
from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model import attestation as attestations
from nodeattest_controller.model.csr_request import CSRSummary, RequestState, requesting_node
from nodeattest_controller.runtime.cluster_controller import CSRDenied, CSRObserver
from nodeattest_controller.runtime.cluster_log import ClusterLog
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.objectref import claimed_ref
from nodeattest_controller.runtime.sources import OWN_GROUP, OWN_VERSION, node_key
from nodeattest_controller.runtime.workload_client import WorkloadClient
from nodeattest_kube import client as paths
from nodeattest_kube.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound
from nodeattest_kube.events import EventRecorder
from nodeattest_kube.jsontypes import parse_json
from nodeattest_kube.periodic import notify
from nodeattest_parsing.objects import moment, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.challenge_response import CHALLENGE_TTL
from nodeattest_providers.errors import ChallengeRequired, Denied, Reason, Unavailable
from nodeattest_providers.identifiers import ANNOTATION_CHALLENGE, ANNOTATION_REASON, Purpose, printable
from nodeattest_providers.verifier_interface import NodeRequest

REMEMBERED: Final = 20_000
"""Requests; one that finds no room is as old as the clocks say: as just seen, a flood would keep all pending."""
LONGEST_WAIT: Final = 86400.0
"""Seconds; more than any ``waitLimit`` (``settings``). What was seen before that is gone, or has long been refused."""


class PendingAges:
    """Remembers when each open request was first seen."""

    def __init__(self, now: Callable[[], datetime], monotonic: Callable[[], float]) -> None:
        self._now = now
        self._monotonic = monotonic
        self._first_seen: OrderedDict[str, float] = OrderedDict()

    def age(self, uid: str, created: datetime) -> timedelta:
        """Tell how long the request has been open, at most since it was first seen here."""
        by_clocks = self._now() - created
        seen = self._first_seen.get(uid)
        if seen is None:
            seen = self._monotonic()
            self._drop_before(seen - LONGEST_WAIT)
            if len(self._first_seen) >= REMEMBERED:
                return max(by_clocks, timedelta(0))
            self._first_seen[uid] = seen
        since_seen = timedelta(seconds=self._monotonic() - seen)
        return since_seen if by_clocks < timedelta(0) else min(by_clocks, since_seen)

    def _drop_before(self, seen: float) -> None:
        """Make room; the first entries are the oldest."""
        while self._first_seen and next(iter(self._first_seen.values())) < seen:
            self._first_seen.popitem(last=False)

    def __len__(self) -> int:
        return len(self._first_seen)

    def forget(self, uid: str) -> None:
        """Drop a request that is settled."""
        self._first_seen.pop(uid, None)


_LOG: Final = logging.getLogger(__name__)
EXPIRY_GRACE: Final = timedelta(seconds=60)
"""How long after a challenge's end its first request is closed: a second request filed in time may still be on its
way, and closing the first would refuse it."""

MAX_BACKOFF: Final = 60.0
"""Seconds between two evaluations of a request that waits; what it waits for wakes it earlier."""
JITTER: Final = 0.25
"""At most this share of a back-off is added at random, so that requests that came together do not return together."""


@dataclass(frozen=True, slots=True)
class Result:
    """What the queue does next with the key."""

    requeue_after: float | None = None
    """Seconds; None: nothing more until the object changes."""
    requeue: bool = False
    """Whether to try again with the queue's growing back-off."""
    waits_for: str | None = None
    """Whose change in the management cluster wakes the key earlier: a provider ID or ``node_key``; empty: any change of
    the cluster's own objects. None: it waits for nothing there."""
    requeue_keys: tuple[str, ...] = ()
    """Names of other requests of the cluster to reconcile soon."""


_REFUSED: Final = (
    "an API server refuses what has to be done, and is asked again: {}; apply this version's RBAC manifests"
)
"""The log has the same with each attempt; an Event brings it to the operator."""
_ABSENT: Final = (
    "an API server answers that what has to be written is not there, and is asked again: {}; see that this version's "
    "CustomResourceDefinitions are installed"
)
DONE: Final = Result()
REQUEUE: Final = Result(requeue=True)


@dataclass(frozen=True, slots=True)
class _Task:
    """One reconcile of one request: read and parsed once."""

    workload: WorkloadClient
    csr: JsonObject
    stored: CSRSummary
    request: NodeRequest | None = None
    """None for kubelet's own, and for one that is malformed."""
    unreadable: Denied | Unavailable | None = None
    """Why there is no request."""

    @property
    def username(self) -> str:
        """The requester."""
        return text(self.csr, "spec", "username")

    @property
    def published_reason(self) -> str:
        """The annotation that says why the request waits."""
        return text(self.csr, "metadata", "annotations", ANNOTATION_REASON)


class Reconciler:
    """Takes one request one step further."""

    def __init__(
        self,
        management: ManagementCache,
        evaluator: Evaluator,
        issuer: Issuer,
        *,
        kubelet_serving: KubeletServingEvaluator,
        purposes: frozenset[Purpose],
        events: EventRecorder,
        metrics: Metrics,
        observers: Sequence[CSRObserver],
        wait_limit: float,
        ages: PendingAges,
        limiter: RequestLimiter,
        log: ClusterLog,
        random_unit: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        """``purposes`` are those whose requests are acted on; ``random_unit`` draws from [0, 1)."""
        self._management = management
        self._evaluator = evaluator
        self._issuer = issuer
        self._kubelet_serving = kubelet_serving
        self._purposes = purposes
        self._events = events
        self._metrics = metrics
        self._observers = observers
        self._wait_limit = timedelta(seconds=wait_limit)
        self._ages = ages
        self._limiter = limiter
        self._log_limits = log
        self._duplicates = Duplicates()
        self._random_unit = random_unit
        self._now = now

    async def reconcile(self, workload: WorkloadClient, name: str) -> Result:
        """Evaluate the request as the cache has it, and act; raises ApiError for the queue's back-off."""
        csr = workload.requests.get(name)
        stored = workload.summarize(csr) if csr else None
        if csr is None or stored is None or not stored.is_open:
            self.settled(stored.uid if stored else "")
            return DONE
        if stored.purpose not in self._purposes:
            return DONE
        task = _Task(workload, csr, stored)
        if not stored.is_kubelets:
            task = self._parsed(task)
        try:
            return await (self._reconcile_kubelets(task) if stored.is_kubelets else self._reconcile(task))
        except (Conflict, AlreadyExists, NotFound) as error:
            return await self._refresh_and_requeue(task, error)
        except (Forbidden, Invalid) as refused:
            self._warn(task, Reason.API_UNAVAILABLE, f"CSR {printable(stored.name)}: {_REFUSED.format(refused)}")
            raise

    async def _reconcile_kubelets(self, named: _Task) -> Result:
        """Read one of kubelet's own whole within the rate limits; the cache has only its requester and creation."""
        workload, stored = named.workload, named.stored
        if not self._kubelet_serving.approves(workload.key):
            return DONE
        admitted = True
        try:
            self._admit(named)
        except OverBudget as over:
            if self._age(named) <= self._wait_limit:
                return await self._throttle(named, over)
            admitted = False  # its time is over, and a denial takes the whole object
        csr = await self._kubelet_serving.read(workload, stored)
        return DONE if csr is None else await self._reconcile(_Task(workload, csr, stored), admitted=admitted)

    async def _reconcile(self, task: _Task, *, admitted: bool = False) -> Result:
        try:
            if not admitted:
                self._admit(task)
            return await self._evaluate(task)
        except OverBudget as over:
            return await self._throttle(task, over)
        except ChallengeRequired as challenge:
            return await self._challenge(task, challenge)
        except Unavailable as unavailable:
            return await self._wait(task, unavailable)
        except Denied as denied:
            return await self._deny(task, denied)
        except ApiError:
            raise
        except Exception:  # noqa: BLE001 - the task's edge: a bug in one request must not leave it pending forever
            _LOG.exception("bug", extra=fields(cluster=task.workload.key, csr=printable(task.stored.name)))
            return await self._wait(task, _bug())

    def _parsed(self, task: _Task) -> _Task:
        try:
            return replace(task, request=self._evaluator.parse_request(task.csr))
        except Denied as malformed:
            return replace(task, unreadable=malformed)
        except Exception:  # noqa: BLE001 - the task's edge: a bug in the parser ends like any other
            _LOG.exception("bug", extra=fields(cluster=task.workload.key, csr=printable(task.stored.name)))
            return replace(task, unreadable=_bug())

    async def _evaluate(self, task: _Task) -> Result:
        """Approve what passes every check, and sign it where it is ours to sign; raises any other result."""
        workload, csr, stored = task.workload, task.csr, task.stored
        if task.unreadable is not None:
            raise task.unreadable
        if task.request is None:
            await self._kubelet_serving.approve(workload, csr)
            self.settled(stored.uid)
            return DONE
        started = self._now()
        approval = await self._evaluator.evaluate(workload, task.request, stored.state)
        self._metrics.verification_seconds(stored.provider, (self._now() - started).total_seconds())
        await self._issuer.issue(workload, csr, stored, approval)
        self.settled(stored.uid)
        closed = self._duplicates.certified(workload.key, approval.request, approval.begun)
        return Result(requeue_keys=closed)

    def _admit(self, task: _Task) -> None:
        """Ask the rate limits; raises OverBudget or Denied. A request that is approved is only finished."""
        request, cluster = task.request, task.workload.key
        if task.stored.state is not RequestState.PENDING or task.unreadable is not None:
            return
        if request is not None:
            self._duplicates.check(cluster, request)
        node_name = request.csr.node_name if request is not None else task.username
        key = LimiterKey(cluster=cluster, username=task.username, node_name=node_name, uid=task.stored.uid)
        self._limiter.admit(key, (self._wait_limit - self._age(task)).total_seconds())

    def settled(self, uid: str) -> None:
        """Keep nothing of a request that is open no more."""
        self._ages.forget(uid)
        self._limiter.forget(uid)
        self._duplicates.forget(uid)

    # Throttle, challenge, wait, deny

    async def _throttle(self, task: _Task, over: OverBudget) -> Result:
        """Requeue a request for when its requester's rate limits allow it, and deny it when that is not in time."""
        workload = task.workload
        left = (self._wait_limit - self._age(task)).total_seconds()
        if left < 0:
            return await self._deny(task, over.denied(), evaluated=False)
        if over.first_time:
            self._count(task, "shed", Reason.REQUESTER_OVER_BUDGET)
        if over.warn:
            self._log(task, logging.WARNING, "over budget", detail=over.detail)
            self._warn(task, Reason.REQUESTER_OVER_BUDGET, f"{printable(task.username)}: {over.denied()}")
        reason = f"{Reason.REQUESTER_OVER_BUDGET}: {REMEDY}"
        if over.annotate and task.published_reason != reason:
            await workload.publish_annotations(task.csr, {ANNOTATION_REASON: reason})
        end = left + 0.5 + self._random_unit()
        return Result(requeue_after=end if over.delay is None else min(over.delay, end))

    async def _challenge(self, task: _Task, challenge: ChallengeRequired) -> Result:
        """Publish the challenge unless it is published already; deny the request when nobody answered in time."""
        workload, csr = task.workload, task.csr
        left = CHALLENGE_TTL + EXPIRY_GRACE - self._age(task)
        if left <= timedelta(0):
            return await self._deny(task, _unanswered(), evaluated=False)
        found = text(csr, "metadata", "annotations", ANNOTATION_CHALLENGE)
        if not _same_challenge(found, challenge.challenge):
            if found:
                self._metrics.foreign_challenge()
                self._log(task, logging.WARNING, "overwriting a foreign challenge")
            await workload.publish_annotations(
                csr, {ANNOTATION_CHALLENGE: challenge.challenge, **challenge.annotations}
            )
            self._count(task, "challenge", "")
        return Result(requeue_after=left.total_seconds() + 0.5)

    def _age(self, task: _Task) -> timedelta:
        created = moment(text(task.csr, "metadata", "creationTimestamp")) or self._now()
        return self._ages.age(task.stored.uid, created)

    async def _wait(self, task: _Task, unavailable: Unavailable) -> Result:
        """Leave the request pending for now, and deny it when it waited too long."""
        workload = task.workload
        age = self._age(task)
        if age > self._wait_limit:
            denied = Denied(
                unavailable.reason,
                expected=f"an answer within {self._wait_limit}",
                got=unavailable.detail,
                remedy=unavailable.remedy,
            )
            return await self._deny(task, denied, evaluated=False)
        reason = f"{unavailable.reason}: {unavailable.remedy}"
        if task.published_reason != reason:
            self._count(task, "wait", unavailable.reason)
            self._log(task, logging.INFO, "waiting", reason=unavailable.reason, detail=unavailable.detail)
            await workload.publish_annotations(task.csr, {ANNOTATION_REASON: reason})
        backoff = max(unavailable.retry_after, min(age.total_seconds() / 2, MAX_BACKOFF))
        backoff *= 1 + JITTER * self._random_unit()
        left = (self._wait_limit - age).total_seconds() + 0.5
        return Result(requeue_after=min(backoff, left), waits_for=self._waits_for(task))

    def _waits_for(self, task: _Task) -> str:
        """Name whose change wakes the request."""
        if task.stored.is_kubelets:
            return node_key(requesting_node(task.csr))
        return self._evaluator.waits_for(task.workload, task.request) if task.request else ""

    async def _deny(self, task: _Task, denied: Denied, *, evaluated: bool = True) -> Result:
        """Deny for good; the condition carries reason and remedy, the Event and the log expected and got as well."""
        workload, csr, stored = task.workload, task.csr, task.stored
        if stored.is_kubelets and self._kubelet_serving.only_reports(workload.key):
            return self._report(task, denied)
        if stored.state is RequestState.APPROVED:
            await workload.fail(csr, denied.reason, denied.remedy, denied.annotations)
        else:
            await workload.deny(csr, denied.reason, denied.remedy, denied.annotations)
        self.settled(stored.uid)
        self._count(task, "deny", denied.reason)
        got = denied.got
        self._log(task, logging.WARNING, "refused", reason=denied.reason, expected=denied.expected, got=got)
        if denied.reason is not Reason.PROVIDER_ID_REQUIRED:  # how each join without a provider ID begins
            self._warn(task, denied.reason, f"CSR {printable(stored.name)}: {denied}")
        if task.request is not None:
            verdict = replace(_refused(workload.key, task.request, denied, self._now()), evaluated=evaluated)
            for observer in self._observers:
                notify(observer.refused, verdict)
        return DONE

    def _count(self, task: _Task, verdict: str, reason: str) -> None:
        """Count a verdict."""
        self._metrics.verdict(task.workload.key, task.stored.provider, verdict, reason)

    def _report(self, task: _Task, denied: Denied) -> Result:
        """Report what Enforce would deny, and leave kubelet's own request to its present approver."""
        stored = task.stored
        self.settled(stored.uid)
        self._count(task, "ignore", denied.reason)
        self._log(task, logging.INFO, "audit", reason=denied.reason)
        self._warn(task, denied.reason, f"CSR {printable(stored.name)}: Audit: Enforce would deny it: {denied}")
        return DONE

    def _log(self, task: _Task, level: int, message: str, **more: object) -> None:
        """Log what a requester can cause again and again, as often as its share of the log allows."""
        cluster, user = task.workload.key, task.username
        if self._log_limits.allows(message, cluster, user):
            _LOG.log(level, message, extra=fields(cluster=cluster, csr=task.stored.name, user=user, **more))

    def _warn(self, task: _Task, reason: Reason, message: str) -> None:
        """Emit an Event on the Machine that the request names, on its token's, or else on the Cluster."""
        cluster, request = task.workload.key, task.request
        named = request.csr.provider_id if request else self._kubelet_serving.provider_id_of(cluster, task.csr)
        of_token = self._evaluator.machine_of_token(task.workload, request) if request else None
        subject = claimed_ref(self._management, cluster, named, of_token)
        if subject is not None:
            self._events.record(subject, "Warning", reason, message, source=(cluster, task.username))

    async def _refresh_and_requeue(self, task: _Task, error: ApiError) -> Result:
        """Read anew what a write conflicted with, and requeue; raises the error that nothing read anew explains."""
        live = await task.workload.read_request(task.stored.name)
        if live is None or text(live, "metadata", "uid") != task.stored.uid:
            self.settled(task.stored.uid)
            return DONE
        if isinstance(error, AttestationConflict):
            self._metrics.attestation_conflict()
        if task.request is not None:
            await self._refresh_attestation(task.workload.key, task.request)
        if isinstance(error, NotFound):
            message = f"CSR {printable(task.stored.name)}: {_ABSENT.format(error)}"
            self._warn(task, Reason.API_UNAVAILABLE, message)
            raise error
        return REQUEUE

    async def _refresh_attestation(self, cluster: ClusterKey, request: NodeRequest) -> None:
        """Read the machine's attestation live."""
        namespace, _, cluster_name = cluster.partition("/")
        name = attestations.attestation_name(cluster_name, request.csr.provider_id)
        path = paths.object_path(OWN_GROUP, OWN_VERSION, "machineattestations", name, namespace=namespace)
        order, key = self._management.attestation_order, f"{namespace}/{name}"
        before = order.known(key)
        try:
            found = await self._management.client.get(path)
        except NotFound:
            found = None
        order.answered(key, before, found)


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
        request_name=request.name,
        message=str(denied),
        at=now,
    )


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
