"""What becomes of a bootstrap configuration, by tables: existing machines stay, what is rendered stays rendered."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from bootstrap_config_kit import CLUSTER, Versioned, agent, audit, config, control_plane, enforce, made_of, subject

from nodeattest_controller.controllers.bootstrap_config.decide import (
    AdmissionOutcome,
    Allow,
    Change,
    Refuse,
    decide,
    needs_machines,
    needs_names,
    needs_no_facts,
    refuse_unnamed,
)
from nodeattest_controller.model.policy import Policy
from nodeattest_parsing.objects import items, mapping
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Reason

MINE: JsonObject = {"path": "/mine", "content": "a"}
YOURS: JsonObject = {"path": "/mine", "content": "b"}
CONFLICT: JsonObject = {"path": "/conflict"}
MADE: JsonObject = {"dataSecretName": "prod-md-0", "initialization": {"dataSecretCreated": True}}
BY_CONTROL_PLANE: JsonObject = {
    "cluster.x-k8s.io/cluster-name": "prod",
    "cluster.x-k8s.io/control-plane": "",
}


@dataclass(frozen=True)
class Case:
    """One update or creation; ``files``: what the configuration holds at the end."""

    what: str
    after: JsonObject
    outcome: AdmissionOutcome
    files: list[JsonObject]
    before: JsonObject | None = None
    machines: bool = False
    policy: Policy = field(default_factory=enforce)
    warns: str = ""
    version: int = 1


def spec_of(whole: JsonObject) -> JsonObject:
    spec = mapping(whole, "spec")
    return mapping(spec, "kubeadmConfigSpec") or spec


def result(case: Case) -> tuple[AdmissionOutcome, list[JsonObject], tuple[str, ...]]:
    """Decide as the service does, and do what it says."""
    renderer = Versioned(case.version)
    after, before = subject(case.after), subject(case.before) if case.before else None
    verdict = needs_no_facts(after, before, renderer) or decide(
        after,
        before,
        policy=case.policy,
        cluster=CLUSTER,
        has_machines=needs_machines(after, before, renderer) and case.machines,
        renderer=renderer,
    )
    if isinstance(verdict, Refuse):
        return verdict.outcome, [], (str(verdict.denied),)
    stored = made_of(case.after, verdict.patch) if isinstance(verdict, Change) else case.after
    return verdict.outcome, items(spec_of(stored), "files"), () if isinstance(verdict, Change) else verdict.warnings


R, U, L = AdmissionOutcome.RENDERED, AdmissionOutcome.UNCHANGED, AdmissionOutcome.LEFT
CASES = [
    Case("a worker's is made", config(MINE), R, [MINE, agent()]),
    Case(
        "its clone of a template that another version rendered",
        config(agent(7)),
        R,
        [agent()],
    ),
    Case("a control plane is made", control_plane(MINE), R, [MINE, agent()]),
    Case(
        "a control plane's machine's, of a rendered one",
        config(agent(), labels=BY_CONTROL_PLANE),
        U,
        [agent()],
    ),
    Case(
        "a control plane's machine's, of one rendered by another version: it must stay as its control plane is",
        config(agent(7), labels=BY_CONTROL_PLANE),
        U,
        [agent(7)],
    ),
    Case(
        "a control plane's machine's, of one that is not rendered",
        config(MINE, labels=BY_CONTROL_PLANE),
        L,
        [MINE],
        warns="KubeadmControlPlane is not rendered",
    ),
    Case("audited", config(MINE), AdmissionOutcome.AUDITED, [MINE], policy=audit(), warns="set enforcement to Enforce"),
    Case(
        "audited, and would be refused",
        config(CONFLICT),
        AdmissionOutcome.AUDITED,
        [CONFLICT],
        policy=audit(),
        warns="would refuse",
    ),
    Case(
        "refused",
        config(CONFLICT),
        AdmissionOutcome.DENIED,
        [],
        warns="expected no /conflict, got /conflict; remove it",
    ),
    # Updates of a configuration that is rendered
    Case("the token is written", config(agent(), token="t"), U, [agent()], before=config(agent())),
    Case("ours is taken out", config(MINE), R, [MINE, agent()], before=config(MINE, agent())),
    Case(
        "ours of another version is taken out: it is put back as it was",
        config(MINE),
        R,
        [MINE, agent(7)],
        before=config(MINE, agent(7)),
    ),
    Case("more is changed", config(YOURS), R, [YOURS, agent()], before=config(MINE, agent(7))),
    Case("something else is changed", config(agent(7), verbosity=5), U, [agent(7)], before=config(agent(7))),
    # Updates of a configuration that is not
    Case("it gets its label", config(MINE), R, [MINE, agent()], before=config(MINE, labels={})),
    Case(
        "data are made of it",
        config(MINE, status=MADE),
        L,
        [MINE],
        before=config(status=MADE),
        warns="from before its policy",
    ),
    Case(
        "the token is written, because data were made of it",
        config(MINE, token="t"),
        AdmissionOutcome.UNCONCERNED,
        [MINE],
        before=config(MINE),
    ),
    Case(
        "it cannot be rendered, which is not its updater's doing",
        config(CONFLICT),
        L,
        [CONFLICT],
        before=config(CONFLICT, labels={}),
        warns="without attestation",
    ),
    Case(
        "it is changed so that it cannot be rendered",
        config(CONFLICT),
        AdmissionOutcome.DENIED,
        [],
        before=config(MINE),
        warns="remove it",
    ),
    # Updates of a control plane that is not rendered
    Case(
        "a control plane without machines gets its owner",
        control_plane(MINE),
        R,
        [MINE, agent()],
        before=control_plane(MINE),
    ),
    Case(
        "a control plane that was moved: machines, and no status yet",
        control_plane(MINE),
        L,
        [MINE],
        before=control_plane(MINE),
        machines=True,
        warns="rollout restart",
    ),
    Case(
        "a control plane with machines is scaled",
        control_plane(MINE, replicas=3, spec={"replicas": 5}),
        AdmissionOutcome.UNCONCERNED,
        [MINE],
        before=control_plane(MINE, replicas=3),
        machines=True,
    ),
    Case(
        "new machines are asked for, v1beta1",
        control_plane(MINE, replicas=3, spec={"rolloutAfter": "2026-01-01T00:00:00Z"}),
        R,
        [MINE, agent()],
        before=control_plane(MINE, replicas=3),
        machines=True,
    ),
    Case(
        "new machines are asked for, v1beta2",
        control_plane(MINE, replicas=3, spec={"rollout": {"after": "2026-01-01T00:00:00Z"}}),
        R,
        [MINE, agent()],
        before=control_plane(MINE, replicas=3),
        machines=True,
    ),
    Case(
        "a new Kubernetes version",
        control_plane(MINE, replicas=3, spec={"version": "v1.35.0"}),
        R,
        [MINE, agent()],
        before=control_plane(MINE, replicas=3),
        machines=True,
    ),
    Case(
        "its configuration is changed, which rolls it out",
        control_plane(YOURS, replicas=3),
        R,
        [YOURS, agent()],
        before=control_plane(MINE, replicas=3),
        machines=True,
    ),
    # Updates of a control plane that is rendered
    Case(
        "git is applied again over one that another version rendered: nothing rolls out",
        control_plane(MINE, replicas=3),
        R,
        [MINE, agent(7)],
        before=control_plane(MINE, agent(7), replicas=3),
        machines=True,
    ),
    Case(
        "its own controller writes",
        control_plane(agent(7), replicas=3),
        U,
        [agent(7)],
        before=control_plane(agent(7), replicas=3),
        machines=True,
    ),
    Case(
        "new machines are asked for: they get what is rendered now",
        control_plane(agent(7), replicas=3, spec={"version": "v1.35.0"}),
        R,
        [agent()],
        before=control_plane(agent(7), replicas=3),
        machines=True,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_what_becomes_of(case: Case) -> None:
    outcome, files, warnings = result(case)
    assert (outcome, files) == (case.outcome, case.files)
    assert case.warns in " ".join(warnings)
    assert bool(warnings) == bool(case.warns)


@pytest.mark.parametrize("case", [case for case in CASES if case.outcome in {R, U}], ids=lambda case: case.what)
def test_what_was_decided_once_is_decided_again(case: Case) -> None:
    """An API server may ask twice (reinvocationPolicy IfNeeded), and two versions of us may answer."""
    _, files, _ = result(case)
    again: JsonObject = {**case.after, "spec": _with_files(case.after, files)}
    outcome, same, warnings = result(Case(case.what, again, U, files, case.before, case.machines))
    assert (same, warnings) == (files, ())
    assert outcome in {R, U}


def _with_files(whole: JsonObject, files: list[JsonObject]) -> JsonObject:
    spec = mapping(whole, "spec")
    if "kubeadmConfigSpec" in spec:
        return {**spec, "kubeadmConfigSpec": {**mapping(spec, "kubeadmConfigSpec"), "files": [*files]}}
    return {**spec, "files": [*files]}


def test_what_is_going_away_is_never_held_up() -> None:
    gone = config(CONFLICT)
    gone["metadata"] = {**mapping(gone, "metadata"), "deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert needs_no_facts(subject(gone), subject(config(MINE)), Versioned()) == Allow(AdmissionOutcome.UNCONCERNED)


# MachinePools


def pooled(*, named: bool = False, status: JsonObject | None = None) -> JsonObject:
    """The configuration of a MachinePool, as Cluster API's controller makes it the pool's."""
    whole = config(MINE, status=status, named=named) if named else config(MINE, status=status)
    owner: JsonObject = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachinePool", "name": "pool"}
    whole["metadata"] = {**mapping(whole, "metadata"), "ownerReferences": [owner]}
    return whole


def unnamed(after: JsonObject, before: JsonObject | None = None) -> bool:
    then = subject(before) if before else None
    return needs_names(subject(after), then, policy=enforce(), cluster=CLUSTER, renderer=Versioned())


def test_a_configuration_is_asked_for_names_when_it_becomes_a_pools_and_at_no_other_time() -> None:
    assert unnamed(pooled())
    assert unnamed(pooled(), config(MINE, labels={}))
    assert not unnamed(pooled(named=True))
    assert not unnamed(pooled(), pooled())
    assert not unnamed(config(MINE))
    assert not unnamed(pooled(status=MADE), config(MINE, status=MADE))


def test_a_pool_whose_instances_could_never_join_is_refused_and_only_told_of_in_audit() -> None:
    verdict = refuse_unnamed(subject(pooled()), enforce())
    assert isinstance(verdict, Refuse)
    assert verdict.denied.reason is Reason.BOOTSTRAP_CONFIG_REFUSED
    assert "spec.tpm.endorsementKeys" in verdict.denied.remedy
    audited = refuse_unnamed(subject(pooled()), audit())
    assert isinstance(audited, Allow)
    assert "would refuse this" in audited.warnings[0]
