"""Acts on a request: one reconcile takes one request one step further.

An evaluation ends in a certificate (``issuer``), a challenge, a wait or a denial; every wait ends. Approved is not
proof: an approved request is evaluated again, and one without a certificate on record is failed.
Kubelet's own serving requests (``kubernetes.io/kubelet-serving``) are approved or refused where a policy says
``serving.kubelet: Approve``, and are left to others elsewhere. They are never signed here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from nodeattest_controller.controllers.csr.issuer import AttestationConflict, Issuer
from nodeattest_controller.controllers.csr.task import RateLimited, RequestLimiter, Task
from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model.attestation import attestation_name
from nodeattest_controller.model.csr_request import RequestState, parse_request, summarize
from nodeattest_controller.model.policy import Policy
from nodeattest_controller.runtime.cluster_controller import CSRDenied, CSRObserver
from nodeattest_controller.runtime.cluster_log import ClusterLog
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache, claimed_ref
from nodeattest_controller.runtime.workload_client import WorkloadClient
from nodeattest_controller.verification.controller_facts import ControllerFacts
from nodeattest_kube.answers import parse_json
from nodeattest_kube.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound
from nodeattest_kube.events import EventLimiter, EventRecorder
from nodeattest_kube.periodic import notify
from nodeattest_parsing.objects import text
from nodeattest_providers.challenge_response import CHALLENGE_TTL
from nodeattest_providers.errors import ChallengeRequired, Denied, Reason, Unavailable
from nodeattest_providers.identifiers import ANNOTATION_CHALLENGE, ANNOTATION_REASON, Purpose, printable
from nodeattest_providers.verifier_interface import NodeRequest

_LOG: Final = logging.getLogger(__name__)
EXPIRY_GRACE: Final = timedelta(seconds=60)
"""How long after a challenge's end its first request is closed: a second request filed in time may still be on its
way, and closing the first would refuse it."""
MAX_BACKOFF: Final = 60.0
"""Seconds between two evaluations of a request that waits; what it waits for wakes it earlier."""
WARNING_PERIOD: Final = 300.0
"""Seconds between two warnings to operators that one requester is over its budget."""
JITTER: Final = 0.25
"""At most this share of a back-off is added at random, so that requests that came together do not return together."""
_REFUSED: Final = (
    "an API server refuses what has to be done, and is asked again: {}; apply this version's RBAC manifests"
)
_ABSENT: Final = (
    "an API server answers that what has to be written is not there, and is asked again: {}; see that this version's "
    "CustomResourceDefinitions are installed"
)
_OVER_BUDGET: Final = "wait; if this token is not flooded by mistake, delete it and give its machines another"
_INTERNAL_ERROR: Final = Unavailable(
    Reason.INTERNAL_ERROR,
    "the controller failed on this request; its log has the details",
    remedy="report it with the controller's log",
)


@dataclass(frozen=True, slots=True)
class Result:
    """What the queue does next with the key."""

    requeue_after: float | None = None
    """Seconds; None: nothing more until the object changes."""
    requeue: bool = False
    """Whether to try again with the queue's growing back-off."""
    waits_for: str | None = None
    """A provider ID or ``node_key`` whose change in the management cluster wakes the key earlier; empty: any change of
    the cluster's own objects."""


DONE: Final = Result()
REQUEUE: Final = Result(requeue=True)
_End = Result | RateLimited | ChallengeRequired | Unavailable | Denied
"""How an attempt on a request ended; ``Result``: nothing is left to be written."""


