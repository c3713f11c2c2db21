"""Reviews NodeAttestationPolicies on their way into the API server. Pure.

An update that makes nothing worse passes, so that what is wrong can be repaired in steps.
Out of scope: other policies that select the same Clusters. The policy's status names them (``policy_status``).
"""

from __future__ import annotations

from typing import Final

from nodeattest_controller.controllers.bootstrap_config.admission_review import AdmissionReview
from nodeattest_controller.controllers.bootstrap_config.verdict import UNCONCERNED, AdmissionOutcome, Verdict
from nodeattest_controller.model.webhook_configuration import EXPECTED, label_command, needs_webhook
from nodeattest_controller.verification.verifiers import flaw_of
from nodeattest_parsing.objects import mapping
from nodeattest_providers.errors import Denied, Reason

PATH: Final = "/validate-policy"
UNLABELLED_PATH: Final = "/validate-policy-of-unlabelled-namespace"
"""API servers call this path for a namespace without the webhook's label, so the webhook need not read it."""
MAX_SECTIONS: Final = 32 << 10
"""Bytes of a review whose providers' sections are checked. Providers cache the certificates of a section, and whoever
reaches the port can send one."""
_KIND: Final = ("attestation.cluster.x-k8s.io", "NodeAttestationPolicy")


def review(question: AdmissionReview, *, is_unlabelled: bool = False, sections: bool = True) -> Verdict:
    """Decide on a policy; ``sections``: whether providers check theirs.

    1. Only a new spec of a policy that is not being deleted is reviewed. 2. What is invalid, and was not before, is
    refused. 3. So is a policy that comes to enforce where nothing is rendered; one that enforced before passes with a
    warning.
    """
    after, before = question.target, question.before
    # 1
    concerns = (question.group, question.kind) == _KIND and question.operation is not None
    unchanged = before is not None and before.get("spec") == after.get("spec")
    if not concerns or unchanged or "deletionTimestamp" in mapping(after, "metadata"):
        return UNCONCERNED
    # 2
    flaw = flaw_of(after, sections=sections)
    if flaw is not None and (before is None or flaw_of(before, sections=sections) is None):
        return Verdict(AdmissionOutcome.DENIED, denied=flaw, public=_explain(flaw))
    # 3
    warnings: tuple[str, ...] = ()
    if is_unlabelled and needs_webhook(after):
        remedy = label_command(question.namespace)
        unlabelled = Denied(Reason.POLICY_INVALID, expected=EXPECTED, got="one without", remedy=remedy)
        if not needs_webhook(before):
            return Verdict(AdmissionOutcome.DENIED, denied=unlabelled, public=_explain(unlabelled))
        warnings = (f"new machines join without attestation, or not at all: {_explain(unlabelled)}",)
    if flaw is None:
        return Verdict(AdmissionOutcome.ACCEPTED, warnings)
    return Verdict(AdmissionOutcome.LEFT, (*warnings, "left as it was before:"), flaw, public=_explain(flaw))


def _explain(flaw: Denied) -> str:
    """Describe what is wrong with the caller's own object, without the reason."""
    return f"expected {flaw.expected}, got {flaw.got}; {flaw.remedy}"
