"""Targets of the admission webhook: AdmissionReviews of untrusted clients."""

from __future__ import annotations

import json
from typing import Final

from fuzz.target import Target, refused, require
from nodeattest_controller.controllers.bootstrap_config import admission_review, policy_reviewer
from nodeattest_controller.controllers.bootstrap_config.subject import subject_of
from nodeattest_controller.controllers.bootstrap_config.verdict import UNCHANGED, UNCONCERNED
from nodeattest_providers.errors import Denied, Reason


def _review(data: bytes) -> bool:
    try:
        asked = admission_review.parse(data)
    except Denied as denied:
        return refused(denied, Reason.ADMISSION_REVIEW_MALFORMED)
    require(asked.operation is not admission_review.Operation.UPDATE or bool(asked.kind), "an update has a kind")
    answer = json.loads(admission_review.answer(asked.uid, UNCHANGED, is_verified=False))
    require(answer["response"]["uid"] == asked.uid, "an answer bears the question's UID")
    whole = subject_of(asked.target, group=asked.group, kind=asked.kind, namespace=asked.namespace, name=asked.name)
    if whole is not None and asked.before is not None:
        before = subject_of(asked.before, group=asked.group, kind=asked.kind, namespace="", name="")
        require(before is not None, "both are of one kind")
        _ = whole.cluster, whole.settled, whole.made_by_control_plane, whole.paused, whole.deleting
        patch = admission_review.patch(asked.before, asked.target)
        require(
            bool(patch) == bool(admission_review.paths(asked.before, asked.target)),
            "a patch where there is a difference",
        )
    return True


def _policy_review(data: bytes) -> bool:
    try:
        verdict = policy_reviewer.review(admission_review.parse(data))
    except Denied as denied:
        return refused(denied, Reason.ADMISSION_REVIEW_MALFORMED)
    if verdict.denied is not None:
        require(verdict.denied.reason is Reason.POLICY_INVALID and bool(verdict.public), "a refusal says why")
    return verdict != UNCONCERNED


TARGETS: Final = (
    Target("admission-review", _review),
    Target("policy-review", _policy_review),
)
