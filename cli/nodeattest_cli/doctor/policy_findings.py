"""Policies: valid by every check of ``policy check``, taken by the controller, and one for each cluster. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from nodeattest_cli.doctor.facts import HealthFacts, Unread, readable
from nodeattest_cli.doctor.model import HealthFinding, HealthSeverity, listed
from nodeattest_cli.policies import problems
from nodeattest_controller.controllers.policy_status.decide import READY, PolicyReason
from nodeattest_controller.model.objects import condition, items, mapping, number, strings, text
from nodeattest_controller.verification.policy_validation import installed
from nodeattest_kube.jsontypes import JsonObject, key_of
from nodeattest_providers.names import ProviderName

__all__ = ["IDS", "look"]

IDS: Final = (
    "policies-valid",
    "policies-providers",
    "policies-accepted",
    "policies-overlap",
    "clusters-without-policy",
)
_SEEN_BY_US: Final = frozenset({PolicyReason.INVALID, PolicyReason.CONFLICT})
"""Reasons of the condition that other findings tell with more detail."""


def look(facts: HealthFacts) -> Iterator[HealthFinding]:
    """Look at each policy, and at each cluster's policies."""
    found, clusters = facts.management.policies, facts.management.clusters
    for value, what in ((found, "NodeAttestationPolicies"), (clusters, "Clusters")):
        if isinstance(value, Unread):
            expected = "each cluster has one valid policy, or none"
            yield HealthFinding(
                id="policies-valid",
                severity=HealthSeverity.UNKNOWN,
                expected=expected,
                found=value.why,
                remedy=f"let this user list {what}",
            )
            return
    policies = readable(found)
    yield _valid(policies)
    yield _providers(policies)
    yield _accepted(policies)
    yield from _of_clusters(facts)


def _valid(policies: Sequence[JsonObject]) -> HealthFinding:
    wrong = [
        f"{key_of(one)}: {problem}"
        for one in policies
        for problem in problems(_without_status(one), installed=_named_providers(one))
    ]
    return HealthFinding(
        id="policies-valid",
        severity=HealthSeverity.ERROR if wrong else HealthSeverity.OK,
        expected="every policy is valid",
        found=listed(wrong) or f"{len(policies)} valid",
        remedy="nodeattest policy check -f FILE; until then no node joins under it" if wrong else "",
    )


def _without_status(policy: JsonObject) -> JsonObject:
    """Leave out what the controller writes."""
    return {name: value for name, value in policy.items() if name != "status"}


def _named_providers(policy: JsonObject) -> tuple[str, ...]:
    return (*strings(policy, "spec", "authorizedAttestors"), *strings(policy, "spec", "composite", "allOf"))


def _providers(policies: Sequence[JsonObject]) -> HealthFinding:
    """Report unknown providers; one of others may be installed in the controller and not here."""
    absent = {
        f"{key_of(one)}: {name}"
        for one in policies
        for name in _named_providers(one)
        if installed(ProviderName(name)) is None
    }
    return HealthFinding(
        id="policies-providers",
        severity=HealthSeverity.WARNING if absent else HealthSeverity.OK,
        expected="every provider that a policy names is known here",
        found=listed(sorted(absent)) or "all are",
        remedy="correct the name, unless the controller has it from another package" if absent else "",
    )


def _accepted(policies: Sequence[JsonObject]) -> HealthFinding:
    refused: list[str] = []
    waiting: list[str] = []
    for policy in policies:
        said = condition(items(policy, "status", "conditions"), READY)
        observed, current = number(policy, "status", "observedGeneration"), number(policy, "metadata", "generation")
        if said is None or observed != current:
            waiting.append(key_of(policy))
        elif said.get("status") != "True" and said.get("reason") not in _SEEN_BY_US:
            refused.append(f"{key_of(policy)}: {said.get('reason')}: {said.get('message')}")
    severity = HealthSeverity.ERROR if refused else HealthSeverity.WARNING if waiting else HealthSeverity.OK
    found = refused + ([f"no report on {listed(waiting)} as it is now"] if waiting else [])
    return HealthFinding(
        id="policies-accepted",
        severity=severity,
        expected="the controller has taken every policy as it is now",
        found="; ".join(found) or f"{len(policies)} taken",
        remedy=""
        if severity is HealthSeverity.OK
        else "see the policy's condition Ready, and whether a controller runs",
    )


def _of_clusters(facts: HealthFacts) -> Iterator[HealthFinding]:
    shared: list[str] = []
    alone: list[str] = []
    for cluster in facts.clusters():
        chosen = sorted(text(one, "metadata", "name") for one in facts.policies_of(cluster))
        if len(chosen) > 1:
            shared.append(f"{key_of(cluster)} by {listed(chosen)}{_ruling(facts, cluster)}")
        elif not chosen:
            alone.append(key_of(cluster))
    yield HealthFinding(
        id="policies-overlap",
        severity=HealthSeverity.ERROR if shared else HealthSeverity.OK,
        expected="at most one policy selects a cluster",
        found=listed(shared) or "no cluster is selected by two",
        remedy="narrow the clusterSelectors so that one policy remains" if shared else "",
    )
    there = bool(facts.clusters())
    yield HealthFinding(
        id="clusters-without-policy",
        severity=HealthSeverity.OK if there else HealthSeverity.WARNING,
        expected="there are clusters; those that no policy selects are not protected, and no more is said of them",
        found=(listed(alone) or "none") if there else "there is no Cluster or ClusterRecord, so none was looked at",
        remedy="" if there else "say --namespace, or --all-namespaces",
    )


def _ruling(facts: HealthFacts, cluster: JsonObject) -> str:
    """Say which of several policies goes on, where the controller has written it down."""
    for policy in facts.policies_of(cluster):
        for conflict in items(policy, "status", "conflicts"):
            if text(conflict, "cluster") == text(mapping(cluster, "metadata"), "name") and text(conflict, "ruling"):
                return f" ({text(conflict, 'ruling')} goes on)"
    return ""
