"""What the controller measures of itself, in Prometheus' words.

Label values come from closed sets, and an unknown provider, verdict or reason counts as ``other``, so no request adds a
series. Clusters are the only open label. Work queues have client-go's names, so that dashboards of other controllers
fit. Source: prometheus.io/docs/practices/naming; k8s.io/component-base/metrics/prometheus/workqueue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from nodeattest_kube.errors import ApiError, Conflict, Forbidden, Unreachable
from nodeattest_kube.workqueue import QueueMetrics
from nodeattest_providers.errors import Reason
from nodeattest_providers.platform import CallOutcome
from nodeattest_providers.registry import BUILT_IN
from nodeattest_serving.program import ProgramMetrics

_QUEUE_BUCKETS: Final = (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
"""Seconds; powers of ten, as client-go's."""


class WorkQueueMetrics:
    """The families of work queues."""

    def __init__(self, registry: CollectorRegistry) -> None:
        label, buckets = ("name",), _QUEUE_BUCKETS
        self.depth = Gauge("workqueue_depth", "Keys waiting for a worker.", label, registry=registry)
        self.adds = Counter("workqueue_adds", "Keys that began to wait.", label, registry=registry)
        self.retries = Counter("workqueue_retries", "Keys that were added with back-off.", label, registry=registry)
        histogram = partial(Histogram, labelnames=label, registry=registry, buckets=buckets)
        self.waited = histogram("workqueue_queue_duration_seconds", "How long keys waited for a worker.")
        self.worked = histogram("workqueue_work_duration_seconds", "How long workers had a key.")

    def named(self, name: str) -> QueueMetrics:
        return _Queue(self, name)


class _Queue(QueueMetrics):
    def __init__(self, families: WorkQueueMetrics, name: str) -> None:
        self._depth, self._adds = families.depth.labels(name), families.adds.labels(name)
        self._retries = families.retries.labels(name)
        self._waited, self._worked = families.waited.labels(name), families.worked.labels(name)

    def added(self) -> None:
        self._depth.inc()
        self._adds.inc()

    def retried(self) -> None:
        self._retries.inc()

    def taken(self, waited: float) -> None:
        self._depth.dec()
        self._waited.observe(max(0.0, waited))

    def done(self, worked: float) -> None:
        self._worked.observe(max(0.0, worked))

    def dropped(self, count: int) -> None:
        self._depth.dec(count)


class MachineState(StrEnum):
    """How a machine is attested; the reasons of the condition ``NodeAttested``, refusals taken together."""

    ATTESTED = "attested"
    REFUSED = "refused"
    """The last request of its own node was refused; its certificate is still good."""
    EXPIRED = "expired"
    RESET = "reset"
    NOT_ATTESTED = "not_attested"
    PENDING = "pending"


PROVIDERS: Final = (*BUILT_IN, "kubelet")
"""``kubelet`` stands for kubelet's own serving requests, which no provider attests."""
VERDICTS: Final = ("approve", "deny", "wait", "challenge", "shed", "ignore")
_REASONS: Final = frozenset(str(reason) for reason in Reason) | {""}
_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
_CODES: Final = frozenset(HTTPStatus)
ADMISSION_KINDS: Final = ("KubeadmConfig", "KubeadmControlPlane", "NodeAttestationPolicy")
_STATES: Final = ("failing", "treated", "withheld")
_OTHER: Final = "other"

