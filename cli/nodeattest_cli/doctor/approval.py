"""Automatic approval by the in-tree signer: what the controller says of it, and what RBAC of the cluster grants. Pure.

The controller asks the API server besides, and watches what the in-tree signer issues: a binding that is found here is
open in any case, and none that is found here is closed only where the condition says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from nodeattest_cli.doctor.facts import HealthFacts, Unread, WorkloadFacts
from nodeattest_cli.doctor.model import HealthFinding, HealthSeverity, listed
from nodeattest_controller.controllers.auto_approval.decide import CONDITION, ApprovalReason
from nodeattest_controller.controllers.auto_approval.permissions import (
    RoleGrant,
    SubjectKind,
    grant_of,
    nominal_permissions,
)
from nodeattest_controller.model.objects import condition, items, text
from nodeattest_kube.jsontypes import JsonObject, JsonValue, key_of

__all__ = ["IDS", "look"]

IDS: Final = ("automatic-approval",)
_EARLY: Final = frozenset({ApprovalReason.NOT_INITIALIZED, ApprovalReason.WAITING_FOR_CLUSTER_INFO})
"""A cluster that is coming up."""


def look(facts: HealthFacts) -> Iterator[HealthFinding]:
    """Look at each protected cluster."""
    for cluster in facts.protected():
        workload = facts.workloads.get(key_of(cluster))
        if workload is not None:
            yield _finding(facts, cluster, workload)


def _finding(facts: HealthFacts, cluster: JsonObject, workload: WorkloadFacts) -> HealthFinding:
    said = condition(items(cluster, "status", "conditions"), CONDITION)
    severity, words = _of_condition(facts, said)
    if len(facts.policies_of(cluster)) > 1 and said is not None and said.get("reason") == ApprovalReason.CANNOT_VERIFY:
        severity = HealthSeverity.OK  # by which policy is another finding, and the cause of this
    grants = _grants(workload)
    if workload.unreached is not None:
        if severity is HealthSeverity.OK:  # what the condition says may be old: who wrote it does not reach it either
            severity = HealthSeverity.UNKNOWN
        words.append("the cluster does not answer, and its bindings were not read")
    elif isinstance(grants, Unread):
        if severity is HealthSeverity.OK:
            severity = HealthSeverity.UNKNOWN
        words.append(f"its bindings could not be read: {grants.why}")
    elif grants:
        lets_join = any(SubjectKind.BOOTSTRAPPERS in grant.to for grant in grants)
        enforces = facts.enforces(key_of(cluster))
        own = HealthSeverity.ERROR if lets_join and enforces else HealthSeverity.WARNING
        severity = own if severity is HealthSeverity.OK or own is HealthSeverity.ERROR else severity
        words.append(f"ClusterRoleBindings grant it: {listed(map(str, grants))}")
    else:
        words.append("no ClusterRoleBinding grants it")
    remedy = "" if severity is HealthSeverity.OK else "docs/automatic-approval.md says what each reason needs"
    return HealthFinding(
        id="automatic-approval",
        severity=severity,
        expected="nobody but the controller approves certificates of nodes",
        found="; ".join(words),
        remedy=remedy,
        cluster=key_of(cluster),
    )


def _of_condition(facts: HealthFacts, said: Mapping[str, JsonValue] | None) -> tuple[HealthSeverity, list[str]]:
    if not facts.runs("hardening"):
        return HealthSeverity.OK, ["the controller hardening is turned off"]
    if said is None:
        return HealthSeverity.WARNING, [f"the Cluster has no condition {CONDITION} yet"]
    reason = str(said.get("reason"))
    words = [f"{CONDITION} is {said.get('status')}: {reason}: {said.get('message')}"]
    match said.get("status"):
        case "True":
            return HealthSeverity.OK, [f"{CONDITION} is True"]
        case "False" if reason != ApprovalReason.AUDIT:
            quiet = reason == ApprovalReason.CLOSED_FOR_BOOTSTRAP
            return HealthSeverity.WARNING if quiet else HealthSeverity.ERROR, words
        case _:
            return HealthSeverity.OK if reason in _EARLY else HealthSeverity.WARNING, words


def _grants(workload: WorkloadFacts) -> Sequence[RoleGrant] | Unread:
    """Resolve the bindings that matter, as the controller does."""
    if isinstance(workload.roles, Unread):
        return workload.roles
    if isinstance(workload.bindings, Unread):
        return workload.bindings
    permissions = {text(role, "metadata", "name"): nominal_permissions(role) for role in workload.roles}
    found = (grant_of(binding, permissions) for binding in workload.bindings)
    return [grant for grant in found if grant is not None]
