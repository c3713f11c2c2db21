"""What becomes of a NodeAttestationPolicy on its way into the API server. Pure.

Promises: an update that makes nothing worse passes, so that what is wrong can be repaired in steps. No overlap is
refused for a Cluster that is paused: ``clusterctl move`` makes policies and Clusters anew, in any order. What is
invalid, and which policies select a Cluster, is asked of the functions that the controller and ``policy check`` ask.
Leaves to others: reading the other policies and the Clusters (``facts``).
Source: docs/decisions.md.

Reviews of NodeAttestationPolicies: reads them, and compares them with the policies and Clusters beside them.

Promises: a policy that cannot be compared passes with a warning, because the controller's own rule for several policies
holds without it; nothing is written. Of a namespace that is not watched any policy passes: others serve it.
A caller that is not verified learns of few comparisons whether they find an overlap, and so of few labels.
Leaves to others: the verdict (``policy_decide``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from nodeattest_controller.controllers.bootstrap_config import admission_review
from nodeattest_controller.controllers.bootstrap_config.admission_review import AdmissionReview, Operation
from nodeattest_controller.controllers.bootstrap_config.decide import AdmissionOutcome, Allow, Refuse, Unable, Verdict
from nodeattest_controller.controllers.bootstrap_config.facts import FactReader, Neighbours
from nodeattest_controller.logs import fields
from nodeattest_controller.model.objects import items, mapping, strings, text
from nodeattest_controller.model.policy import selecting, selects
from nodeattest_controller.model.webhook_configuration import EXPECTED, label_command, needs_webhook
from nodeattest_controller.verification.policy_validation import flaw_of
from nodeattest_kube.errors import ApiError
from nodeattest_kube.fair_queue import RateLimiter
from nodeattest_kube.store import BATCH, in_batches
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason

MAX_SELECTOR: Final = 10_000
"""Labels and values of a clusterSelector that is compared; the CRD takes 32 expressions of 256 values."""
_GROUP: Final = "attestation.cluster.x-k8s.io"
_KIND: Final = "NodeAttestationPolicy"
_VALUES_OF_STEP: Final = 400
"""Values of a selector that are read in the time of one step of a batch."""
_SHOWN: Final = 4
"""Clusters, and policies beside each, in a message."""
_REMEDY: Final = "narrow the clusterSelectors so that one policy remains"
_LEFT: Final = "left as it was before:"
_NOT_RENDERED: Final = "new machines join without attestation, or not at all:"
_TOO_LARGE: Final = f"not compared with other policies: its clusterSelector has more than {MAX_SELECTOR} values"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChange:
    """A policy whose spec is being written."""

    namespace: str
    name: str
    after: JsonObject = field(repr=False)
    before: JsonObject | None = field(repr=False)
    """None at a creation."""
    flaw: Denied | None
    """What is wrong with it alone."""
    was_flawed: bool
    is_unlabelled: bool
    """Whether its namespace does not say if the webhook renders there."""

    @property
    def selector_size(self) -> int:
        """How many labels and values its selector has."""
        selector = mapping(self.after, "spec", "clusterSelector")
        expressions = items(selector, "matchExpressions")
        values = sum(len(strings(term, "values")) for term in expressions)
        return len(mapping(selector, "matchLabels")) + len(expressions) + values


def policy_change(
    question: AdmissionReview, *, is_unlabelled: bool = False, sections: bool = True
) -> PolicyChange | None:
    """Take the question for a policy whose spec changes and that stays; None for any other.

    ``is_unlabelled`` as in ``PolicyChange``; ``sections``: whether providers are asked about theirs.
    """
    after, before = question.target, question.before if question.operation is Operation.UPDATE else None
    named = (question.group, question.kind) == (_GROUP, _KIND) and question.operation is not None
    if not named or "deletionTimestamp" in mapping(after, "metadata"):
        return None
    if before is not None and before.get("spec") == after.get("spec"):
        return None
    return PolicyChange(
        namespace=question.namespace,
        name=question.name or text(after, "metadata", "name"),
        after=after,
        before=before,
        flaw=flaw_of(after, sections=sections),
        was_flawed=before is not None and flaw_of(before, sections=sections) is not None,
        is_unlabelled=is_unlabelled,
    )


def decide_alone(change: PolicyChange) -> Verdict | None:
    """Decide where no other object matters; None where others do.

    1. What is invalid, and was not before, is refused. 2. So is what comes to enforce where nothing is rendered;
    what enforced there before passes with a warning.
    3. Without another selector no other Cluster is selected.
    """
    # 1
    if change.flaw is not None and not change.was_flawed:
        return Refuse(change.flaw, public=_said(change.flaw))
    # 2
    before = change.before
    unlabelled = _unlabelled(change)
    if unlabelled is not None and not needs_webhook(before):
        return Refuse(unlabelled, public=_said(unlabelled))
    # 3
    if before is not None and _selector(before) == _selector(change.after):
        return _allowed(change)
    if change.selector_size > MAX_SELECTOR:
        return Allow(AdmissionOutcome.UNAVAILABLE, (*label_warning(change), _TOO_LARGE))
    return None


async def decide_beside(change: PolicyChange, neighbours: Neighbours) -> Verdict:
    """Refuse a policy that selects a Cluster which another one selects, unless it did so before."""
    found: list[tuple[str, list[str]]] = []
    steps = 1 + len(neighbours.policies) + change.selector_size // _VALUES_OF_STEP
    async for cluster in in_batches(neighbours.clusters, max(1, BATCH // steps)):
        others = selecting(cluster, neighbours.policies)
        if not others or not selects(change.after, cluster):
            continue
        if change.before is None or not selects(change.before, cluster):
            names = sorted(text(policy, "metadata", "name") for policy in others)
            found.append((text(cluster, "metadata", "name"), names))
    return _overlap(change, found) if found else _allowed(change)


def _overlap(change: PolicyChange, found: Sequence[tuple[str, list[str]]]) -> Verdict:
    shown = "; ".join(f"{cluster} (also {_some(policies)})" for cluster, policies in found[:_SHOWN])
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    denied = Denied(
        Reason.POLICY_INVALID,
        expected="one NodeAttestationPolicy for a Cluster",
        got=f"{change.name} as another one for {shown}{more}",
        remedy=_REMEDY,
    )
    return Refuse(
        denied,
        public=f"expected {denied.expected}, got another one for a Cluster that it selects; compare it with "
        f"kubectl get nodeattestationpolicies -n {change.namespace} -o yaml, and {_REMEDY}",
    )


def _allowed(change: PolicyChange) -> Allow:
    if change.flaw is None:
        return Allow(AdmissionOutcome.ACCEPTED, label_warning(change))
    return Allow(AdmissionOutcome.LEFT, (*label_warning(change), _LEFT), change.flaw, public=_said(change.flaw))


def label_warning(change: PolicyChange) -> tuple[str, ...]:
    """Warn of a policy that enforces where nothing is rendered."""
    unlabelled = _unlabelled(change)
    return () if unlabelled is None else (f"{_NOT_RENDERED} {_said(unlabelled)}",)


def _unlabelled(change: PolicyChange) -> Denied | None:
    """Tell what is wrong where a policy enforces and the namespace has no label."""
    if not change.is_unlabelled or not needs_webhook(change.after):
        return None
    remedy = label_command(change.namespace)
    return Denied(Reason.POLICY_INVALID, expected=EXPECTED, got="one without", remedy=remedy)


def _said(flaw: Denied) -> str:
    """Write what is wrong with the caller's own object, without the reason."""
    return f"expected {flaw.expected}, got {flaw.got}; {flaw.remedy}"


def _selector(policy: JsonObject) -> object:
    return mapping(policy, "spec").get("clusterSelector") or {}


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


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
