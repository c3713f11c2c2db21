"""Reviews of NodeAttestationPolicies: reads them, and compares them with the policies and Clusters beside them.

Promises: a policy that cannot be compared passes with a warning, because the controller's own rule for several policies
holds without it (ADR 40); nothing is written. Of a namespace that is not watched any policy passes: others serve it.
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

__all__ = ["COMPARISONS", "MAX_SECTIONS", "PATH", "UNLABELLED_PATH", "PolicyReviewer", "comparison_limiter"]

PATH: Final = "/validate-policy"
UNLABELLED_PATH: Final = "/validate-policy-of-unlabelled-namespace"
"""By the path an API server says whether a namespace has the label: it knows, and the webhook need not read it."""
MAX_SECTIONS: Final = 32 << 10
"""Bytes of a review whose providers' sections are checked: providers keep the certificates that they read in a section,
and whoever reaches the port can send one."""
COMPARISONS: Final = 20
"""Policies of one namespace that are compared for a caller that is not verified, by its address; then one every so
often: whether a made-up selector overlaps tells which labels Clusters have."""
_COMPARISONS_PER_SECOND: Final = 10 / 60
_TOO_MANY: Final = (
    "not compared with other policies: too many of this namespace were written or tried in a short time; see the "
    "policy's status"
)
_NOT_COMPARED: Final = (
    "not compared with other policies: the webhook could not read them and their Clusters; see the policy's status"
)

_LOG: Final = logging.getLogger(__name__)


def comparison_limiter(clock: Callable[[], float]) -> RateLimiter:
    """Make the limiter of callers that are not verified."""
    return RateLimiter(burst=COMPARISONS, per_second=_COMPARISONS_PER_SECOND, clock=clock)


class PolicyReviewer:
    """Reads reviews of NodeAttestationPolicies."""

    log_message: ClassVar[str] = "policy review"

    def __init__(self, reader: FactReader, *, is_unlabelled: bool, comparisons: RateLimiter | None) -> None:
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
    comparisons: RateLimiter | None

    async def verdict(self, client: str, deadline: float) -> Verdict | Unable:
        """Decide, beside others where they matter."""
        change = self.change
        if self.settled is not None or change is None:
            return self.settled or Allow(AdmissionOutcome.UNCONCERNED)
        if self.comparisons is not None and not self.comparisons.take((client, change.namespace)):
            return Allow(AdmissionOutcome.UNAVAILABLE, (*label_warning(change), _TOO_MANY))
        try:
            async with asyncio.timeout_at(deadline):
                found = await self.reader.beside(change.namespace, change.name)
                if found is not None:
                    return await decide_beside(change, found)
        except (ApiError, TimeoutError) as error:
            _LOG.warning("cannot compare a policy with others", extra=fields(error=str(error) or "too late"))
        return Allow(AdmissionOutcome.UNAVAILABLE, (*label_warning(change), _NOT_COMPARED))
