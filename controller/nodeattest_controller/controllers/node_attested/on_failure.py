"""What a policy's ``onFailure`` does to the Node of a machine that fails its attestation.

No more Nodes than the policy's share are treated at one time, never two of the control plane and never its only one.
Only the machine's own Node is touched, and only what was done is undone. The action is recorded first, so that another
replica finds it. The mark is a taint, because a kubelet cannot change its own taints. A control plane's Node is not
deleted: Cluster API would remove its etcd member (controlplane/kubeadm/internal/workload_cluster_etcd.go).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nodeattest_controller.controllers.node_attested.conditions import is_failing
from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.attestation_object import parse_attestation
from nodeattest_controller.model.attestation_status import APPROVED, Remediation
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.policy import FailureAction, Policy
from nodeattest_controller.runtime.cluster_controller import ClusterEvents
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache, member_ref
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import Conflict, Forbidden, NotFound
from nodeattest_kube.store import in_batches
from nodeattest_parsing.objects import flag, items, mapping, rfc3339, strings, text
from nodeattest_parsing.values import JsonObject, JsonValue

TAINT_KEY: Final = "attestation.cluster.x-k8s.io/failed"
EFFECT: Final = "NoSchedule"
"""New pods stay away, and what runs there continues: evicting it is a decision for people (docs/decisions.md)."""
_FEWEST_CONTROL_PLANES: Final = 2
"""Of which one may be treated."""
_EVENTS: Final = {
    FailureAction.TAINT: "NodeTainted",
    FailureAction.CORDON: "NodeCordoned",
    FailureAction.DELETE_NODE: "NodeDeleted",
}
HELD: Final = 600.0
"""Seconds for which the place of a machine is held that is gone after its Node was deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """The state of the cluster's machines."""

    nodes: int = 0
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
    wanted = policy.on_failure if policy.enforce else FailureAction.NONE
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


