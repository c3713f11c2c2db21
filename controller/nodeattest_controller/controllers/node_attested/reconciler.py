"""Reconciles the machines of one cluster: records CSR outcomes, acts on Nodes, and writes the condition NodeAttested.

Conditions follow from MachineAttestations and the time, so a lost outcome is made up for by the next resync. Writes
happen on change, and are rate limited by machine and by cluster. A cluster or machine that is paused, being deleted or
another replica's is left alone.
Out of scope: every decision (``conditions``, ``decide``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Literal

from nodeattest_controller.controllers.node_attested.census import MachineCensus
from nodeattest_controller.controllers.node_attested.conditions import (
    CONDITION,
    condition_of_machine,
    condition_of_pool,
    is_failing,
    parse_refused_claim,
)
from nodeattest_controller.controllers.node_attested.decide import Around, Withhold, around_of, decide
from nodeattest_controller.controllers.node_attested.nodes import AttestationPatcher, MissingMachines, NodeActions
from nodeattest_controller.controllers.node_attested.outcomes import CSROutcomes
from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.machine_view import MachineResource, MachineView, pool_view
from nodeattest_controller.model.policy import FailureAction, Policy
from nodeattest_controller.model.refusals import latest_refusals
from nodeattest_controller.model.resolver import record_of_other_id
from nodeattest_controller.runtime.cluster_controller import ReconcilerDeps
from nodeattest_controller.runtime.cluster_log import ClusterEvents, member_ref
from nodeattest_controller.runtime.conditions import Condition, set_condition, with_condition
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Conflict, Forbidden, NotFound
from nodeattest_kube.periodic import PeriodicReconciler, RateLimiter, ResyncConfig
from nodeattest_kube.store import in_batches
from nodeattest_kube.workqueue import WorkQueue
from nodeattest_parsing.objects import condition, items, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason, Unavailable

Key = tuple[Literal["machine", "pool"], str]
"""A machine's provider ID, or a MachinePool's name."""
_RESOURCES: Final[Mapping[str, MachineResource]] = {"Machine": "machines", "MachineRecord": "machinerecords"}
"""What has a condition of its own, by kind; a pool's instances share the pool's."""
RESYNC: Final = ResyncConfig(spread=0.0, period=60.0, min_interval=1.0, share=30)
"""All machines are checked once a period, because certificates expire without an event; changes are gathered for a
second, and checks take at most a thirtieth of a core, because a Machine changes often and a check reads all."""
NODE_PERIOD: Final = 300.0
"""Seconds between two reads of a Node that is treated already: it may have been created anew."""
PAUSE: Final = 120.0
"""Seconds until a write is tried again for which a permission is missing."""
OBJECT_BURST, OBJECT_RATE = 6, 1 / 30
"""Conditions that one object may get at once, and a second after that."""
CLUSTER_BURST, CLUSTER_RATE = 200, 10.0
"""The same for all objects of a cluster."""
_NODES_REMEDY: Final = (
    "apply manifests/workload-on-failure in the workload cluster, or set the policy's onFailure to None"
)
STATUS_REMEDY: Final = (
    "apply this version's manifests/rbac in the management cluster, or let the write pass where an admission policy "
    "refuses it, or take standing from --controllers"
)


class NodeAttestedReconciler:
    """The machines of one connected cluster (``ClusterRunner``)."""

    synced = True
    """Nothing is watched but the management cluster's cache."""
    last_error: ApiError | None = None

    def __init__(
        self, deps: ReconcilerDeps, key: ClusterKey, client: ApiClient, outcomes: CSROutcomes, events: ClusterEvents
    ) -> None:
        self._deps = deps
        self._management, self._inventory = deps.management, deps.management.inventory
        self._now, self._clock = deps.now, deps.clock
        self._key = key
        self._outcomes = outcomes
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
        self._nodes_paused_until = self._records_paused_until = float("-inf")
        """A missing permission keeps all of a cluster from being written."""
        self._refused_nodes: set[str] = set()
        """Machines whose Nodes may not be changed: they come last, so that one keeps no other from being treated."""
        self._paused_until: dict[Key, float] = {}
        """Until when an object is left alone for which a permission is missing."""
        self._written_from: dict[Key, str] = {}
        """The resource version of an object whose condition was written; the watch has yet to show what came of it."""

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
        policy, (pairs, around) = self._policy(), await self._survey()
        self._outcomes.forget_joined()
        due: set[Key] = {("machine", provider_id) for provider_id in self._outcomes.unwritten()}
        census, failing, withheld = MachineCensus(self._now()), 0, 0
        async for member, attestation in in_batches(pairs):
            census.add(member, attestation)
            decision = self._decide(member, attestation, policy, around)
            failing += attestation is not None and is_failing(attestation)
            withheld += isinstance(decision, Withhold)
            if isinstance(decision, FailureAction) or self._new_condition(member, attestation):
                due.add(("machine", member.provider_id))
        pools: dict[Key, JsonObject] = {
            ("pool", text(pool, "metadata", "name")): pool
            for pool in self._management.objects_of(self._key, "machinepools")
        }
        for key, pool in pools.items():
            if self._differs(pool, await self._pool_condition(pool)):
                due.add(key)
        self._refused_nodes &= {member.provider_id for member, _attestation in pairs}
        for key in sorted(due, key=lambda key: key[1] in self._refused_nodes):
            self._enqueue_ready(key)
        known = {("machine", member.provider_id) for member, _attestation in pairs} | pools.keys()
        self._written_from = {key: version for key, version in self._written_from.items() if key in known}
        self._paused_until = {key: until for key, until in self._paused_until.items() if key in known}
        self._deps.metrics.machines(self._key, census.result())
        self._deps.metrics.standing(self._key, failing=failing, treated=around.treated, withheld=withheld)
        return None

    async def failed(self, error: ApiError, failures: int, delay: float) -> None:
        """Do nothing: a resync reads from memory only."""

    def _enqueue_ready(self, key: Key) -> None:
        """Enqueue a key, unless it failed and its next attempt is planned."""
        if not self._queue.failures(key) and not self._is_paused(key):
            self._queue.add(key)

    def _is_paused(self, key: Key) -> bool:
        return self._clock() < self._paused_until.get(key, float("-inf"))

    def _decide(
        self, member: MachineView, attestation: Attestation | None, policy: Policy | None, around: Around
    ) -> FailureAction | Withhold | None:
        """Decide what is to be done to a machine's Node now; None where that was done lately."""
        if policy is None or attestation is None:
            return None
        decision = decide(member, attestation, policy, around)
        if isinstance(decision, Withhold):
            self._report_withheld(member, attestation, decision.why)
            return decision
        if self._clock() < self._nodes_paused_until:
            return None
        treatment, last = attestation.treatment, self._node_read_at.get(member.provider_id, float("-inf"))
        is_done = treatment is not None and treatment.action is decision and self._clock() - last < NODE_PERIOD
        return None if is_done else decision

    # One machine or pool

    async def _step(self, key: Key) -> None:
        if not self._may_act() or self._is_paused(key):
            self._queue.forget(key)  # the MachineAttestation has it, or the next resync finds it
            return
        kind, name = key
        try:
            await (self._reconcile_machine(name) if kind == "machine" else self._reconcile_pool(name))
        except Forbidden as error:
            self._queue.forget(key)
            self._paused_until[key] = self._clock() + PAUSE
            self._report_forbidden("StandingForbidden", "cannot write where machines stand", error, STATUS_REMEDY)
        except ApiError as error:
            delay = self._queue.retry(key, error)
            if not isinstance(error, (Conflict, NotFound)):  # another writer was faster, or the object is gone
                what = "cannot write a machine's condition NodeAttested; will try again"
                more = {"what": f"{kind} {name}", "error": error.reason, "message_": error.message, "delay": delay}
                self._events.warn(("failed", error.reason), what, **more)
        else:
            self._queue.forget(key)

    async def _reconcile_machine(self, provider_id: str) -> None:
        members = self._inventory.members(self._key, provider_id)
        if len(members) != 1 or members[0].paused or members[0].deleting:
            self._outcomes.forget(provider_id)
            self._node_read_at.pop(provider_id, None)
            return
        member, attestation = members[0], self._attestation(provider_id)
        if attestation is not None:
            decision = self._outcomes.decision(provider_id, attestation)
            if decision is not None:
                attestation = await self._attestations.record_decision(attestation, decision)
            self._outcomes.decision_written(provider_id)
            attestation = await self._reconcile_node(member, attestation)
        if member.is_pool_instance:
            self._enqueue_ready(("pool", member.name))
        new = self._new_condition(member, attestation)
        if new is not None:
            resource, machine, wanted = new
            if wanted.reason == Reason.PROVIDER_ID_CHANGED and self._events.warn(
                ("provider ID", member.uid), "provider ID changed", machine=member.name
            ):
                self._events.event("Warning", wanted.reason, wanted.message, on=member_ref(member))
            await self._write_condition(resource, machine, wanted, ("machine", provider_id))
        await self._record_refusals(provider_id)  # last: a record that cannot be written keeps nothing else back

    async def _reconcile_node(self, member: MachineView, attestation: Attestation) -> Attestation:
        if attestation.treatment is None and not is_failing(attestation):
            return attestation
        _pairs, around = await self._survey()
        decision = self._decide(member, attestation, self._policy(), around)
        try:
            if decision is FailureAction.NONE:
                self._node_read_at.pop(member.provider_id, None)
                return await self._nodes.release(member, attestation)
            if isinstance(decision, FailureAction):
                self._node_read_at[member.provider_id] = self._clock()
                treated = await self._nodes.treat(member, attestation, decision)
                self._refused_nodes.discard(member.provider_id)
                return treated
        except Forbidden as error:
            self._report_forbidden("OnFailureForbidden", "cannot treat a Node", error, _NODES_REMEDY)
            self._nodes_paused_until = self._clock() + PAUSE
            self._refused_nodes.add(member.provider_id)
        return self._attestation(member.provider_id) or attestation

    async def _record_refusals(self, provider_id: str) -> None:
        """Record refused requests; after an error none is tried for a while, and no condition waits for this."""
        due, attestation = self._outcomes.refusals(provider_id), self._attestation(provider_id)
        if not due or not self._may_act() or self._clock() < self._records_paused_until:
            return
        if attestation is not None:
            refusals = latest_refusals((*attestation.refusals, *due), self._now())
            try:
                await self._attestations.record_refusals(attestation, refusals)
            except Conflict:
                raise
            except NotFound:  # the object is gone
                pass
            except ApiError as error:
                self._records_paused_until = self._clock() + PAUSE
                what = "cannot record refused requests in MachineAttestations; conditions are written all the same"
                if isinstance(error, Forbidden):
                    self._report_forbidden("RefusalsForbidden", what, error, STATUS_REMEDY)
                else:
                    self._events.warn(("records", error.reason), what, error=error.reason, message_=error.message)
                return
        self._outcomes.refusals_written(provider_id, due)

    async def _reconcile_pool(self, name: str) -> None:
        pool = self._management.object_at("machinepools", self._key.partition("/")[0], name)
        wanted = await self._pool_condition(pool) if pool is not None else None
        if pool is not None and wanted is not None and self._differs(pool, wanted):
            await self._write_condition("machinepools", pool, wanted, ("pool", name))

    async def _write_condition(self, resource: MachineResource, obj: JsonObject, wanted: Condition, key: Key) -> None:
        namespace, name = text(obj, "metadata", "namespace"), text(obj, "metadata", "name")
        version = text(obj, "metadata", "resourceVersion")
        if not self._may_act() or (version and self._written_from.get(key) == version):
            return  # the watch is late; what it shows next is reconciled again
        if not (self._objects.take(text(obj, "metadata", "uid")) and self._all.take("")):
            self._queue.add_after(key, 1 / OBJECT_RATE)
            return
        path = self._management.path_of(resource, namespace, name)
        if await set_condition(self._management.client, path, obj, wanted, self._now):
            self._written_from[key] = version

    # What is known

    async def _survey(self) -> tuple[list[tuple[MachineView, Attestation | None]], Around]:
        """Read every member with its attestation record, and count them."""
        members = self._inventory.members_of(self._key)
        pairs = [(member, self._attestation(member.provider_id)) async for member in in_batches(members)]
        return pairs, around_of(pairs, absent=await self._missing.count(pairs))

    def _may_act(self) -> bool:
        return self._deps.guard.may_act(self._key)

    def _policy(self) -> Policy | None:
        """Return the policy; None where it cannot be told, and then nothing is done or undone."""
        cluster = self._management.cluster(self._key)
        try:
            return self._management.policy_of(cluster) if cluster is not None else None
        except (Denied, Unavailable):
            return None

    def _attestation(self, provider_id: str) -> Attestation | None:
        return self._inventory.own_attestation(self._key, provider_id)

    def _new_condition(
        self, member: MachineView, attestation: Attestation | None
    ) -> tuple[MachineResource, JsonObject, Condition] | None:
        """Return the object of a machine and the condition that it lacks; None where it has it, or no object."""
        resource = _RESOURCES.get(member.kind)
        if resource is None or member.paused or member.deleting:
            return None
        machine = self._management.object_at(resource, member.namespace, member.name)
        if machine is None:
            return None
        written = condition(items(machine, "status", "conditions"), CONDITION)
        shown = parse_refused_claim(text(dict(written), "message")) if written is not None else None
        wanted = condition_of_machine(
            member,
            attestation,
            self._now(),
            self._outcomes.claim(member.provider_id, shown),
            changed=record_of_other_id(member, self._inventory.attestations_of_owner(self._key, member.uid)),
        )
        return (resource, machine, wanted) if self._differs(machine, wanted) else None

    async def _pool_condition(self, pool: JsonObject) -> Condition | None:
        view = pool_view(pool)
        if view.pool.deleting or view.pool.paused:
            return None
        instances = [self._attestation(one) async for one in in_batches(view.provider_ids)]
        return condition_of_pool(instances, self._now(), flaw=view.pool.flaw)

    def _differs(self, obj: JsonObject, wanted: Condition | None) -> bool:
        return wanted is not None and with_condition(obj, wanted, self._now()) is not None

    # Reports

    def _report_withheld(self, member: MachineView, attestation: Attestation, why: str) -> None:
        more = {"machine": member.name, "node": attestation.node_name, "why": why}
        if self._events.warn("withheld", "left a failing node alone", **more):
            advice = "if so many fail it is more likely the policy's mistake: check what was changed last"
            message = f"Node {attestation.node_name} fails and is left alone: {why}; {advice}"
            self._events.event("Warning", "OnFailureWithheld", message)

    def _report_forbidden(self, reason: str, what: str, error: ApiError, remedy: str) -> None:
        if self._events.warn(reason, what, error=error.message, remedy=remedy):
            self._events.event("Warning", reason, f"{what}: {error}; {remedy}")
