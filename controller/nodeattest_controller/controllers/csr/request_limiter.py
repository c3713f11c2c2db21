"""How much judging one requester can cause: requests over budget wait their turn, and delay nobody else.

Promises: before anything costly is done for a request, its requester (a bootstrap token, or a node that renews) and the
node name that this requester asks for have paid for it. Who cannot pay gets a turn, in the order of asking; it is kept
until it was used, so that being woken early costs nothing. Where no turn would come in time, none is taken, and the
request ends as any wait does: with ``RequesterOverBudget``. Budgets delay, they do not deny (docs/adr/0010).
Leaves to others: parsing, which is cheap, and whose refusals make room; whose turn it is among those that can pay
(``kube.turns``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_kube.rate_limiter import RateLimiter
from nodeattest_providers.errors import Denied, Reason

__all__ = ["REMEDY", "LimiterKey", "OverBudget", "RequestLimiter"]

REQUESTER_BURST, REQUESTER_RATE = 1000, 20.0
"""Judgements at once, and a second after that. A join by TPM takes two, so a pool of 500 nodes boots on one token at
full speed; what a stolen token forces afterwards is a tenth of a core (5 ms a judgement)."""
NODE_BURST, NODE_RATE = 30, 0.2
"""The same for one node name asked for by one requester: fifteen joins, or all the looks at a Machine that is late; and
then no more than a cloud's API takes for one machine."""
TELL_BURST, TELL_RATE = 20, 1.0
"""Requests of one requester that are told by annotation that they wait, since each telling is a write."""
WARN_BURST, WARN_RATE = 1, 1 / 300
"""Warnings to operators about one requester."""
_REMEMBERED: Final = 20_000
"""Requests whose turns are kept; one that is forgotten asks again."""
REMEDY: Final = "wait; if this token is not flooded by mistake, delete it and give its machines another"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimiterKey:
    """Who pays for a judgement."""

    cluster: ClusterKey
    username: str
    node_name: str
    """As the request has it; of kubelet's own requests, which name their requester only, that one."""
    uid: str
    """The request's."""


class OverBudget(Exception):
    """The request waits for its turn."""

    def __init__(self, detail: str, *, delay: float | None, news: bool, tell: bool, warn: bool) -> None:
        super().__init__(detail)
        self.detail = detail
        self.delay = delay
        """Seconds until the turn; None where none would come in time."""
        self.news = news
        """Whether this request begins to wait only now."""
        self.tell = tell
        """Whether to tell the requester: each telling is a write."""
        self.warn = warn
        """Whether to tell operators."""

    def denied(self) -> Denied:
        """Say what the request ends with when it waited too long."""
        return Denied(
            Reason.REQUESTER_OVER_BUDGET, expected="a requester within its budget", got=self.detail, remedy=REMEDY
        )


class _Line:
    """One budget, and the turns of those who wait for it."""

    def __init__(self, burst: int, per_second: float, clock: Callable[[], float]) -> None:
        self._buckets = RateLimiter(burst=burst, per_second=per_second, clock=clock)
        self._clock = clock
        self._turns: OrderedDict[str, float] = OrderedDict()

    def __contains__(self, uid: str) -> bool:
        return uid in self._turns

    def turn(self, key: Hashable, uid: str, patience: float) -> float | None:
        """Tell how many seconds a request has to wait; None where that is longer than ``patience``."""
        due = self._turns.get(uid)
        if due is None:
            delay = self._buckets.reserve(key, patience)
            if delay is None:
                return None
            due = self._turns[uid] = self._clock() + delay
            if len(self._turns) > _REMEMBERED:
                self._turns.popitem(last=False)
        return max(0.0, due - self._clock())

    def forget(self, uid: str) -> None:
        """Drop a turn that was used, or is no longer wanted."""
        self._turns.pop(uid, None)


class RequestLimiter:
    """The budgets of all requesters."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` is monotonic seconds."""
        self._nodes = _Line(NODE_BURST, NODE_RATE, clock)
        self._requesters = _Line(REQUESTER_BURST, REQUESTER_RATE, clock)
        self._tell = RateLimiter(burst=TELL_BURST, per_second=TELL_RATE, clock=clock)
        self._warn = RateLimiter(burst=WARN_BURST, per_second=WARN_RATE, clock=clock)

    def admit(self, payer: LimiterKey, patience: float) -> None:
        """Let one judgement be paid; raises OverBudget. ``patience``: seconds that the request may still wait.

        1. The node name's budget; 2. the requester's. In this order, because requests for one node that wait then take
        nothing from what other nodes have on the same token.
        """
        requester = (payer.cluster, payer.username)
        for line, key, rate in (
            (self._nodes, (*requester, payer.node_name), NODE_RATE),
            (self._requesters, requester, REQUESTER_RATE),
        ):
            known = payer.uid in line
            delay = line.turn(key, payer.uid, max(0.0, patience))
            if delay != 0.0:
                raise OverBudget(
                    f"more than {rate:g} requests a second for {'one node' if line is self._nodes else 'all nodes'}",
                    delay=delay,
                    news=not known,
                    tell=self._tell.take(requester),
                    warn=self._warn.take(requester),
                )
        self.forget(payer.uid)

    def forget(self, uid: str) -> None:
        """Drop the turns of a request that was judged or is settled."""
        self._nodes.forget(uid)
        self._requesters.forget(uid)