class Reconciler:
    """Takes one request one step further."""

    def __init__(
        self,
        management: ManagementCache,
        issuer: Issuer,
        *,
        facts_of: Callable[[WorkloadClient], ControllerFacts],
        purposes: frozenset[Purpose],
        events: EventRecorder,
        metrics: Metrics,
        observers: Sequence[CSRObserver],
        wait_limit: float,
        limiter: RequestLimiter,
        log: ClusterLog,
        random_unit: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        """``purposes`` are those whose requests are acted on; ``random_unit`` draws from [0, 1)."""
        self._management = management
        self._issuer = issuer
        self._facts_of = facts_of
        self._purposes = purposes
        self._events = events
        self._metrics = metrics
        self._observers = observers
        self._wait_limit = timedelta(seconds=wait_limit)
        self._limiter = limiter
        self._log_limits = log
        self._warnings = EventLimiter(lambda: now().timestamp())
        self._random_unit = random_unit
        self._now = now

    async def reconcile(self, workload: WorkloadClient, name: str) -> Result:
        """Evaluate the request as the cache has it, and act; raises ApiError for the queue's back-off."""
        csr = workload.requests.get(name)
        stored = workload.summarize(csr) if csr else None
        if csr is None or stored is None or not stored.is_open:
            self.settled(workload.key, stored.uid if stored else "")
            return DONE
        if stored.purpose not in self._purposes:
            return DONE
        task = Task(workload, csr, stored, self._facts_of(workload), self._now())
        try:
            return await self._act(task, await self._attempt(task))
        except (Conflict, AlreadyExists, NotFound) as error:
            return await self._refresh_and_requeue(task, error)
        except (Forbidden, Invalid) as refused:
            self._warn(task, Reason.API_UNAVAILABLE, f"CSR {printable(stored.name)}: {_REFUSED.format(refused)}")
            raise

    def settled(self, cluster: ClusterKey, uid: str) -> None:
        """Forget a request that is decided or gone."""
        self._limiter.forget(cluster, uid)

    async def _attempt(self, task: Task) -> _End:
        """Approve what passes every check, and sign it where it is ours to sign."""
        try:
            if task.stored.is_kubelets:
                return await self._attempt_kubelets(task)
            task.request = parse_request(task.csr, provider_id_oid=task.source.provider_id_oid)
            return self._limited(task) or await self._issue(task, task.request)
        except (Denied, Unavailable, ChallengeRequired) as end:
            return end
        except ApiError:
            raise
        except Exception:  # noqa: BLE001 - the task's edge: a bug in one request must not leave it pending forever
            more = fields(cluster=task.workload.key, csr=printable(task.stored.name))
            _LOG.exception("internal error while reconciling a request", extra=more)
            return _INTERNAL_ERROR

    async def _issue(self, task: Task, request: NodeRequest) -> Result:
        stored, started = task.stored, self._now()
        approval = await self._issuer.evaluate(task.source, request, stored.state)
        self._metrics.verification_seconds(stored.provider, (self._now() - started).total_seconds())
        await self._issuer.issue(task.workload, task.csr, stored, approval)
        self.settled(task.workload.key, stored.uid)
        return DONE

    async def _attempt_kubelets(self, task: Task) -> _End:
        """Read one of kubelet's own whole within the rate limits; the cache has only its requester and creation."""
        if not self._approves_kubelets(task.workload.key):
            return DONE
        limited = self._limited(task)
        if limited is not None and self._left(task) >= 0:
            return limited
        csr = await task.workload.read_request(task.stored.name)
        now = summarize(csr) if csr is not None else None
        if csr is None or now is None or now.uid != task.stored.uid or not now.is_open:  # somebody else decided it
            return DONE
        task.csr = csr  # a denial takes the whole object
        if limited is not None:
            return limited
        if self._approves_kubelets(task.workload.key):
            await self._issuer.approve_kubelets(task.source, csr)
        self.settled(task.workload.key, task.stored.uid)
        return DONE

    def _approves_kubelets(self, key: ClusterKey) -> bool:
        policy = self._policy(key)
        return policy is not None and policy.approves_kubelet

    def _policy(self, key: ClusterKey) -> Policy | None:
        cluster = self._management.cluster(key)
        try:
            return self._management.policy_of(cluster) if cluster is not None else None
        except (Denied, Unavailable):
            return None

    async def _act(self, task: Task, end: _End) -> Result:
        match end:
            case RateLimited():
                return await self._throttle(task, end)
            case ChallengeRequired():
                return await self._challenge(task, end)
            case Unavailable():
                return await self._wait(task, end)
            case Denied():
                return await self._deny(task, end)
            case Result():
                return end

    def _limited(self, task: Task) -> RateLimited | None:
        """Ask the rate limits. A request that is approved is only finished."""
        if task.stored.state is not RequestState.PENDING:
            return None
        node_name = task.request.csr.node_name if task.request is not None else task.username
        return self._limiter.admit(task.workload.key, task.username, node_name, task.stored.uid, self._left(task))

    def _left(self, task: Task) -> float:
        """Return the seconds that a request may still wait."""
        return (self._wait_limit - task.age).total_seconds()

    async def _throttle(self, task: Task, limited: RateLimited) -> Result:
        """Requeue a request for when its requester's rate limits allow it, and deny it when that is not in time."""
        left, reason = self._left(task), Reason.REQUESTER_OVER_BUDGET
        if left < 0:
            expected = "a requester within its budget"
            denied = Denied(reason, expected=expected, got=limited.detail, remedy=_OVER_BUDGET)
            return await self._deny(task, denied, evaluated=False)
        if self._warnings.allow((task.workload.key, task.username), WARNING_PERIOD):
            self._log(task, logging.WARNING, "over budget", detail=limited.detail)
            self._warn(task, reason, f"{printable(task.username)}: {reason}: {limited.detail}; {_OVER_BUDGET}")
        if limited.annotate and await self._annotate_reason(task, reason, _OVER_BUDGET):
            self._count(task, "shed", reason)
        end = left + 0.5 + self._random_unit()
        return Result(requeue_after=end if limited.delay is None else min(limited.delay, end))

    async def _annotate_reason(self, task: Task, reason: Reason, remedy: str) -> bool:
        """Tell the requester why the request waits, unless it was told; returns whether that was written."""
        text_ = f"{reason}: {remedy}"
        if task.annotation(ANNOTATION_REASON) == text_:
            return False
        await task.workload.publish_annotations(task.csr, {ANNOTATION_REASON: text_})
        return True

    async def _challenge(self, task: Task, challenge: ChallengeRequired) -> Result:
        """Publish the challenge unless it is published already; deny the request when nobody answered in time."""
        left = CHALLENGE_TTL + EXPIRY_GRACE - task.age
        if left <= timedelta(0):
            expected = f"a second request within {CHALLENGE_TTL.total_seconds():.0f} s"
            remedy = "file a new first request"
            unanswered = Denied(Reason.CHALLENGE_EXPIRED, expected=expected, got="none", remedy=remedy)
            return await self._deny(task, unanswered, evaluated=False)
        found = task.annotation(ANNOTATION_CHALLENGE)
        if not _same_challenge(found, challenge.challenge):
            if found:
                self._metrics.foreign_challenge()
                self._log(task, logging.WARNING, "overwriting a foreign challenge")
            annotations = {ANNOTATION_CHALLENGE: challenge.challenge, **challenge.annotations}
            await task.workload.publish_annotations(task.csr, annotations)
            self._count(task, "challenge", "")
        return Result(requeue_after=left.total_seconds() + 0.5)

    async def _wait(self, task: Task, unavailable: Unavailable) -> Result:
        """Leave the request pending for now, and deny it when it waited too long."""
        left, reason, remedy = self._left(task), unavailable.reason, unavailable.remedy
        if left < 0:
            expected = f"an answer within {self._wait_limit}"
            denied = Denied(reason, expected=expected, got=unavailable.detail, remedy=remedy)
            return await self._deny(task, denied, evaluated=False)
        if await self._annotate_reason(task, reason, remedy):
            self._count(task, "wait", reason)
            self._log(task, logging.INFO, "waiting", reason=reason, detail=unavailable.detail)
        backoff = max(unavailable.retry_after, min(task.age.total_seconds() / 2, MAX_BACKOFF))
        backoff *= 1 + JITTER * self._random_unit()
        return Result(requeue_after=min(backoff, left + 0.5), waits_for=task.waits_for())

    async def _deny(self, task: Task, denied: Denied, *, evaluated: bool = True) -> Result:
        """Deny for good; the condition carries reason and remedy, the Event and the log expected and got as well.

        Under Audit kubelet's own request is left to its present approver, and what Enforce would deny is reported.
        """
        workload, csr, stored = task.workload, task.csr, task.stored
        self.settled(workload.key, stored.uid)
        policy = self._policy(workload.key) if stored.is_kubelets else None
        if policy is not None and not policy.enforce:
            self._count(task, "ignore", denied.reason)
            self._log(task, logging.INFO, "audit", reason=denied.reason)
            message = f"CSR {printable(stored.name)}: Audit: Enforce would deny it: {denied}"
            self._warn(task, denied.reason, message)
            return DONE
        if stored.state is RequestState.APPROVED:
            await workload.fail(csr, denied.reason, denied.remedy, denied.annotations)
        else:
            await workload.deny(csr, denied.reason, denied.remedy, denied.annotations)
        self._count(task, "deny", denied.reason)
        self._log(task, logging.WARNING, "refused", reason=denied.reason, expected=denied.expected, got=denied.got)
        if denied.reason is not Reason.PROVIDER_ID_REQUIRED:  # how each join without a provider ID begins
            self._warn(task, denied.reason, f"CSR {printable(stored.name)}: {denied}")
        if task.request is not None:
            self._tell(workload.key, task.request, denied, evaluated=evaluated)
        return DONE

    def _tell(self, cluster: ClusterKey, request: NodeRequest, denied: Denied, *, evaluated: bool) -> None:
        verdict = CSRDenied(
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
            at=self._now(),
            evaluated=evaluated,
        )
        for observer in self._observers:
            notify(observer.refused, verdict)

    def _count(self, task: Task, verdict: str, reason: str) -> None:
        self._metrics.verdict(task.stored.provider, verdict, reason)

    def _log(self, task: Task, level: int, message: str, **more: object) -> None:
        """Log what a requester can cause again and again, as often as its share of the log allows."""
        cluster, user = task.workload.key, task.username
        if self._log_limits.allows(message, cluster, user):
            _LOG.log(level, message, extra=fields(cluster=cluster, csr=task.stored.name, user=user, **more))

    def _warn(self, task: Task, reason: Reason, message: str) -> None:
        """Record an Event on the Machine that the request names, on its token's, or else on the Cluster."""
        cluster = task.workload.key
        subject = claimed_ref(self._management, cluster, task.named(), task.machine_of_token())
        if subject is not None:
            self._events.record(subject, "Warning", reason, message, source=(cluster, task.username))

    async def _refresh_and_requeue(self, task: Task, error: ApiError) -> Result:
        """Read anew what a write conflicted with, and requeue; raises NotFound of what should be there."""
        live = await task.workload.read_request(task.stored.name)
        if live is None or text(live, "metadata", "uid") != task.stored.uid:
            self.settled(task.workload.key, task.stored.uid)
            return DONE
        if isinstance(error, AttestationConflict):
            self._metrics.attestation_conflict()
        if task.request is not None:
            namespace, _, cluster_name = task.workload.key.partition("/")
            record = attestation_name(cluster_name, task.request.csr.provider_id)
            with suppress(NotFound):
                await self._management.ask_attestation(namespace, record, self._management.client.get)
        if isinstance(error, NotFound):
            message = f"CSR {printable(task.stored.name)}: {_ABSENT.format(error)}"
            self._warn(task, Reason.API_UNAVAILABLE, message)
            raise error
        return REQUEUE


def _same_challenge(published: str, derived: str) -> bool:
    """Compare what both replicas derive alike (nonce and request); blob and secret carry fresh randomness."""
    try:
        left, right = parse_json(published.encode()), parse_json(derived.encode())
    except ValueError:
        return False
    return {**left, "blob": "", "secret": ""} == {**right, "blob": "", "secret": ""}
