"""Reviews of NodeAttestationPolicies: reads them, and compares them with the policies and Clusters beside them.

Promises: a policy that cannot be compared passes with a warning, because the controller's own rule for several policies
holds without it; nothing is written. Of a namespace that is not watched any policy passes: others serve it.
A caller that is not verified learns of few comparisons whether they find an overlap, and so of few labels.
Leaves to others: the verdict (``policy_decide``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final

from nodeattest_controller.controllers.bootstrap_config import admission_review
from nodeattest_controller.controllers.bootstrap_config.admission_review import AdmissionReview
from nodeattest_controller.controllers.bootstrap_config.decide import AdmissionOutcome, Allow, Unable, Verdict
from nodeattest_controller.controllers.bootstrap_config.facts import FactReader
from nodeattest_controller.controllers.bootstrap_config.policy_decide import (
    PolicyChange,
    decide_alone,
    decide_beside,
    label_warning,
    policy_change,
)
from nodeattest_controller.logs import fields
from nodeattest_kube.client import ApiError
from nodeattest_kube.rate_limiter import RateLimiter

__all__ = [
    "COMPARISONS",
    "COMPARISONS_OF_CLIENT",
    "MAX_SECTIONS",
    "PATH",
    "UNLABELLED_PATH",
    "ComparisonLimiter",
    "PolicyReviewer",
]

PATH: Final = "/validate-policy"
UNLABELLED_PATH: Final = "/validate-policy-of-unlabelled-namespace"
"""By the path an API server says whether a namespace has the label: it knows, and the webhook need not read it."""
MAX_SECTIONS: Final = 32 << 10
"""Bytes of a review whose providers' sections are checked: providers keep the certificates that they read in a section,
and whoever reaches the port can send one."""
COMPARISONS: Final = 60
"""Policies of one namespace that are compared for a caller that is not verified, by its address; then one every so
often: whether a made-up selector overlaps tells which labels Clusters have. Twenty-five policies that are applied after
a dry run take fifty."""
_COMPARISONS_PER_SECOND: Final = 10 / 60
COMPARISONS_OF_CLIENT: Final = 10 * COMPARISONS
"""Of all namespaces, for the same caller: what it asks about one cannot make us forget what it asked about another."""
_COMPARISONS_OF_CLIENT_PER_SECOND: Final = 60 / 60
_TOO_MANY: Final = (
    "not compared with other policies: too many of this namespace were written or tried in a short time; see the "
    "policy's status"
)
_NOT_COMPARED: Final = (
    "not compared with other policies: the webhook could not read them and their Clusters; see the policy's status"
)

_LOG: Final = logging.getLogger(__name__)


class ComparisonLimiter:
    """Limits how many comparisons a caller that is not verified learns from: for each namespace, and in all."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` is monotonic seconds."""
        self._clients = RateLimiter(
            burst=COMPARISONS_OF_CLIENT, per_second=_COMPARISONS_OF_CLIENT_PER_SECOND, clock=clock
        )
        self._namespaces = RateLimiter(burst=COMPARISONS, per_second=_COMPARISONS_PER_SECOND, clock=clock)

    def may_ask(self, client: str) -> bool:
        """Tell whether a caller has any comparison left; takes none."""
        return self._clients.has_token(client)

    def take(self, client: str, namespace: str) -> bool:
        """Take a comparison with what is in a namespace; False where there is none left."""
        return (
            self._clients.has_token(client)
            and self._namespaces.take((client, namespace))
            and self._clients.take(client)
        )


class PolicyReviewer:
    """Reads reviews of NodeAttestationPolicies."""

    log_message: ClassVar[str] = "policy review"

    def __init__(self, reader: FactReader, *, is_unlabelled: bool, comparisons: ComparisonLimiter | None) -> None:
        """``is_unlabelled``: the policies' namespaces do not have the label.

        ``comparisons`` limits them for each caller; None where callers are verified.
        """
        self.reader = reader
        self._is_unlabelled = is_unlabelled
        self._comparisons = comparisons

    def read(self, content: bytes) -> _PolicyReview:
        """Read a review, and decide where no facts are needed; raises ``Denied``."""
        question = admission_review.parse(content)
        if not self.reader.concerns(question.namespace):
            return _PolicyReview(self.reader, question, None, None, self._comparisons)
        sections = len(content) <= MAX_SECTIONS
        change = policy_change(question, is_unlabelled=self._is_unlabelled, sections=sections)
        settled = Allow(AdmissionOutcome.UNCONCERNED) if change is None else decide_alone(change)
        return _PolicyReview(self.reader, question, change, settled, self._comparisons)


@dataclass(frozen=True, slots=True)
class _PolicyReview:
    """One that was read."""

    reader: FactReader
    question: AdmissionReview
    change: PolicyChange | None
    """None: nothing that we check."""
    settled: Verdict | None
    """What needs no facts."""
    comparisons: ComparisonLimiter | None

    async def verdict(self, client: str, deadline: float) -> Verdict | Unable:
        """Decide, beside others where they matter."""
        change = self.change
        if self.settled is not None or change is None:
            return self.settled or Allow(AdmissionOutcome.UNCONCERNED)
        limiter = self.comparisons
        too_many = Allow(AdmissionOutcome.UNAVAILABLE, (*label_warning(change), _TOO_MANY))
        if limiter is not None and not limiter.may_ask(client):
            return too_many
        try:
            async with asyncio.timeout_at(deadline):
                found = await self.reader.beside(change.namespace, change.name)
                if found is not None:
                    # Where there is nothing to compare with, nothing is learnt and no bucket is kept: namespaces that
                    # do not exist cannot push out the bucket of one that does.
                    tells = bool(found.policies and found.clusters)
                    if limiter is not None and tells and not limiter.take(client, change.namespace):
                        return too_many
                    return await decide_beside(change, found)
        except (ApiError, TimeoutError) as error:
            _LOG.warning("cannot compare a policy with others", extra=fields(error=str(error) or "too late"))
        return Allow(AdmissionOutcome.UNAVAILABLE, (*label_warning(change), _NOT_COMPARED))
