"""Reconciles the machines of one cluster: records CSR outcomes, acts on Nodes, and writes the condition NodeAttested.

Conditions follow from MachineAttestations and the time, so a lost outcome is made up for by the next resync. Writes
happen on change, and are rate limited by machine and by cluster. Only the machine's own Node is touched, as it was read
just now (resourceVersion, and the UID for a delete); what is done to it is recorded first, so that a replica which dies
in between leaves a record of what the next one does. A cluster or machine that is paused, being deleted or another
replica's is left alone. Leaves to others: every decision (``conditions``, ``decide``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from nodeattest_controller.controllers.node_attested.conditions import (
    CONDITION,
    condition_of_machine,
    condition_of_pool,
    parse_refused_claim,
)
from nodeattest_controller.controllers.node_attested.decide import (
    Around,
    NoAction,
    Remediate,
    Withhold,
    around_of,
    decide,
    is_failing,
    node_patch,
)
from nodeattest_controller.controllers.node_attested.pending import MissingMachines, PendingOutcomes
from nodeattest_controller.controllers.node_attested.refusal_recorder import (
    AttestationPatcher,
    MachineCensus,
    NodeAttestedEvents,
)
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model.attestation import Attestation, Remediation
from nodeattest_controller.model.machine_view import MachineResource, MachineView, pool_view
from nodeattest_controller.model.policy import FailureAction, Policy
from nodeattest_controller.model.resolver import record_of_other_id
from nodeattest_controller.runtime.conditions import Condition, set_condition, with_condition
from nodeattest_controller.runtime.guard import ClusterGuard
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_kube import paths
from nodeattest_kube.batches import in_batches
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Conflict, Forbidden, NotFound
from nodeattest_kube.periodic import PeriodicReconciler, ResyncConfig
from nodeattest_kube.rate_limiter import RateLimiter
from nodeattest_kube.workqueue import WorkQueue
from nodeattest_parsing.objects import condition, items, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason, Unavailable


class NodeActions:
    """Actions on the Nodes of one workload cluster."""

    def __init__(
        self,
        client: ApiClient,
        attestations: AttestationPatcher,
        events: NodeAttestedEvents,
        now: Callable[[], datetime],
    ) -> None:
        self._client = client
        self._attestations = attestations
        self._events = events
        self._now = now

    async def treat(self, member: MachineView, attestation: Attestation, action: FailureAction) -> Attestation:
        """Do it to the machine's Node, where it has one; raises ApiError. Returns the ledger as it is then."""
        node = await self._own_node(member, attestation)
        if node is None:
            return attestation
        before, uid = attestation.treatment, text(node, "metadata", "uid")
        if before is None or (before.action, before.node_uid) != (action, uid):
            attestation = await self._attestations.record_remediation(
                attestation, self._treatment(attestation, action, uid)
            )
        try:
            done = await self._do(node, action)
        except Forbidden:
            if before is None:  # nothing was done, so it must not count against the share
                await self._attestations.record_remediation(attestation, None)
            raise
        if done:
            self._events.treated(member, attestation, action)
        return attestation

    async def release(self, member: MachineView, attestation: Attestation) -> Attestation:
        """Undo what was done to the machine's Node, and forget it; raises ApiError."""
        node = await self._own_node(member, attestation)
        if node is not None:
            await self._do(node, FailureAction.NONE)
        attestation = await self._attestations.record_remediation(attestation, None)
        self._events.released(member, attestation)
        return attestation

    async def _own_node(self, member: MachineView, attestation: Attestation) -> JsonObject | None:
        """Read the Node of the attestation record's name, unless it is not this machine's (identity rule 3)."""
        try:
            node = await self._client.get(paths.core_path("nodes", attestation.node_name))
        except NotFound:
            return None
        provider_id, uid = text(node, "spec", "providerID"), text(node, "metadata", "uid")
        is_own = provider_id == member.provider_id if provider_id else uid == member.node_ref_uid
        return node if is_own else None

    async def _do(self, node: JsonObject, action: FailureAction) -> bool:
        path = paths.core_path("nodes", text(node, "metadata", "name"))
        if action is FailureAction.DELETE_NODE:
            await self._client.delete(path, uid=text(node, "metadata", "uid"))
            return True
        patch = node_patch(node, action)
        if patch is None:
            return False
        await self._client.merge_patch(path, patch)
        return True

    def _treatment(self, attestation: Attestation, action: FailureAction, uid: str) -> Remediation:
        return Remediation(
            action=action,
            node_name=attestation.node_name,
            node_uid=uid,
            reason=attestation.verdict.reason if attestation.verdict else "",
            time=self._now(),
        )