def _room(member: MachineView, policy: Policy, around: Around) -> Withhold | None:
    share = policy.max_failed_share
    awaited = around.awaited if policy.on_failure is FailureAction.DELETE_NODE else 0
    machines, gone = around.nodes + awaited, around.treated + awaited
    most = max(1, machines * share // 100)
    if gone >= most:
        treated = f"{gone} of {machines} Nodes are treated"
        treated += f", {awaited} yet to join among them" if awaited else ""
        return Withhold(f"{treated}, and maxFailedShare, {share} %, allows {most}")
    if member.is_control_plane and (around.treated_control_planes or around.control_planes < _FEWEST_CONTROL_PLANES):
        return Withhold("it is of the control plane, of which one Node at a time is treated, and never the only one")
    return None


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


class MissingMachines:
    """Counts machines that are not in the inventory yet, or no more, for ``DeleteNode``.

    Between the end of a machine whose Node was deleted and the join of its replacement there is no moment at which
    nothing is counted for it. What was deleted is kept in memory only: a replica that takes over before Cluster API
    makes the new Machine counts one less.
    Source: cluster-api internal/controllers/machinehealthcheck (a Machine whose Node is gone is deleted),
    internal/controllers/machineset (makes the new one when the old one is gone).
    """

    def __init__(self, key: ClusterKey, management: ManagementCache, clock: Callable[[], float]) -> None:
        self._key, self._management, self._clock = key, management, clock
        self._deleted: dict[str, float] = {}
        """When a machine was last in the inventory whose Node was deleted, by provider ID."""

    async def count(self, pairs: Sequence[tuple[MachineView, Attestation | None]]) -> int:
        now = self._clock()
        for member, attestation in pairs:
            treatment = attestation.treatment if attestation is not None else None
            if treatment is not None and treatment.action is FailureAction.DELETE_NODE:
                self._deleted[member.provider_id] = now
        self._deleted = {gone: last for gone, last in self._deleted.items() if now - last < HELD}
        known = {member.provider_id for member, _attestation in pairs}
        machines = self._management.objects_of(self._key, "machines")
        pools = self._management.objects_of(self._key, "machinepools")
        nameless = sum([not text(machine, "spec", "providerID") async for machine in in_batches(machines)])
        return nameless + sum(_short_by(pool) for pool in pools) + len(self._deleted.keys() - known)


def _short_by(pool: JsonObject) -> int:
    """Return how many instances a MachinePool wants that it does not list."""
    wanted = mapping(pool, "spec").get("replicas")
    return max(0, wanted - len(strings(pool, "spec", "providerIDList"))) if isinstance(wanted, int) else 0


def node_patch(node: JsonObject, action: FailureAction) -> JsonObject | None:
    """Make the merge patch that treats a Node, or with ``NONE`` releases it; None where nothing is to be changed.

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
    return {"metadata": {"resourceVersion": text(node, "metadata", "resourceVersion")}, "spec": spec}


async def patch_attestation(
    management: ManagementCache, attestation: Attestation, change: JsonObject, subresource: str = ""
) -> Attestation:
    """Patch a MachineAttestation by compare-and-swap; raises ApiError, after a Conflict the cache has the newer one."""
    patch: JsonObject = {"metadata": {"resourceVersion": attestation.resource_version}, **change}
    client, place = management.client, (attestation.namespace, attestation.name)
    try:
        return parse_attestation(
            await management.ask_attestation(*place, lambda path: client.merge_patch(path + subresource, patch))
        )
    except Conflict:
        await management.ask_attestation(*place, client.get)
        raise


class NodeActions:
    """Actions on the Nodes of one workload cluster."""

    def __init__(
        self, client: ApiClient, management: ManagementCache, events: ClusterEvents, now: Callable[[], datetime]
    ) -> None:
        self._client, self._management, self._events, self._now = client, management, events, now

    async def treat(self, member: MachineView, attestation: Attestation, action: FailureAction) -> None:
        """Record the action and do it to the machine's Node, where it has one; raises ApiError."""
        node = await self._own_node(member, attestation)
        if node is None:
            return
        before, uid = attestation.treatment, text(node, "metadata", "uid")
        reason = attestation.verdict.reason if attestation.verdict else ""
        if before is None or (before.action, before.node_uid) != (action, uid):
            record = Remediation(
                action=action, node_name=attestation.node_name, node_uid=uid, reason=reason, time=self._now()
            )
            attestation = await self._record(attestation, record)
        try:
            done = await self._act(node, action)
        except Forbidden:
            if before is None:  # nothing was done, so it must not count against the share
                await self._record(attestation, None)
            raise
        if done:
            ends = max((entry.not_after for entry in attestation.issued), default=None)
            until = f"; its certificate is valid until {rfc3339(ends)}" if ends else ""
            names = {"machine": member.name, "node": attestation.node_name}
            self._events.warn(None, "treated a node", **names, action=action, reason=reason)
            message = f"onFailure {action}, because its own request was refused: {reason}{until}"
            self._report("Warning", _EVENTS[action], member, attestation, message)

    async def release(self, member: MachineView, attestation: Attestation) -> None:
        """Undo what was done to the machine's Node, and forget it; raises ApiError."""
        node = await self._own_node(member, attestation)
        if node is not None:
            await self._act(node, FailureAction.NONE)
        await self._record(attestation, None)
        self._events.info("released a node", machine=member.name, node=attestation.node_name)
        self._report("Normal", "NodeReleased", member, attestation, "what onFailure did is undone")

    def _report(self, kind: str, reason: str, member: MachineView, attestation: Attestation, message: str) -> None:
        self._events.event(kind, reason, f"Node {attestation.node_name}: {message}", on=member_ref(member))

    async def _record(self, attestation: Attestation, treatment: Remediation | None) -> Attestation:
        done = treatment.render() if treatment is not None else None
        return await patch_attestation(self._management, attestation, {"spec": {"onFailure": done}})

    async def _own_node(self, member: MachineView, attestation: Attestation) -> JsonObject | None:
        """Read the Node of the attestation record's name, unless it is not this machine's (identity rule 3)."""
        try:
            node = await self._client.get(paths.core_path("nodes", attestation.node_name))
        except NotFound:
            return None
        provider_id, uid = text(node, "spec", "providerID"), text(node, "metadata", "uid")
        is_own = provider_id == member.provider_id if provider_id else uid == member.node_ref_uid
        return node if is_own else None

    async def _act(self, node: JsonObject, action: FailureAction) -> bool:
        path = paths.core_path("nodes", text(node, "metadata", "name"))
        if action is FailureAction.DELETE_NODE:
            await self._client.delete(path, uid=text(node, "metadata", "uid"))
            return True
        patch = node_patch(node, action)
        if patch is not None:
            await self._client.merge_patch(path, patch)
        return patch is not None
