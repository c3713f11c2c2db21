"""A request that is worked on, and the rate limits of its requester.

A requester (a bootstrap token, or a node that renews) and each node name that it asks for have a limit. A request over
a limit gets a reservation, in the order of asking, which is kept until it is used, so an early wake-up costs nothing.
If it would come too late, none is made: the request waits until its time is over (docs/decisions.md).
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from nodeattest_controller.model.csr_request import CSRSummary, requesting_node
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.runtime.informers import machine_key, node_key
from nodeattest_controller.runtime.workload_client import WorkloadClient
from nodeattest_controller.verification.controller_facts import ControllerFacts
from nodeattest_discovery.token import USER_PREFIX
from nodeattest_kube.periodic import RateLimiter
from nodeattest_parsing.objects import moment, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.identifiers import NodeName
from nodeattest_providers.verifier_interface import NodeRequest

NOTHING: Final = "nothing"
"""No provider ID or key: no change wakes such a request early."""
REQUESTER_BURST, REQUESTER_RATE = 1000, 20.0
"""Evaluations at once, and a second after that. A join by TPM takes two, so a pool of 500 nodes boots on one token at
full speed; what a stolen token forces afterwards is a tenth of a core (5 ms an evaluation)."""
NODE_BURST, NODE_RATE = 30, 0.2
"""The same for one node name asked for by one requester: fifteen joins, or all the evaluations for a Machine that is
late; and then no more than a cloud's API takes for one machine."""
ANNOTATION_BURST, ANNOTATION_RATE = 20, 1.0
"""Requests of one requester that get an annotation about their wait; each is a write."""
_REMEMBERED: Final = 5_000
"""Requests of a cluster whose reservations are kept; one that is forgotten asks again."""


@dataclass(slots=True)
class Task:
    """One reconcile of one request, which is parsed once."""

    workload: WorkloadClient
    csr: JsonObject
    stored: CSRSummary
    source: ControllerFacts
    begun: datetime
    """By the controller's clock."""
    request: NodeRequest | None = None
    """None for kubelet's own, and for one that is malformed."""

    @property
    def username(self) -> str:
        return text(self.csr, "spec", "username")

    @property
    def age(self) -> timedelta:
        """How long the request has been open, by the API server's clock, which wrote when it was created."""
        now = self.workload.client.server_time() or self.begun
        created = moment(text(self.csr, "metadata", "creationTimestamp")) or now
        return max(now - created, timedelta(0))

    def annotation(self, name: str) -> str:
        return text(self.csr, "metadata", "annotations", name)

    def named(self) -> str:
        """Return the provider ID that the request names, or that of the node that asks; empty where it is not clear."""
        if self.request is not None:
            return self.request.csr.provider_id
        node_name = requesting_node(self.csr)
        found = self.source.machines_of_node(NodeName(node_name)) if node_name else []
        return found[0].provider_id if len(found) == 1 else ""

    def machine_of_token(self) -> MachineView | None:
        token_id = self.username.removeprefix(USER_PREFIX)
        return self.source.machine_of_token(token_id) if self.request and token_id != self.username else None

    def waits_for(self) -> str:
        """Name whose change wakes the request: its provider ID, or the Machine of its token while that has none."""
        if self.stored.is_kubelets:
            return node_key(requesting_node(self.csr))
        if self.request is None:
            return ""
        provider_id = self.request.csr.provider_id
        if provider_id and self.source.machines(provider_id):
            return provider_id
        machine = self.machine_of_token()
        return machine_key(machine.uid) if machine is not None else provider_id or NOTHING


@dataclass(frozen=True, slots=True)
class RateLimited:
    """The request waits for its reservation."""

    detail: str
    delay: float | None
    """Seconds until the reservation; None where none would come in time."""
    annotate: bool
    """Whether to write an annotation for the requester."""


class _Reservations:
    """One limit, and the reservations of the requests that wait for it."""

    def __init__(self, whose: str, burst: int, per_second: float, clock: Callable[[], float]) -> None:
        self.detail = f"more than {per_second:g} requests a second for {whose}"
        self._limiter = RateLimiter(burst=burst, per_second=per_second, clock=clock)
        self._clock = clock
        self.due: defaultdict[Hashable, OrderedDict[str, float]] = defaultdict(OrderedDict)
        """By cluster and the request's UID: an API server chooses the UIDs of its own requests only."""

    def delay(self, key: Hashable, cluster: Hashable, uid: str, max_wait: float) -> float | None:
        """Return how many seconds a request has to wait; None where that is longer than ``max_wait``."""
        due = self.due[cluster]
        if uid not in due:
            delay = self._limiter.reserve(key, max_wait)
            if delay is None:
                return None
            due[uid] = self._clock() + delay
            if len(due) > _REMEMBERED:
                due.popitem(last=False)
        return max(0.0, due[uid] - self._clock())

    def forget(self, cluster: Hashable, uid: str) -> None:
        self.due[cluster].pop(uid, None)
        if not self.due[cluster]:
            del self.due[cluster]


class RequestLimiter:
    """The limits of all requesters; ``clock`` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._nodes = _Reservations("one node", NODE_BURST, NODE_RATE, clock)
        self._requesters = _Reservations("all nodes", REQUESTER_BURST, REQUESTER_RATE, clock)
        self._annotations = RateLimiter(burst=ANNOTATION_BURST, per_second=ANNOTATION_RATE, clock=clock)

    def admit(self, cluster: Hashable, username: str, node_name: str, uid: str, max_wait: float) -> RateLimited | None:
        """Count one evaluation; None lets it begin.

        ``max_wait``: seconds that the request may still wait. The node name's limit comes first: requests for one node
        that wait take nothing from other nodes on the same token.
        """
        requester = (cluster, username)
        for limit, limited in ((self._nodes, (requester, node_name)), (self._requesters, requester)):
            delay = limit.delay(limited, cluster, uid, max(0.0, max_wait))
            if delay != 0.0:
                return RateLimited(limit.detail, delay, annotate=self._annotations.take(requester))
        self.forget(cluster, uid)
        return None

    def forget(self, cluster: Hashable, uid: str) -> None:
        """Drop the reservations of a request that was evaluated or is settled."""
        self._nodes.forget(cluster, uid)
        self._requesters.forget(cluster, uid)
