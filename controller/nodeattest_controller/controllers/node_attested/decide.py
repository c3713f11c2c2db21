"""What is done to the Node of a machine that fails its attestation: which Nodes, how many at a time, and how. Pure.

No more Nodes than the policy's share stand treated at one time, never two of the control plane and never its only one.
Where Nodes are deleted, a machine that has yet to join counts as treated, because a MachineHealthCheck replaces those
whose Nodes are gone by machines that a wrong policy keeps from joining. A control plane's Node is not deleted: Cluster
API takes members out of etcd whose Nodes are gone. Only what was done is undone: an administrator's cordon stays. The
mark is a taint, because a kubelet cannot change its own taints.
Source: kubernetes plugin/pkg/admission/noderestriction/admission.go (admitNode: taints); cluster-api
controlplane/kubeadm/internal/workload_cluster_etcd.go (ReconcileEtcdMembers).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from nodeattest_controller.controllers.node_attested.conditions import is_failing
from nodeattest_controller.model.attestation import APPROVED, Attestation
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.policy import FailureAction, Policy
from nodeattest_parsing.objects import flag, items, text
from nodeattest_parsing.values import JsonObject, JsonValue

TAINT_KEY: Final = "attestation.cluster.x-k8s.io/failed"
EFFECT: Final = "NoSchedule"
"""New pods stay away, and what runs there continues: evicting it is a decision for people (docs/decisions.md)."""
_FEWEST_CONTROL_PLANES: Final = 2
"""Of which one may be treated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """How the cluster's other machines stand."""

    nodes: int = 0
    """Machines that have joined."""
    treated: int = 0
    control_planes: int = 0
    treated_control_planes: int = 0
    awaited: int = 0
    """Machines that have yet to join."""


@dataclass(frozen=True, slots=True)
class Withhold:
    """Leave the Node alone although it fails, and say why."""

    why: str


def decide(
    member: MachineView, attestation: Attestation, policy: Policy, around: Around
) -> FailureAction | Withhold | None:
    """Decide what is done to a machine's Node, again if need be; ``NONE`` undoes what was done. None: nothing.

    1. A certificate, a policy that wants nothing and ``Audit`` undo; 2. a reset undoes nothing and begins nothing;
    3. what is treated stays so, in the way that the policy says now; 4. else there must be room for it.
    """
    wanted = policy.on_failure.action if policy.enforce else FailureAction.NONE
    cleared = attestation.verdict is not None and attestation.verdict.verdict == APPROVED
    if cleared or wanted is FailureAction.NONE:  # 1
        return FailureAction.NONE if attestation.treatment is not None else None
    if attestation.treatment is None and not is_failing(attestation):  # 2
        return None
    if member.is_control_plane and wanted is FailureAction.DELETE_NODE:
        wanted = FailureAction.CORDON
    if attestation.treatment is not None:  # 3
        return wanted
    return _room(member, policy, around) or wanted  # 4


def around_of(pairs: Iterable[tuple[MachineView, Attestation | None]], *, absent: int = 0) -> Around:
    """Count a cluster's machines; one has joined that has a node, or a certificate in its attestation record.

    ``absent`` are machines that are not among the pairs and have yet to join.
    """
    known = list(pairs)
    joined = [(member, record) for member, record in known if member.node_ref_name or (record and record.issued)]
    treated = [member for member, record in joined if record is not None and record.treatment is not None]
    return Around(
        nodes=len(joined),
        treated=len(treated),
        control_planes=sum(member.is_control_plane for member, _record in joined),
        treated_control_planes=sum(member.is_control_plane for member in treated),
        awaited=len(known) - len(joined) + absent,
    )


def node_patch(node: JsonObject, action: FailureAction) -> JsonObject | None:
    """Make the merge patch that treats a Node, or with ``NONE`` releases it; None where it stands so already.

    Cordon and mark are one write, so that a cordon is ours exactly where the mark says so.
    """
    taints = items(node, "spec", "taints")
    marks = [taint for taint in taints if text(taint, "key") == TAINT_KEY]
    cordoned_by_us = any(text(mark, "value") == FailureAction.CORDON for mark in marks)
    unschedulable = flag(node, "spec", "unschedulable")
    cordon = action is FailureAction.CORDON and (cordoned_by_us or not unschedulable)
    value = FailureAction.CORDON if cordon else FailureAction.TAINT
    mark: JsonObject = {"key": TAINT_KEY, "value": str(value), "effect": EFFECT}
    wanted = [] if action is FailureAction.NONE else [mark]
    spec: JsonObject = {}
    if marks != wanted:
        kept: list[JsonValue] = [taint for taint in taints if text(taint, "key") != TAINT_KEY]
        spec["taints"] = [*kept, *wanted] or None
    if cordon and not unschedulable:
        spec["unschedulable"] = True
    elif cordoned_by_us and not cordon and unschedulable:
        spec["unschedulable"] = None
    if not spec:
        return None
    meta: JsonObject = {"resourceVersion": text(node, "metadata", "resourceVersion")}
    return {"metadata": meta, "spec": spec}


def _room(member: MachineView, policy: Policy, around: Around) -> Withhold | None:
    share = policy.on_failure.max_share
    awaited = around.awaited if policy.on_failure.action is FailureAction.DELETE_NODE else 0
    machines, gone = around.nodes + awaited, around.treated + awaited
    most = max(1, machines * share // 100)
    if gone >= most:
        stand = f"{gone} of {machines} Nodes stand treated" + (f", {awaited} yet to join among them" if awaited else "")
        return Withhold(f"{stand}, and maxFailedShare, {share} %, allows {most}")
    if member.is_control_plane and (around.treated_control_planes or around.control_planes < _FEWEST_CONTROL_PLANES):
        return Withhold("it is of the control plane, of which one Node at a time is treated, and never the only one")
    return None
