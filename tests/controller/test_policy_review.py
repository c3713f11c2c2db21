"""What the webhook makes of a policy that is being written."""

from __future__ import annotations

import json

import pytest
from bootstrap_config_kit import alone, answer_of, handled, review

from nodeattest_controller.controllers.bootstrap_config import admission_review
from nodeattest_controller.controllers.bootstrap_config.admission_review import AdmissionOutcome, Verdict
from nodeattest_controller.controllers.bootstrap_config.decide import UNLABELLED_PATH, review_policy
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject, JsonValue

API = "attestation.cluster.x-k8s.io/v1alpha1"


def policy(name: str = "metal", env: str = "prod", **spec: JsonValue) -> JsonObject:
    selector: JsonObject = {"matchLabels": {"env": env}} if env else {}
    return {
        "apiVersion": API,
        "kind": "NodeAttestationPolicy",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"clusterSelector": selector, "authorizedAttestors": ["tpm"], **spec},
    }


def verdict(after: JsonObject, before: JsonObject | None = None, *, is_unlabelled: bool = False) -> Verdict:
    asked = json.dumps(review(after, before)).encode()
    return review_policy(admission_review.parse(asked), is_unlabelled=is_unlabelled)


INVALID = policy(certificateLimetime="1h")


@pytest.mark.parametrize(
    ("after", "before", "outcome"),
    [
        (policy(), None, AdmissionOutcome.ACCEPTED),
        (INVALID, None, AdmissionOutcome.DENIED),
        (policy(tpm={"endorsementCAs": ["no PEM"]}), None, AdmissionOutcome.DENIED),
        (INVALID, policy(), AdmissionOutcome.DENIED),
        (INVALID, policy(certificateLifetime="9s"), AdmissionOutcome.LEFT),
        (policy(), INVALID, AdmissionOutcome.ACCEPTED),
    ],
    ids=["valid", "a mistyped field", "a provider's section", "made invalid", "invalid before", "repaired"],
)
def test_what_is_invalid_and_was_not_before_is_refused(
    after: JsonObject, before: JsonObject | None, outcome: AdmissionOutcome
) -> None:
    assert verdict(after, before).outcome is outcome


@pytest.mark.parametrize(
    ("after", "before", "outcome"),
    [
        (policy(), None, AdmissionOutcome.DENIED),
        (policy(enforcement="Enforce"), None, AdmissionOutcome.DENIED),
        (policy(enforcement="Audit"), None, AdmissionOutcome.ACCEPTED),
        (policy(), policy(enforcement="Audit"), AdmissionOutcome.DENIED),
        (policy(certificateLifetime="24h"), policy(), AdmissionOutcome.ACCEPTED),
        (policy(enforcement="Audit"), policy(), AdmissionOutcome.ACCEPTED),
    ],
    ids=["by default", "created", "an audit", "that comes to enforce", "enforced before", "that comes to audit"],
)
def test_where_the_namespace_has_no_label_no_policy_comes_to_enforce(
    after: JsonObject, before: JsonObject | None, outcome: AdmissionOutcome
) -> None:
    found = verdict(after, before, is_unlabelled=True)
    assert found.outcome is outcome
    if found.denied is not None:
        remedy = "kubectl label namespace default attestation.cluster.x-k8s.io/bootstrap-config=enabled"
        assert str(found.denied).endswith(remedy)
        assert found.public.endswith(remedy)


async def test_an_api_server_says_by_the_path_that_the_namespace_has_no_label() -> None:
    async with alone() as handler:
        asked = json.dumps(review(policy())).encode()
        reply = await handled(handler, "client", asked, path=UNLABELLED_PATH)
    refused = answer_of(reply.body)
    assert (refused["allowed"], text(refused, "status", "reason")) == (False, "PolicyInvalid")
    assert "kubectl label namespace default" in text(refused, "status", "message")
