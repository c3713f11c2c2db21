"""Reviews NodeAttestationPolicies on their way into the API server. Pure.

An update that makes nothing worse passes, so that what is wrong can be repaired in steps.
Out of scope: other policies that select the same Clusters. The policy's status names them (``policy_status``).
"""

from __future__ import annotations

from typing import ClassVar, Final

from nodeattest_controller.controllers.bootstrap_config import admission_review
from nodeattest_controller.controllers.bootstrap_config.admission_review import AdmissionReview, Operation
from nodeattest_controller.controllers.bootstrap_config.config_reviewer import ReadReview, Reviewer
from nodeattest_controller.controllers.bootstrap_config.decide import AdmissionOutcome, Allow, Refuse, Verdict
from nodeattest_controller.model.webhook_configuration import EXPECTED, label_command, needs_webhook
from nodeattest_controller.verification.policy_validation import flaw_of
from nodeattest_parsing.objects import mapping
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason

PATH: Final = "/validate-policy"
UNLABELLED_PATH: Final = "/validate-policy-of-unlabelled-namespace"
"""API servers call this path for a namespace without the webhook's label, so the webhook need not read it."""
MAX_SECTIONS: Final = 32 << 10
"""Bytes of a review whose providers' sections are checked. Providers cache the certificates of a section, and whoever
reaches the port can send one."""
_GROUP: Final = "attestation.cluster.x-k8s.io"
_KIND: Final = "NodeAttestationPolicy"
_LEFT: Final = "left as it was before:"
_NOT_RENDERED: Final = "new machines join without attestation, or not at all:"


class PolicyReviewer(Reviewer):
    """Reads reviews of NodeAttestationPolicies."""

    log_message: ClassVar[str] = "policy review"

    def __init__(self, watch_namespace: str | None, *, is_unlabelled: bool) -> None:
        """``is_unlabelled``: the policies' namespaces do not have the webhook's label."""
        self._watch_namespace = watch_namespace
        self._is_unlabelled = is_unlabelled

    def read(self, content: bytes) -> ReadReview:
        """Read a review and decide; raises ``Denied``."""
        question = admission_review.parse(content)
        if self._watch_namespace not in {None, question.namespace}:  # another controller serves it
            return ReadReview(question, Allow(AdmissionOutcome.UNCONCERNED))
        sections = len(content) <= MAX_SECTIONS
        return ReadReview(question, decide(question, is_unlabelled=self._is_unlabelled, sections=sections))


def decide(question: AdmissionReview, *, is_unlabelled: bool = False, sections: bool = True) -> Verdict:
    """Decide on a policy; ``sections``: whether providers check theirs.

    1. Only a new spec of a policy that is not being deleted is reviewed. 2. What is invalid, and was not before, is
    refused. 3. So is a policy that comes to enforce where nothing is rendered; one that enforced before passes with a
    warning.
    """
    after, before = question.target, question.before if question.operation is Operation.UPDATE else None
    # 1
    named = (question.group, question.kind) == (_GROUP, _KIND) and question.operation is not None
    unchanged = before is not None and before.get("spec") == after.get("spec")
    if not named or unchanged or "deletionTimestamp" in mapping(after, "metadata"):
        return Allow(AdmissionOutcome.UNCONCERNED)
    # 2
    flaw = flaw_of(after, sections=sections)
    if flaw is not None and (before is None or flaw_of(before, sections=sections) is None):
        return Refuse(flaw, public=_explain(flaw))
    # 3
    unlabelled = _unlabelled(question.namespace, after) if is_unlabelled else None
    if unlabelled is not None and not needs_webhook(before):
        return Refuse(unlabelled, public=_explain(unlabelled))
    warnings = () if unlabelled is None else (f"{_NOT_RENDERED} {_explain(unlabelled)}",)
    if flaw is None:
        return Allow(AdmissionOutcome.ACCEPTED, warnings)
    return Allow(AdmissionOutcome.LEFT, (*warnings, _LEFT), flaw, public=_explain(flaw))


def _unlabelled(namespace: str, policy: JsonObject) -> Denied | None:
    """Return what is wrong with a policy that enforces in a namespace without the label."""
    if not needs_webhook(policy):
        return None
    return Denied(Reason.POLICY_INVALID, expected=EXPECTED, got="one without", remedy=label_command(namespace))


def _explain(flaw: Denied) -> str:
    """Describe what is wrong with the caller's own object, without the reason."""
    return f"expected {flaw.expected}, got {flaw.got}; {flaw.remedy}"
