"""What becomes of a bootstrap configuration, by tables: existing machines stay, what is rendered stays rendered."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import cast

import hypothesis
import hypothesis.strategies as st
import jsonpatch
import pytest
from bootstrap_config_kit import (
    CLUSTER,
    agent,
    audit,
    config,
    control_plane,
    enforce,
    made_of,
    review,
    subject,
    versioned,
)

from nodeattest_controller.controllers.bootstrap_config import admission_review
from nodeattest_controller.controllers.bootstrap_config.admission_review import (
    MAX_BODY,
    MAX_VALUES,
    UNCONCERNED,
    AdmissionOutcome,
    Verdict,
    parse,
)
from nodeattest_controller.controllers.bootstrap_config.decide import (
    decide,
    needs_machines,
    needs_no_facts,
    review_policy,
)
from nodeattest_controller.model.policy import Policy
from nodeattest_parsing.objects import items, mapping
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Denied, Reason

MINE: JsonObject = {"path": "/mine", "content": "a"}
YOURS: JsonObject = {"path": "/mine", "content": "b"}
CONFLICT: JsonObject = {"path": "/conflict"}
MADE: JsonObject = {"dataSecretName": "prod-md-0", "initialization": {"dataSecretCreated": True}}
BY_CONTROL_PLANE: JsonObject = {"cluster.x-k8s.io/cluster-name": "prod", "cluster.x-k8s.io/control-plane": ""}


@dataclass(frozen=True)
class Case:
    """One creation, or update of ``before``; ``files``: what the configuration holds at the end."""

    after: JsonObject
    outcome: AdmissionOutcome
    files: list[JsonObject]
    before: JsonObject | None = None
    warns: str = ""
    policy: Policy = field(default_factory=enforce)
    machines: bool = False


def spec_of(whole: JsonObject) -> JsonObject:
    spec = mapping(whole, "spec")
    return mapping(spec, "kubeadmConfigSpec") or spec


def result(case: Case) -> tuple[AdmissionOutcome, list[JsonObject], str]:
    """Decide as the reviewer does, and do what it says."""
    after, before = subject(case.after), subject(case.before) if case.before else None
    has_machines = needs_machines(after, before) and case.machines
    verdict = needs_no_facts(after, before) or decide(
        after, before, policy=case.policy, cluster=CLUSTER, has_machines=has_machines, render=versioned
    )
    if not verdict.passes:
        return verdict.outcome, [], verdict.message(is_verified=True)
    stored = made_of(case.after, verdict.patch)
    return verdict.outcome, items(spec_of(stored), "files"), " ".join(verdict.all_warnings(is_verified=True))


def pooled(*files: JsonObject) -> JsonObject:
    whole = config(*files)
    owner: JsonObject = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachinePool", "name": "pool"}
    return {**whole, "metadata": {**mapping(whole, "metadata"), "ownerReferences": [owner]}}


def scaled(*files: JsonObject, **spec: JsonValue) -> JsonObject:
    return control_plane(*files, replicas=3, spec=spec)


R, U, L, A = (
    AdmissionOutcome.RENDERED,
    AdmissionOutcome.UNCHANGED,
    AdmissionOutcome.LEFT,
    AdmissionOutcome.AUDITED,
)
D, N = AdmissionOutcome.DENIED, AdmissionOutcome.UNCONCERNED
LATE, AT_ONCE = "from before its policy", {"after": "2026-01-01T00:00:00Z"}
CREATIONS = {
    "a worker's": Case(config(MINE), R, [MINE, agent()]),
    "a clone of a template that another version rendered": Case(config(agent(7)), R, [agent()]),
    "a control plane": Case(control_plane(MINE), R, [MINE, agent()]),
    "of a rendered control plane": Case(config(agent(), labels=BY_CONTROL_PLANE), U, [agent()]),
    "of one rendered by another version": Case(config(agent(7), labels=BY_CONTROL_PLANE), U, [agent(7)]),
    "of one that is not": Case(
        config(MINE, labels=BY_CONTROL_PLANE), L, [MINE], warns="KubeadmControlPlane is not rendered"
    ),
    "audited": Case(config(MINE), A, [MINE], policy=audit(), warns="set enforcement to Enforce"),
    "audited, would be refused": Case(config(CONFLICT), A, [CONFLICT], policy=audit(), warns="would refuse"),
    "refused": Case(config(CONFLICT), D, [], warns="expected no /conflict, got /conflict; remove it"),
}
RENDERED = {
    "the token is written": Case(config(agent(), token="t"), U, [agent()], config(agent())),
    "ours is taken out": Case(config(MINE), R, [MINE, agent()], config(MINE, agent())),
    "that of another version is taken out": Case(config(MINE), R, [MINE, agent(7)], config(MINE, agent(7))),
    "ours is changed": Case(config(agent(9)), R, [agent(7)], config(agent(7))),
    "more is changed": Case(config(YOURS), R, [YOURS, agent()], config(MINE, agent(7))),
    "something else is changed": Case(config(agent(7), verbosity=5), U, [agent(7)], config(agent(7))),
    "git is applied again": Case(scaled(MINE), R, [MINE, agent(7)], scaled(MINE, agent(7))),
    "its own controller writes": Case(scaled(agent(7)), U, [agent(7)], scaled(agent(7))),
    "new machines": Case(scaled(agent(7), version="v1.35.0"), R, [agent()], scaled(agent(7))),
}
UNRENDERED = {
    "it gets its label": Case(config(MINE), R, [MINE, agent()], config(MINE, labels={})),
    "data exist": Case(config(MINE, status=MADE), L, [MINE], config(status=MADE), LATE),
    "the token is written: data exist": Case(config(MINE, token="t"), N, [MINE], config(MINE)),
    "it could not be rendered before": Case(
        config(CONFLICT), L, [CONFLICT], config(CONFLICT, labels={}), "without attestation"
    ),
    "it could not be rendered before, and a pool takes it": Case(
        pooled(CONFLICT), D, [], config(CONFLICT, labels={}), "remove it"
    ),
    "it cannot be rendered any more": Case(config(CONFLICT), D, [], config(MINE), "remove it"),
    "a control plane gets its owner": Case(control_plane(MINE), R, [MINE, agent()], control_plane(MINE)),
    "moved: machines, no status yet": Case(
        control_plane(MINE), L, [MINE], control_plane(MINE), "rollout restart", machines=True
    ),
    "it is scaled": Case(scaled(MINE, replicas=5), N, [MINE], scaled(MINE), machines=True),
    "new machines, v1beta1": Case(
        scaled(MINE, rolloutAfter="2026-01-01T00:00:00Z"), R, [MINE, agent()], scaled(MINE), machines=True
    ),
    "new machines, v1beta2": Case(scaled(MINE, rollout={**AT_ONCE}), R, [MINE, agent()], scaled(MINE), machines=True),
    "a new version": Case(scaled(MINE, version="v1.35.0"), R, [MINE, agent()], scaled(MINE), machines=True),
    "changed, which rolls it out": Case(scaled(YOURS), R, [YOURS, agent()], scaled(MINE), machines=True),
}
CASES = CREATIONS | RENDERED | UNRENDERED


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_becomes_of(case: Case) -> None:
    outcome, files, said = result(case)
    assert (outcome, files) == (case.outcome, case.files)
    assert case.warns in said
    assert bool(said) == bool(case.warns)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.outcome in {R, U}])
def test_what_was_decided_once_is_decided_again(name: str) -> None:
    """An API server may ask twice (reinvocationPolicy IfNeeded), and two versions of us may answer."""
    case = CASES[name]
    own: JsonObject = {**spec_of(case.after), "files": [*case.files]}
    spec: JsonObject = mapping(case.after, "spec")
    spec = {**spec, "kubeadmConfigSpec": own} if "kubeadmConfigSpec" in spec else own
    outcome, files, said = result(Case({**case.after, "spec": spec}, U, [], case.before, machines=case.machines))
    assert (files, said) == (case.files, "")
    assert outcome in {R, U}


def test_an_object_that_is_being_deleted_always_passes() -> None:
    gone = config(CONFLICT)
    gone["metadata"] = {**mapping(gone, "metadata"), "deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert needs_no_facts(subject(gone), subject(config(MINE))) == UNCONCERNED


# Policies


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
    return review_policy(parse(asked), is_unlabelled=is_unlabelled)


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
        (INVALID, INVALID, N),
        ({**INVALID, "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, policy(), N),
    ],
    ids=["valid", "mistyped", "a provider's section", "made invalid", "invalid before", "repaired", "same", "deleted"],
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


# AdmissionReviews and JSON patches

SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "b"])
KEYS = st.sampled_from(["a", "b/c", "d~e", "~1", ""])
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))
OBJECTS = cast("st.SearchStrategy[JsonObject]", st.dictionaries(KEYS, VALUES, max_size=4))


def encoded(**request: JsonValue) -> bytes:
    return json.dumps(review(config(), **request)).encode()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "a JSON object"),
        (b"{}", "AdmissionReview of admission.k8s.io/v1"),
        (json.dumps({**review(config()), "request": None}).encode(), "request.uid"),
        (encoded(uid=""), "request.uid"),
        (encoded(uid="a\nb"), "request.uid"),
        (encoded(operation=None), "request.operation"),
        (encoded(object=None), "request.object: an object, for CREATE"),
        (encoded(operation="UPDATE"), "request.oldObject: an object, for UPDATE"),
        (encoded(kind={}), "request.kind.kind"),
        (b" " * (MAX_BODY + 1), f"at most {MAX_BODY} bytes"),
        (b"[" + b"0," * MAX_VALUES + b"0]", f"at most {MAX_VALUES} values"),
        (encoded().replace(b'"operation"', b'"operation": "DELETE", "operation"', 1), "a JSON object: each key once"),
    ],
)
def test_what_is_no_question_is_refused_in_words(body: bytes, expected: str) -> None:
    with pytest.raises(Denied, match=f"expected ({expected})") as refusal:
        parse(body)
    assert refusal.value.reason is Reason.ADMISSION_REVIEW_MALFORMED


@pytest.mark.parametrize(
    "request_", [{"operation": "DELETE", "object": None}, {"operation": "CONNECT"}, {"subResource": "status"}]
)
def test_what_is_no_business_of_ours_is_answerable_all_the_same(request_: dict[str, JsonValue]) -> None:
    assert parse(encoded(**request_)).operation is None


@hypothesis.given(st.binary(max_size=200) | OBJECTS.map(lambda value: json.dumps(review(config(), **value)).encode()))
def test_any_bytes_are_a_question_or_refused(body: bytes) -> None:
    with contextlib.suppress(Denied):
        assert parse(body).uid


@hypothesis.given(OBJECTS, OBJECTS)
def test_a_patch_makes_one_object_of_the_other(before: JsonObject, after: JsonObject) -> None:
    operations = admission_review.patch(before, after)
    made = jsonpatch.apply_patch(before, operations)
    assert not admission_review.paths(made, after)
    assert json.dumps(made, sort_keys=True) == json.dumps(after, sort_keys=True)
    assert bool(operations) == bool(admission_review.paths(before, after))


def test_true_is_not_one() -> None:
    assert admission_review.paths({"a": [True]}, {"a": [1]}) == {("a",)}


def test_paths_touch_where_one_leads_to_the_other() -> None:
    discovery, join = frozenset({("join", "discovery", "token")}), frozenset({("join",)})
    assert admission_review.touch_each_other(discovery, join)
    assert admission_review.touch_each_other(join, discovery)
    assert not admission_review.touch_each_other(discovery, frozenset({("join", "nodeRegistration"), ("files",)}))