Key = tuple[Literal["machine", "pool"], str]
"""A machine's provider ID, or a MachinePool's name."""
_RESOURCES: Final[Mapping[str, MachineResource]] = {"Machine": "machines", "MachineRecord": "machinerecords"}
"""What has a condition of its own, by kind; a pool's instances share the pool's."""
RESYNC: Final = ResyncConfig(spread=0.0, period=60.0, min_interval=1.0, share=30)
"""All machines are checked once a period, because certificates expire without an event; changes are gathered for a
second, and checks take at most a thirtieth of a core, because a Machine changes often and a check reads all."""
NODE_PERIOD: Final = 300.0
"""Seconds between two reads of a Node that is treated already: it may have been created anew."""
FORBIDDEN_PAUSE: Final = 120.0
"""Seconds until an object is tried again for which a permission is missing."""
OBJECT_BURST, OBJECT_RATE = 6, 1 / 30
"""Conditions that one object may get at once, and a second after that."""
CLUSTER_BURST, CLUSTER_RATE = 200, 10.0
"""The same for all objects of a cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAttestedDeps:
    """What the reconcilers of all clusters share."""

    management: ManagementCache
    guard: ClusterGuard
    metrics: Metrics
    now: Callable[[], datetime]
    clock: Callable[[], float]
    """Monotonic seconds."""


class NodeAttestedReconciler:
    """The machines of one connected cluster."""

    def __init__(
        self,
        deps: NodeAttestedDeps,
        key: ClusterKey,
        client: ApiClient,
        pending: PendingOutcomes,
        events: NodeAttestedEvents,
    ) -> None:
        self._deps = deps
        self._key = key
        self._pending = pending
        self._events = events
        self._attestations = AttestationPatcher(deps.management)
        self._nodes = NodeActions(client, self._attestations, events, deps.now)
        self._missing = MissingMachines(key, deps.management, deps.clock)
        self._queue: WorkQueue[Key] = WorkQueue(clock=deps.clock, metrics=deps.metrics.queues.named("standing"))
        self._resync = PeriodicReconciler(self, RESYNC, clock=deps.clock)
        self._objects = RateLimiter(burst=OBJECT_BURST, per_second=OBJECT_RATE, clock=deps.clock)
        self._all = RateLimiter(burst=CLUSTER_BURST, per_second=CLUSTER_RATE, clock=deps.clock)
        self._node_read_at: dict[str, float] = {}
        """When the Node of a treated machine was read, by provider ID."""
        self._paused_until: dict[Key, float] = {}
        """Until when an object is left alone for which a permission is missing."""
        self._written_from: dict[Key, str] = {}
        """The resource version of an object whose condition was written; the watch has yet to show what came of it."""

    synced = True
    """Nothing is watched but the management cluster's cache."""

    last_error: ApiError | None = None
    """The same."""

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._queue.run(self._step, 1))
                tasks.create_task(self._resync.run())
        finally:
            self._queue.shut_down()
            self._deps.metrics.forget_standing(self._key)

    def changed(self, keys: frozenset[str] | None) -> None:
        """Resync soon."""
        self._resync.changed(keys)

    def enqueue(self, provider_id: str) -> None:
        """Reconcile one machine: there is a CSR outcome that is not recorded yet."""
        self._queue.add(("machine", provider_id))

    async def reconcile(self) -> float | None:
        """Enqueue what is due of all machines and pools, from memory (``PeriodicTask``)."""
        if not self._may_act():
            return None
        management, policy = self._deps.management, self._policy()
        pairs, around, withheld = *await self._survey(), 0
        self._pending.review_claims()
        due: list[Key] = [("machine", provider_id) for provider_id in self._pending.pending()]
        census = MachineCensus(self._deps.now())
        async for member, attestation in in_batches(pairs):
            census.add(member, attestation)
            decision = (
                decide(member, attestation, policy, around) if policy is not None and attestation else NoAction.LEAVE
            )
            if isinstance(decision, Withhold) and attestation is not None:
                withheld += 1
                self._events.withheld(member, attestation, decision.why)
            if self._is_due(member, attestation, decision) or self._condition_differs(member, attestation):
                due.append(("machine", member.provider_id))
        pools = management.objects_of(self._key, "machinepools")
        wanted = [(pool, await self._condition_of_pool(pool)) for pool in pools]
        due.extend(
            ("pool", text(pool, "metadata", "name")) for pool, one in wanted if self._patch(pool, one) is not None
        )
        for key in due:
            self._enqueue_ready(key)
        self._paused_until = {key: until for key, until in self._paused_until.items() if self._exists(key)}
        self._written_from = {key: version for key, version in self._written_from.items() if self._exists(key)}
        failing = sum(attestation is not None and is_failing(attestation) for _member, attestation in pairs)
        self._deps.metrics.certificates.show(self._key, census.result())
        self._deps.metrics.standing(self._key, failing=failing, treated=around.treated, withheld=withheld)
        return None

    async def failed(self, error: ApiError, failures: int, delay: float) -> None:
        """Do nothing: a resync reads from memory only."""

    def _enqueue_ready(self, key: Key) -> None:
        """Enqueue a key, unless it failed and its next attempt is planned."""
        if not self._queue.failures(key) and not self._is_paused(key):
            self._queue.add(key)

    def _is_paused(self, key: Key) -> bool:
        return self._paused_until.get(key, float("-inf")) > self._deps.clock()

    def _exists(self, key: Key) -> bool:
        management, (kind, name) = self._deps.management, key
        if kind == "machine":
            return bool(management.inventory.members(self._key, name))
        return management.object_at("machinepools", self._key.partition("/")[0], name) is not None

    def _is_due(
        self, member: MachineView, attestation: Attestation | None, decision: Remediate | Withhold | NoAction
    ) -> bool:
        if not isinstance(decision, Remediate) or attestation is None or attestation.treatment is None:
            return isinstance(decision, Remediate) or decision is NoAction.RELEASE
        last = self._node_read_at.get(member.provider_id, float("-inf"))
        return attestation.treatment.action is not decision.action or self._deps.clock() - last >= NODE_PERIOD

    def _condition_differs(self, member: MachineView, attestation: Attestation | None) -> bool:
        resource = _RESOURCES.get(member.kind)
        if resource is None or member.paused or member.deleting:
            return False
        machine = self._deps.management.object_at(resource, member.namespace, member.name)
        return (
            machine is not None and self._patch(machine, self._condition_of(member, attestation, machine)) is not None
        )

    # One step

    async def _step(self, key: Key) -> None:
        if not self._may_act() or self._is_paused(key):
            self._queue.forget(key)  # the MachineAttestation has it, or the next resync finds it
            return
        kind, name = key
        try:
            await (self._reconcile_machine(name) if kind == "machine" else self._reconcile_pool(name))
        except Forbidden as error:
            self._queue.forget(key)
            self._events.management_forbidden(error)
            self._paused_until[key] = self._deps.clock() + FORBIDDEN_PAUSE
        except ApiError as error:
            delay = self._queue.retry(key, error)
            if not isinstance(
                error, (Conflict, NotFound)
            ):  # another writer was faster, or the object is gone: try again
                self._events.failed(f"{kind} {name}", error, delay)
        else:
            self._queue.forget(key)

    async def _reconcile_machine(self, provider_id: str) -> None:
        member = self._member(provider_id)
        if member is None:
            self._pending.forget(provider_id)
            self._node_read_at.pop(provider_id, None)
            return
        attestation = self._attestation(member)
        if attestation is not None:
            attestation = await self._record_outcome(member, attestation)
            attestation = await self._reconcile_node(member, attestation)
        if member.is_pool_instance:
            self._enqueue_ready(("pool", member.name))
        resource = _RESOURCES.get(member.kind)
        machine = self._deps.management.object_at(resource, member.namespace, member.name) if resource else None
        if resource is not None and machine is not None:
            wanted = self._condition_of(member, attestation, machine)
            if wanted.reason == Reason.PROVIDER_ID_CHANGED and self._patch(machine, wanted) is not None:
                self._events.provider_id_changed(member, wanted.message)
            await self._write_condition(resource, machine, wanted, ("machine", provider_id))
        if self._may_act():  # last: a record that cannot be written keeps nothing else back
            found, now = self._attestation(member), self._deps.now()
            error = await self._pending.records.write(found, provider_id, self._attestations, now)
            if error is not None:
                self._events.not_recorded(error)

    async def _record_outcome(self, member: MachineView, attestation: Attestation) -> Attestation:
        """Record the last CSR outcome in the MachineAttestation, where it is new."""
        verdict = self._pending.verdict(member.provider_id, attestation)
        if verdict is not None:
            attestation = await self._attestations.record_decision(attestation, verdict)
        self._pending.remembered(member.provider_id)
        return attestation

    async def _reconcile_node(self, member: MachineView, attestation: Attestation) -> Attestation:
        policy = self._policy()
        if policy is None or (attestation.treatment is None and not is_failing(attestation)):
            return attestation
        _pairs, around = await self._survey()
        try:
            match decide(member, attestation, policy, around):
                case Remediate(action):
                    self._node_read_at[member.provider_id] = self._deps.clock()
                    return await self._nodes.treat(member, attestation, action)
                case Withhold(why):
                    self._events.withheld(member, attestation, why)
                case NoAction.RELEASE:
                    self._node_read_at.pop(member.provider_id, None)
                    return await self._nodes.release(member, attestation)
                case NoAction.LEAVE:
                    pass
        except Forbidden as error:
            self._events.nodes_forbidden(error)
            self._paused_until["machine", member.provider_id] = self._deps.clock() + FORBIDDEN_PAUSE
        return self._attestation(member) or attestation

    async def _reconcile_pool(self, name: str) -> None:
        namespace = self._key.partition("/")[0]
        pool = self._deps.management.object_at("machinepools", namespace, name)
        if pool is not None:
            wanted = await self._condition_of_pool(pool)
            await self._write_condition("machinepools", pool, wanted, ("pool", name))

    async def _write_condition(
        self, resource: MachineResource, obj: JsonObject, wanted: Condition | None, key: Key
    ) -> None:
        if wanted is None or self._patch(obj, wanted) is None or not self._may_act():
            return
        uid, version = text(obj, "metadata", "uid"), text(obj, "metadata", "resourceVersion")
        if version and self._written_from.get(key) == version:
            return  # the watch is late; what it shows next is reconciled again
        for bucket, whose in ((self._objects, uid), (self._all, "")):
            if not bucket.take(whose):
                self._queue.add_after(key, 1 / OBJECT_RATE)
                return
        path = self._deps.management.path_of(resource, *_name_of(obj))
        if await set_condition(self._deps.management.client, path, obj, wanted, self._deps.now):
            self._written_from[key] = version

    # What is known

    async def _survey(self) -> tuple[Sequence[tuple[MachineView, Attestation | None]], Around]:
        """Read every member with its attestation record, and count them."""
        members = self._deps.management.inventory.members_of(self._key)
        pairs = [(member, self._attestation(member)) async for member in in_batches(members)]
        return pairs, around_of(pairs, absent=await self._missing.count(pairs))

    def _may_act(self) -> bool:
        return self._deps.guard.may_act(self._key)

    def _policy(self) -> Policy | None:
        """Return the policy; None where it cannot be told, and then nothing is done or undone."""
        cluster = self._deps.management.cluster(self._key)
        try:
            return self._deps.management.policy_of(cluster) if cluster is not None else None
        except (Denied, Unavailable):
            return None

    def _member(self, provider_id: str) -> MachineView | None:
        members = self._deps.management.inventory.members(self._key, provider_id)
        if len(members) != 1 or members[0].paused or members[0].deleting:
            return None
        return members[0]

    def _attestation(self, member: MachineView) -> Attestation | None:
        return self._deps.management.inventory.own_attestation(self._key, member.provider_id)

    def _condition_of(self, member: MachineView, attestation: Attestation | None, machine: JsonObject) -> Condition:
        written = condition(items(machine, "status", "conditions"), CONDITION)
        shown = parse_refused_claim(text(dict(written), "message")) if written is not None else None
        claim = self._pending.claim(member.provider_id, shown)
        records = self._deps.management.inventory.attestations_of_owner(self._key, member.uid)
        changed = record_of_other_id(member, records)
        return condition_of_machine(member, attestation, self._deps.now(), claim, changed=changed)

    async def _condition_of_pool(self, pool: JsonObject) -> Condition | None:
        view, inventory = pool_view(pool), self._deps.management.inventory
        if view.pool.deleting or view.pool.paused:
            return None
        found = [inventory.own_attestation(self._key, one) async for one in in_batches(view.provider_ids)]
        return condition_of_pool(found, self._deps.now(), flaw=view.pool.flaw)

    def _patch(self, obj: JsonObject, wanted: Condition | None) -> JsonObject | None:
        return with_condition(obj, wanted, self._deps.now()) if wanted is not None else None


def _name_of(obj: JsonObject) -> tuple[str, str]:
    return text(obj, "metadata", "namespace"), text(obj, "metadata", "name")