_VERIFICATION_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Seconds: a TPM verification takes some 5 ms, one that asks a cloud up to seconds."""
_AGE_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
"""Seconds: from a join in one breath to one that waits for its Machine as long as it may."""


class Metrics(ProgramMetrics):
    """Counts and times of one controller process; every method is cheap and never raises."""

    def __init__(self, providers: Iterable[str] = PROVIDERS) -> None:
        super().__init__()
        ProcessCollector(registry=self.registry)
        self.queues = WorkQueueMetrics(self.registry)
        self._providers: Final = frozenset(providers)
        self._clusters: Final[dict[str, bool]] = {}
        self._define_requests()
        self._define_controller()
        self._define_clusters()

    def _define_requests(self) -> None:
        counter = partial(Counter, registry=self.registry)
        seconds = partial(Histogram, registry=self.registry, buckets=_VERIFICATION_BUCKETS)
        self._verdicts = counter(
            "nodeattest_verdicts", "Verdicts on certificate requests.", ("provider", "verdict", "reason")
        )
        self._issued = counter("nodeattest_issued", "Certificates issued.", ("provider",))
        self._verification = seconds(
            "nodeattest_verification_seconds", "Time to verify one request's evidence.", ("provider",)
        )
        self._age = Histogram(
            "nodeattest_request_age_seconds",
            "From the creation of a request to its certificate; where a challenge takes two requests, of the first. "
            "The creation is by the API server's clock.",
            registry=self.registry,
            buckets=_AGE_BUCKETS,
        )
        self._platform = seconds(
            "nodeattest_platform_call_seconds",
            "Time of requests to the platforms that providers ask, by service and outcome.",
            ("provider", "service", "outcome"),
        )
        self.foreign_challenge = counter(
            "nodeattest_foreign_challenges",
            "Output-only annotations that somebody else had written and that were overwritten.",
        ).inc
        self.attestation_conflict = counter(
            "nodeattest_ledger_conflicts", "Ledger writes that another replica had overtaken."
        ).inc
        self._admitted = counter(
            "nodeattest_admission_requests",
            "Reviews answered by the webhook of bootstrap-config, by the object's kind and the outcome.",
            ("kind", "outcome"),
        )
        self._admission_seconds = seconds(
            "nodeattest_admission_seconds", "Time to answer the API server about one object."
        )

    def _define_controller(self) -> None:
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        self.leader = gauge("nodeattest_leader", "Whether this replica leads.").set
        self.oldest_request = gauge(
            "nodeattest_queue_oldest_seconds", "How long the oldest request waits for a worker."
        ).set
        self._policies = gauge("nodeattest_policies", "Policies by the reason of their condition Ready.", ("reason",))
        self._cache_bytes = gauge("nodeattest_cache_bytes", "Memory of the management cluster's objects that are kept.")
        self._cache_limit = gauge(
            "nodeattest_cache_limit_bytes",
            "How much these objects may take: half of the container's memory, at most 1 GiB.",
        )
        self._cache_passed_over = gauge(
            "nodeattest_cache_passed_over",
            "Objects of the management cluster that are not kept for their size, their name or their namespace's "
            "share. Above 0, a machine or a cluster may be missing.",
        )
        self._api = counter(
            "rest_client_requests",
            "Requests to API servers by method and status; <error>: no answer came.",
            ("method", "code"),
        )
        self._token_writes = counter(
            "nodeattest_token_writes",
            "Writes of the controllers of bootstrap tokens (cluster-info, tokens renewed or deleted) by outcome.",
            ("controller", "outcome"),
        )
        self._publications = counter(
            "nodeattest_issuer_publications", "Attempts to publish issuers' documents by outcome.", ("outcome",)
        )

    def _define_clusters(self) -> None:
        """Define the families of clusters; all but the first have the label ``cluster``."""
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        self._totals = gauge("nodeattest_clusters", "Workload clusters by state.", ("state",))
        self._count_clusters()
        self._connected = gauge(
            "nodeattest_cluster_connected",
            "Whether the workload cluster's requests are being watched (1) or its API server fails (0).",
            ("cluster",),
        )
        self._passed_over = counter(
            "nodeattest_requests_passed_over",
            "How often a request of the cluster was not taken for its size or name.",
            ("cluster",),
        )
        self._approval_closed = gauge(
            "nodeattest_in_tree_approval_blocked",
            "1: the in-tree signer approves nothing automatically in the workload cluster. 0: it does, or may.",
            ("cluster",),
        )
        self._in_tree_certificates = counter(
            "nodeattest_in_tree_certificates",
            "Certificates of the in-tree signer for names or keys that no attestation covers.",
            ("cluster",),
        )
        self._failed_nodes = gauge(
            "nodeattest_failed_nodes",
            "Nodes whose own requests were refused for what their machine is: failing, of these treated by onFailure, "
            "and of these left alone for maxFailedShare.",
            ("cluster", "state"),
        )
        self._machines = gauge(
            "nodeattest_machines",
            "Machines by how they are attested: attested, refused (a renewal was), expired, reset, not_attested "
            "(joined without attestation), pending (did not join yet).",
            ("cluster", "state"),
        )
        self._earliest_end = gauge(
            "nodeattest_certificate_earliest_end_timestamp_seconds",
            "When the first of the cluster's client certificates ends, of those that are still good.",
            ("cluster",),
        )
        self._earliest_lifetime = gauge(
            "nodeattest_certificate_earliest_lifetime_seconds", "The whole lifetime of that certificate.", ("cluster",)
        )

    def verdict(self, provider: str, verdict: str, reason: str) -> None:
        """Count a verdict; ``reason`` is a ``Reason``, or empty where nothing was refused."""
        known = verdict if verdict in VERDICTS else _OTHER
        self._verdicts.labels(self._provider_label(provider), known, reason if reason in _REASONS else _OTHER).inc()

    def issued(self, provider: str) -> None:
        self._issued.labels(self._provider_label(provider)).inc()

    def verification_seconds(self, provider: str, seconds: float) -> None:
        self._verification.labels(self._provider_label(provider)).observe(max(0.0, seconds))

    def platform_call(self, provider: str, service: str, outcome: CallOutcome, seconds: float) -> None:
        """Record a request to a platform's API; ``service`` is from the provider's closed set."""
        self._platform.labels(self._provider_label(provider), service, outcome).observe(max(0.0, seconds))

    def request_age_seconds(self, seconds: float) -> None:
        self._age.observe(max(0.0, seconds))

    def token_write(self, controller: str, outcome: str) -> None:
        self._token_writes.labels(controller, outcome).inc()

    def issuer_publication(self, outcome: str) -> None:
        self._publications.labels(outcome).inc()

    def auto_approval_closed(self, key: str, *, closed: bool) -> None:
        self._approval_closed.labels(key).set(closed)
        self._in_tree_certificates.labels(key)

    def in_tree_certificate(self, key: str) -> None:
        self._in_tree_certificates.labels(key).inc()

    def admission(self, kind: str, outcome: str, seconds: float) -> None:
        """Count an object that the webhook was asked about; ``outcome`` is an ``AdmissionOutcome``."""
        self._admitted.labels(kind if kind in ADMISSION_KINDS else _OTHER, outcome).inc()
        self._admission_seconds.observe(max(0.0, seconds))

    def cluster(self, key: str, *, connected: bool) -> None:
        """Show the state of a workload cluster, ``namespace/name``."""
        self._clusters[key] = connected
        self._connected.labels(key).set(connected)
        self._count_clusters()

    def cache(self, used: int, limit: int, left_out: int) -> None:
        self._cache_bytes.set(used)
        self._cache_limit.set(limit)
        self._cache_passed_over.set(left_out)

    def requests_passed_over(self, key: str, more: int) -> None:
        """Count requests of a cluster that were not taken; also none, so that there is a series."""
        self._passed_over.labels(key).inc(more)

    def forget_cluster(self, key: str) -> None:
        for family in (self._connected, self._passed_over, self._approval_closed, self._in_tree_certificates):
            family.remove(key)
        self._clusters.pop(key, None)
        self._count_clusters()

    def standing(self, key: str, *, failing: int, treated: int, withheld: int) -> None:
        for state, count in zip(_STATES, (failing, treated, withheld), strict=True):
            self._failed_nodes.labels(key, state).set(count)

    def machines(self, key: str, states: Mapping[MachineState, int], first: tuple[float, float] | None) -> None:
        """Show a cluster's machines; ``first``: the end of the valid certificate that ends first, and its lifetime."""
        for state in MachineState:
            self._machines.labels(key, state).set(states.get(state, 0))
        if first is None:
            self._earliest_end.remove(key)
            self._earliest_lifetime.remove(key)
        else:
            self._earliest_end.labels(key).set(first[0])
            self._earliest_lifetime.labels(key).set(first[1])

    def forget_standing(self, key: str) -> None:
        for state in _STATES:
            self._failed_nodes.remove(key, state)
        for state in MachineState:
            self._machines.remove(key, state)
        self._earliest_end.remove(key)
        self._earliest_lifetime.remove(key)

    def policies(self, counts: Mapping[str, int]) -> None:
        for reason, count in counts.items():
            self._policies.labels(reason).set(count)

    def api_request(self, method: str, status: int | None) -> None:
        """Count a request to an API server; ``status`` is None when no answer came."""
        code = "<error>" if status is None else str(status) if status in _CODES else _OTHER
        self._api.labels(method if method in _METHODS else _OTHER, code).inc()

    def _provider_label(self, name: str) -> str:
        """Return the name of a known provider, or ``other``: whoever files a request names one."""
        return name if name in self._providers else _OTHER

    def _count_clusters(self) -> None:
        connected = sum(self._clusters.values())
        self._totals.labels("connected").set(connected)
        self._totals.labels("failing").set(len(self._clusters) - connected)


def write_outcome(error: ApiError) -> str:
    match error:
        case Conflict():
            return "conflict"
        case Forbidden():
            return "forbidden"
        case Unreachable():
            return "unreachable"
        case _:
            return "refused"
