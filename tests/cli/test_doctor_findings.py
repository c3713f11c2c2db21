"""``nodeattest doctor``: a healthy installation is ok in every finding, and what is spoilt turns exactly its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest
from health_facts import (
    BLUE,
    attestation,
    binding,
    config,
    deployment,
    healthy_facts,
    lease,
    machine,
    policy,
    webhook,
)

from nodeattest_cli.doctor.command import examine
from nodeattest_cli.doctor.facts import (
    SECRET_LIMIT_RESOURCES,
    HealthFacts,
    MoveFacts,
    TrialRefusal,
    Unread,
)
from nodeattest_cli.doctor.installation import minor_version
from nodeattest_cli.doctor.model import GROUPS, HealthSeverity, exit_code
from nodeattest_controller import manifests
from nodeattest_controller.controllers.auto_approval.permissions import NODE_CLIENT_ROLE
from nodeattest_controller.model.webhook_configuration import LABEL
from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.values import JsonObject, JsonValue

ERROR, WARNING, UNKNOWN = HealthSeverity.ERROR, HealthSeverity.WARNING, HealthSeverity.UNKNOWN
DOCS = Path(__file__).parents[2] / "docs" / "monitor.md"
Spoil = Callable[[HealthFacts], None]
NOT_ALLOWED = Unread("403 Forbidden: cannot list")


def management(**fields: object) -> Spoil:
    def spoil(facts: HealthFacts) -> None:
        facts.management = replace(facts.management, **fields)  # pyright: ignore[reportArgumentType] - real fields

    return spoil


def workload(**fields: object) -> Spoil:
    def spoil(facts: HealthFacts) -> None:
        facts.workloads = {BLUE: replace(facts.workloads[BLUE], **fields)}  # pyright: ignore[reportArgumentType] - real fields

    return spoil


def definition(name: str, change: Callable[[JsonObject], JsonObject | None]) -> Spoil:
    def spoil(facts: HealthFacts) -> None:
        known = dict(facts.management.definitions)
        known[f"{name}.attestation.cluster.x-k8s.io"] = change(
            cast("JsonObject", known[f"{name}.attestation.cluster.x-k8s.io"])
        )
        facts.management.definitions = known

    return spoil


def another_schema(one: JsonObject) -> JsonObject:
    [version] = items(one, "spec", "versions")
    mapping(version, "schema", "openAPIV3Schema", "properties", "spec")["description"] = "older"
    return one


def without(verb: str, resource: str, whose: str) -> Spoil:
    def spoil(facts: HealthFacts) -> None:
        holder = facts.management if whose == "management" else facts.workloads[BLUE]
        assert not isinstance(holder.reviews, Unread)
        lacking = {right for right in holder.reviews if (right.verb, right.resource) == (verb, resource)}
        assert lacking
        holder.reviews = {right: right not in lacking for right in holder.reviews}

    return spoil


def policy_status(**status: JsonValue) -> Spoil:
    found = policy()
    mapping(found, "status").update(status)
    return management(policies=[found])


def condition(status: str, reason: str) -> Spoil:
    def spoil(facts: HealthFacts) -> None:
        [said] = items(facts.clusters()[0], "status", "conditions")
        said.update({"status": status, "reason": reason})

    return spoil


def no_cluster(facts: HealthFacts) -> None:
    facts.management.clusters = []
    facts.workloads = {}


def reader(*bindings: JsonObject) -> Spoil:
    own = binding("nodeattest:node-bootstrapper", "system:node-bootstrapper", "system:bootstrappers")
    return workload(bindings=[own, *bindings])


def trial(made: JsonObject | Unread | TrialRefusal) -> Spoil:
    return management(trials={BLUE: made})


def settled(found: JsonObject, *, named: bool = False) -> JsonObject:
    """Return a KubeadmConfig of which bootstrap data was made."""
    if named:
        mapping(found, "spec", "joinConfiguration")["discovery"] = {
            "bootstrapToken": {"token": "abcdef.0123456789abcdef"}
        }
    return {**found, "status": {"initialization": {"dataSecretCreated": True}}}


LEASE = "nodeattest-system/node-attestation-controller"
TOKENS = "system:bootstrappers:kubeadm:default-node-token"
CLAIMED: JsonObject = {
    "type": "NodeAttested",
    "status": "Unknown",
    "message": "no certificate yet; a request that claims this machine was refused at 2026-05-04T11:00:00Z: "
    "TokenNotThisMachines; any holder",
}
CA: JsonObject = {"caBundle": text(items(webhook(), "webhooks")[0], "clientConfig", "caBundle")}
REFUSED: JsonObject = {"kind": "MachineSet", "name": "blue-md", "reason": "PolicyInvalid", "message": "which attestor?"}


def creating_secrets(**limits: JsonObject | Unread | None) -> Spoil:
    """Have the policy ask for Secrets; ``limits`` are found in place of the shipped objects, by kind."""

    def spoil(facts: HealthFacts) -> None:
        found = policy()
        mapping(found, "spec")["challenge"] = {"createSecrets": True}
        facts.management.policies = [found]
        shipped = {text(one, "kind"): one for one in manifests.objects("challenge-secrets")}
        kept = {kind: one for kind, one in shipped.items() if kind in SECRET_LIMIT_RESOURCES}
        facts.management.secret_limits = {**kept, **limits}

    return spoil


def without_validations() -> JsonObject:
    [shipped] = [one for one in manifests.objects("challenge-secrets") if one["kind"] == "ValidatingAdmissionPolicy"]
    mapping(shipped, "spec")["validations"] = []
    return shipped


def moving(namespace: JsonObject | Unread | None, *paused: str) -> Spoil:
    def spoil(facts: HealthFacts) -> None:
        facts.move = MoveFacts(kubeconfig="target", paused=[*paused], namespaces={"fleet": namespace})

    return spoil


LABELED: JsonObject = {"metadata": {"name": "fleet", "labels": {LABEL: "enabled"}}}
SPOILT: dict[str, tuple[Spoil, HealthSeverity, str]] = {
    "an earlier move stopped": (moving(LABELED, "Cluster fleet/blue"), ERROR, "move-source"),
    "a namespace to move to without the label": (moving({"metadata": {"name": "fleet"}}), ERROR, "move-namespace"),
    "an old management cluster": (management(version="v1.30.14"), ERROR, "management-version"),
    "an old workload cluster": (workload(version="v1.30.14"), ERROR, "workload-version"),
    "another contract": (management(cluster_api="v1alpha4"), ERROR, "cluster-api-version"),
    "another controller": (
        management(leases=[lease(version="9.9.9")]),
        WARNING,
        "controller-version",
    ),
    "a definition is missing": (definition("clusterrecords", lambda _one: None), ERROR, "definitions-served"),
    "a definition of another release": (
        definition("machineattestations", another_schema),
        WARNING,
        "definitions-of-release",
    ),
    "the leader is silent": (management(leases=[lease(written=timedelta(seconds=-40))]), ERROR, "controller-leader"),
    "a right is missing": (without("patch", "machines", "management"), ERROR, "management-rights"),
    "a right is missing in the workload cluster": (without("sign", "signers", "workload"), ERROR, "workload-rights"),
    "a limit that limits nothing": (
        creating_secrets(ValidatingAdmissionPolicy=without_validations()),
        ERROR,
        "challenge-secrets-policy",
    ),
    "the webhook is not configured": (management(webhook=None), ERROR, "webhook-configuration"),
    "other rules": (management(webhook=webhook(rules=[])), ERROR, "webhook-configuration"),
    "another Service": (
        management(webhook=webhook(clientConfig={**CA, "service": {"namespace": "x", "name": "y"}})),
        ERROR,
        "webhook-configuration",
    ),
    "the CA has ended": (management(webhook=webhook(until=timedelta(hours=-1))), ERROR, "webhook-ca"),
    "no endpoint": (management(endpoints=[]), ERROR, "webhook-endpoints"),
    "the webhook does not answer": (
        trial(
            TrialRefusal(
                '500 InternalError: failed calling webhook "bootstrap-config.attestation.cluster.x-k8s.io": x509: '
                "certificate has expired"
            )
        ),
        ERROR,
        "webhook-answers",
    ),
    "a policy is invalid": (
        management(policies=[policy("prod", "tpm", "insecure")]),
        ERROR,
        "policies-valid",
    ),
    "a provider is not known": (management(policies=[policy("prod", "tpn")]), WARNING, "policies-providers"),
    "a policy is not looked at yet": (policy_status(observedGeneration=2), WARNING, "policies-accepted"),
    "two policies": (management(policies=[policy("one"), policy("two")]), ERROR, "policies-overlap"),
    "there is no cluster": (no_cluster, WARNING, "clusters-without-policy"),
    "automatic approval is open": (condition("False", "Open"), ERROR, "automatic-approval"),
    "a binding was made again": (
        reader(binding("kubeadm:node-autoapprove-bootstrap", NODE_CLIENT_ROLE, TOKENS)),
        ERROR,
        "automatic-approval",
    ),
    "a machine is about to join without the agent": (
        management(configs=[config("b", rendered=False)]),
        ERROR,
        "bootstrap-data",
    ),
    "a machine's token was never named": (management(configs=[settled(config("b"))]), ERROR, "bootstrap-data"),
    "a configuration was refused": (policy_status(refusedConfigurations=[REFUSED]), WARNING, "bootstrap-refused"),
    "tokens may not ask": (workload(bindings=[]), ERROR, "bootstrap-tokens"),
    "a renewal is refused": (
        management(attestations=[attestation("a", verdict="Denied")]),
        ERROR,
        "machines-attested",
    ),
    "a request that claims a machine is refused": (
        management(
            machines=[machine("a", joined=True), {**machine("b"), "status": {"conditions": [CLAIMED]}}],
        ),
        WARNING,
        "machines-attested",
    ),
    "a node joined without attestation": (
        management(machines=[machine("a", joined=True), machine("b", joined=True)]),
        WARNING,
        "machines-attested",
    ),
    "a certificate has ended": (
        management(attestations=[attestation("a", left=timedelta(minutes=-1))]),
        ERROR,
        "certificates",
    ),
    "this machine's clock is off": (management(ahead=-4000.0), WARNING, "local-clock"),
    "the controller's clock is off": (
        management(leases=[lease(written=timedelta(minutes=7))], earlier_leases={LEASE: ("1", "6")}),
        ERROR,
        "controller-clock",
    ),
    "the workload cluster's clock is a little off": (workload(ahead=-90.0), WARNING, "workload-clock"),
    "a cluster is out of reach": (
        workload(unreached=Unread("no route")),
        UNKNOWN,
        "cluster-reachable, automatic-approval",
    ),
}


def findings(facts: HealthFacts) -> dict[str, HealthSeverity]:
    return {one.id: one.severity for one in examine(facts)}


def test_a_healthy_installation_is_ok_in_every_finding() -> None:
    found = examine(healthy_facts())
    assert [one for one in found if one.severity is not HealthSeverity.OK] == []
    assert exit_code(found) == 0
    told = {one.id: one.found for one in found}
    assert told["clusters-without-policy"] == "fleet/green"
    assert told["machines-attested"] == "1 Attested; 1 NotYetAttested"
    assert told["certificates"] == "the first expires at 2026-05-17T12:00:00Z (a)"


@pytest.mark.parametrize("case", SPOILT)
def test_what_is_spoilt_turns_exactly_its_finding(case: str) -> None:
    spoil, severity, ids = SPOILT[case]
    facts = healthy_facts()
    spoil(facts)
    found = examine(facts)
    wrong = [one for one in found if one.severity is not HealthSeverity.OK]
    assert {one.id for one in wrong} == set(ids.split(", "))
    assert severity in {one.severity for one in wrong}
    assert all(one.remedy and one.found and one.expected for one in wrong)
    assert exit_code(found) == {ERROR: 1, UNKNOWN: 3, WARNING: 0}[min(one.severity for one in wrong)] or len(wrong) > 1


def test_without_the_webhook_and_without_flags_for_it_an_installation_is_whole() -> None:
    facts = healthy_facts()
    plain = [deployment("--webhook-bind-address=0")]
    facts.management = replace(facts.management, webhook=None, validation=None, deployments=plain)
    assert set(findings(facts).values()) == {HealthSeverity.OK}


def selecting(*besides: JsonObject) -> JsonObject:
    found = webhook()
    [one] = items(found, "webhooks")
    expressions = mapping(one, "namespaceSelector")["matchExpressions"]
    assert isinstance(expressions, list)
    expressions += besides
    return found


def test_an_overlay_may_name_the_namespaces_of_all_protected_clusters() -> None:
    facts = healthy_facts()
    own: JsonObject = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["fleet"]}
    management(webhook=selecting(own))(facts)
    assert findings(facts)["webhook-configuration"] is HealthSeverity.OK
    management(webhook=selecting({**own, "values": ["other"]}))(facts)
    assert findings(facts)["webhook-configuration"] is ERROR


def of_first_control_plane() -> JsonObject:
    found = settled(config("b"))
    spec = mapping(found, "spec")
    spec["initConfiguration"] = spec.pop("joinConfiguration")
    return found


@pytest.mark.parametrize("found", [settled(config("b"), named=True), of_first_control_plane()])
def test_a_machine_with_bootstrap_data_may_join_if_its_token_is_named_or_it_needs_none(found: JsonObject) -> None:
    facts = healthy_facts()
    management(configs=[found])(facts)
    assert findings(facts)["bootstrap-data"] is HealthSeverity.OK


def test_nothing_is_said_of_what_could_not_be_read() -> None:
    """No finding is ok by an empty list that stands for a refusal."""
    facts = healthy_facts()
    fields = ("policies", "clusters", "machines", "attestations", "leases", "deployments", "webhook", "reviews")
    facts.management = replace(facts.management, **dict.fromkeys(fields, NOT_ALLOWED))
    facts.management.definitions = dict.fromkeys(facts.management.definitions, NOT_ALLOWED)
    facts.workloads = {}
    fine = {one.id for one in examine(facts) if one.severity is HealthSeverity.OK}
    assert fine == {"management-version", "cluster-api-version", "local-clock"}


def test_a_right_is_asked_for_in_the_namespace_that_the_controller_watches() -> None:
    facts = healthy_facts()
    assert not isinstance(facts.management.reviews, Unread)
    by_name = {str(right): right for right in facts.management.reviews}
    listing = by_name["list machines.cluster.x-k8s.io"]
    attributes = {"verb": "list", "group": "cluster.x-k8s.io", "resource": "machines", "namespace": "fleet"}
    assert listing.attributes("fleet").to_json() == attributes
    own = by_name["update secrets node-attestation-challenge-keys -n nodeattest-system"]
    assert own.attributes("fleet").namespace == own.namespace
    assert by_name["patch machines/status.cluster.x-k8s.io"].subresource == "status"


def test_the_page_has_every_finding_and_no_other() -> None:
    ids: Sequence[str] = [name for group in GROUPS.values() for name in group]
    assert len(ids) == len(set(ids))
    section = DOCS.read_text(encoding="utf-8").partition("\n## Doctor\n")[2].partition("\n## ")[0]
    told = re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE)
    assert told == ids
    spoilt = {name for _, _, names in SPOILT.values() for name in names.split(", ")}
    assert set(ids) == spoilt


@pytest.mark.parametrize(
    ("version", "minor"),
    [
        ("v1.37.2", (1, 37)),
        ("1.37.2", (1, 37)),
        ("v1.37", (1, 37)),
        ("v1.37.7-gke.1026000", (1, 37)),
        ("v1.37+", (1, 37)),
        ("v1.37.0-alpha.1+k3s1", (1, 37)),
        ("", None),
        ("v1", None),
        ("v1.", None),
        ("v1.99999.1", None),
        ("release-1.37", None),
        ("v\u0661.37", None),
    ],
)
def test_the_minor_version_is_read_from_every_form(version: str, minor: tuple[int, int] | None) -> None:
    assert minor_version(version) == minor
