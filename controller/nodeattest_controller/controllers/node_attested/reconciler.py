"""Reconciles the machines of one cluster: records CSR outcomes, acts on Nodes, writes the condition NodeAttested.

Conditions follow from MachineAttestations and the time, so the next resync makes up for a lost outcome. Each kind of
write is a key of its own in the work queue: a write that is refused delays no other.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal
from weakref import WeakValueDictionary

from nodeattest_controller.controllers.node_attested import conditions, on_failure
from nodeattest_controller.controllers.node_attested.outcomes import CSROutcomes
from nodeattest_controller.metrics import MachineState, Metrics
from nodeattest_controller.model.attestation import Attestation, IssuedCertificate
from nodeattest_controller.model.attestation_status import latest_refusals, render_refusals
from nodeattest_controller.model.machine_view import MachineResource, MachineView, pool_view
from nodeattest_controller.model.policy import FailureAction, Policy
from nodeattest_controller.model.resolver import record_of_other_id
from nodeattest_controller.runtime.cluster_controller import ClusterReconciler, CSRDenied, CSRIssued, ReconcilerDeps
from nodeattest_controller.runtime.conditions import Condition, set_condition, with_condition
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import member_ref
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Conflict, NotFound
from nodeattest_kube.periodic import RateLimiter, ResyncConfig
from nodeattest_kube.store import in_batches
from nodeattest_kube.workqueue import WorkQueue
from nodeattest_parsing.objects import condition, items, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason, Unavailable

Work = Literal["machine", "pool", "node", "refusals"]
Key = tuple[Work, str]
"""What is done, and a machine's provider ID or a MachinePool's name."""
_RESOURCES: Final[Mapping[str, MachineResource]] = {"Machine": "machines", "MachineRecord": "machinerecords"}
"""What has a condition of its own, by kind; a pool's instances share the pool's."""
NODE_PERIOD: Final = 300.0
"""Seconds between two reads of a Node that is treated already: it may have been created anew."""
OBJECT_BURST, OBJECT_RATE = 6, 1 / 30
"""Conditions that one object may get at once, and a second after that."""
STATUS_REMEDY: Final = (
    "apply this version's manifests/rbac in the management cluster, or let the write pass where an admission policy "
    "refuses it, or take standing from --controllers"
)
_NODES_REMEDY: Final = (
    "apply manifests/workload-on-failure in the workload cluster, or set the policy's onFailure to None"
)
_FAILURES: Final[Mapping[Work, tuple[str, str, str]]] = {
    "machine": ("cannot write the condition NodeAttested of a Machine", "StandingForbidden", STATUS_REMEDY),
    "pool": ("cannot write the condition NodeAttested of a MachinePool", "StandingForbidden", STATUS_REMEDY),
    "node": ("cannot treat a Node", "OnFailureForbidden", _NODES_REMEDY),
    "refusals": ("cannot record refused requests in a MachineAttestation", "RefusalsForbidden", STATUS_REMEDY),
}
"""How a failure is reported: message, the Event's reason where a permission is missing, remedy."""

_STATES: Final[dict[str, MachineState]] = {
    conditions.Known.ATTESTED: MachineState.ATTESTED,
    conditions.Known.NOT_YET: MachineState.PENDING,
    conditions.Known.NOT_ATTESTED: MachineState.NOT_ATTESTED,
    conditions.Known.EXPIRED: MachineState.EXPIRED,
    conditions.Known.RESET: MachineState.RESET,
}
"""By the condition's reason; any other is a refusal's."""


class MachineCensus:
    """Counts the machines of a cluster by their conditions, for the metrics."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._states: Counter[MachineState] = Counter()
        self._first: IssuedCertificate | None = None
        """The valid certificate that ends first."""

    def add(self, member: MachineView, attestation: Attestation | None) -> None:
        reason = conditions.condition_of_machine(member, attestation, self._now).reason
        self._states[_STATES.get(reason, MachineState.REFUSED)] += 1
        newest, first = conditions.newest_certificate(attestation), self._first
        if newest is not None and newest.not_after > self._now:
            self._first = newest if first is None or newest.not_after < first.not_after else first

    def show(self, metrics: Metrics, key: ClusterKey) -> None:
        first = self._first
        lifetime = (first.not_after - first.not_before).total_seconds() if first else 0.0
        metrics.machines(key, self._states, (first.not_after.timestamp(), lifetime) if first else None)


class NodeAttestedController:
    """Makes the reconciler of each cluster, and passes outcomes to it (``CSRObserver``)."""

    def __init__(self, deps: ReconcilerDeps) -> None:
        self._deps = deps
        self._reconcilers: WeakValueDictionary[ClusterKey, NodeAttestedReconciler] = WeakValueDictionary()
        """The newest reconciler of each connected cluster."""

    def for_cluster(self, key: ClusterKey, client: ApiClient) -> NodeAttestedReconciler:
        reconciler = self._reconcilers[key] = NodeAttestedReconciler(self._deps, key, client)
        return reconciler

    def granted(self, verdict: CSRIssued) -> None:
        if (reconciler := self._reconcilers.get(verdict.cluster)) is not None:
            reconciler.granted(verdict)

    def refused(self, verdict: CSRDenied) -> None:
        if (reconciler := self._reconcilers.get(verdict.cluster)) is not None:
            reconciler.refused(verdict)


class NodeAttestedReconciler(ClusterReconciler):
    """The machines of one connected cluster."""

    resync = ResyncConfig(spread=0.0, period=60.0, min_interval=1.0, share=30)
    """All machines are checked once a period, because certificates expire without an event. Changes are gathered for a
    second, and checks take at most a thirtieth of a core, because a Machine changes often and a check reads all."""

    def __init__(self, deps: ReconcilerDeps, key: ClusterKey, client: ApiClient) -> None:
        super().__init__(deps, key, client)
        self._inventory = self._management.inventory
        self._outcomes = CSROutcomes(key, self._inventory, deps.clock)
        self._nodes = on_failure.NodeActions(client, self._management, self._events, deps.now)
        self._missing = on_failure.MissingMachines(key, self._management, deps.clock)
        self._queue: WorkQueue[Key] = WorkQueue(clock=deps.clock, metrics=deps.metrics.queues.named("standing"))
        self._conditions = RateLimiter(burst=OBJECT_BURST, per_second=OBJECT_RATE, clock=deps.clock)
        self._node_read_at: dict[str, float] = {}
        """When the Node of a treated machine was read, by provider ID."""

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._queue.run(self._work, 1))
                tasks.create_task(super().run())
        finally:
            self._queue.shut_down()
            self._metrics.forget_standing(self._key)

    def granted(self, verdict: CSRIssued) -> None:
        self._outcomes.granted(verdict)
        self._queue.add(("machine", verdict.member.provider_id))

    def refused(self, verdict: CSRDenied) -> None:
        if self._outcomes.refused(verdict):
            self._queue.add(("machine", verdict.provider_id))

    async def reconcile(self) -> float | None:
        """Enqueue what is due of all machines and pools, from memory."""
        if self._guard.active_cluster(self._key) is None:
            return None
        policy, (pairs, around) = self._policy(), await self._survey()
        self._outcomes.forget_joined()
        due: set[Key] = {("machine", provider_id) for provider_id in self._outcomes.unwritten()}
        census, failing, withheld = MachineCensus(self._now()), 0, 0
        async for member, attestation in in_batches(pairs):
            census.add(member, attestation)
            decision = self._decide(member, attestation, policy, around)
            failing += attestation is not None and conditions.is_failing(attestation)
            withheld += isinstance(decision, on_failure.Withhold)
            if isinstance(decision, FailureAction):
                due.add(("node", member.provider_id))
            if self._new_condition(member, attestation):
                due.add(("machine", member.provider_id))
        for pool in list(self._management.objects_of(self._key, "machinepools")):
            if self._differs(pool, await self._pool_condition(pool)):
                due.add(("pool", text(pool, "metadata", "name")))
        for key in sorted(due):
            self._enqueue(*key)
        census.show(self._metrics, self._key)
        self._metrics.standing(self._key, failing=failing, treated=around.treated, withheld=withheld)
        return None

    async def failed(self, error: ApiError, failures: int, delay: float) -> None:
        """Do nothing: a resync reads from memory only."""

    def _enqueue(self, work: Work, name: str) -> None:
        """Enqueue a key, unless it failed and its next attempt is planned."""
        if not self._queue.failures((work, name)):
            self._queue.add((work, name))

    # One key

    async def _work(self, key: Key) -> None:
        work, name = key
        try:
            if self._guard.active_cluster(self._key) is not None:
                match work:
                    case "machine":
                        await self._reconcile_machine(name)
                    case "pool":
                        await self._reconcile_pool(name)
                    case "node":
                        await self._reconcile_node(name)
                    case "refusals":
                        await self._record_refusals(name)
        except (Conflict, NotFound) as error:  # another writer was faster, or the object is gone
            self._queue.retry(key, error)
        except ApiError as error:
            delay = self._queue.retry(key, error)
            what, reason, remedy = _FAILURES[work]
            self._events.report(what, error, reason=reason, remedy=remedy, name_=name, delay=delay)
        else:
            self._queue.forget(key)

    def _active_member(self, provider_id: str) -> MachineView | None:
        """Return the one machine with a provider ID; None where it is not to be touched."""
        members = self._inventory.members(self._key, provider_id)
        return members[0] if len(members) == 1 and not (members[0].paused or members[0].deleting) else None

    async def _reconcile_machine(self, provider_id: str) -> None:
        """Record the last decision, then write the condition; Node and refusals are keys of their own."""
        member, attestation = self._active_member(provider_id), self._attestation(provider_id)
        if member is None:
            self._outcomes.forget(provider_id)
            self._node_read_at.pop(provider_id, None)
            return
        if attestation is not None:
            decision = self._outcomes.decision(provider_id, attestation)
            if decision is not None:
                change: JsonObject = {"spec": {"lastVerdict": decision.render()}}
                attestation = await on_failure.patch_attestation(self._management, attestation, change)
            self._outcomes.decision_written(provider_id)
            if attestation.treatment is not None or conditions.is_failing(attestation):
                self._enqueue("node", provider_id)
        if self._outcomes.refusals(provider_id):
            self._enqueue("refusals", provider_id)
        if member.is_pool_instance:
            self._enqueue("pool", member.name)
        new = self._new_condition(member, attestation)
        if new is not None:
            resource, machine, wanted = new
            if wanted.reason == Reason.PROVIDER_ID_CHANGED and self._events.warn(
                ("provider ID", member.uid), "provider ID changed", machine=member.name
            ):
                self._events.event("Warning", wanted.reason, wanted.message, on=member_ref(member))
            await self._write_condition(resource, machine, wanted, ("machine", provider_id))

    async def _reconcile_node(self, provider_id: str) -> None:
        """Treat or release the Node, by what was done to all others up to now."""
        member, attestation = self._active_member(provider_id), self._attestation(provider_id)
        if member is None or attestation is None:
            return
        _pairs, around = await self._survey()
        decision = self._decide(member, attestation, self._policy(), around)
        if not isinstance(decision, FailureAction):
            return
        if decision is FailureAction.NONE:
            self._node_read_at.pop(provider_id, None)
            await self._nodes.release(member, attestation)
        else:
            await self._nodes.treat(member, attestation, decision)
            self._node_read_at[provider_id] = self._clock()
        if self._attestation(provider_id) is not attestation:
            self._enqueue("machine", provider_id)

    async def _record_refusals(self, provider_id: str) -> None:
        due, attestation = self._outcomes.refusals(provider_id), self._attestation(provider_id)
        if due and attestation is not None:
            refusals = render_refusals(latest_refusals((*attestation.refusals, *due), self._now()))
            change: JsonObject = {"status": {"refusals": [*refusals]}}
            await on_failure.patch_attestation(self._management, attestation, change, "/status")
        self._outcomes.refusals_written(provider_id, due)

    async def _reconcile_pool(self, name: str) -> None:
        pool = self._management.object_at("machinepools", self._key.partition("/")[0], name)
        wanted = await self._pool_condition(pool) if pool is not None else None
        if pool is not None and wanted is not None and self._differs(pool, wanted):
            await self._write_condition("machinepools", pool, wanted, ("pool", name))

    async def _write_condition(self, resource: MachineResource, obj: JsonObject, wanted: Condition, key: Key) -> None:
        if self._guard.active_cluster(self._key) is None:
            return
        if not self._conditions.take(text(obj, "metadata", "uid")):
            self._queue.add_after(key, 1 / OBJECT_RATE)
            return
        path = self._management.path_of(resource, text(obj, "metadata", "namespace"), text(obj, "metadata", "name"))
        await set_condition(self._management.client, path, obj, wanted, self._now)

    # What is known

    async def _survey(self) -> tuple[list[tuple[MachineView, Attestation | None]], on_failure.Around]:
        """Read every machine with its attestation record, and count them."""
        members = self._inventory.members_of(self._key)
        pairs = [(member, self._attestation(member.provider_id)) async for member in in_batches(members)]
        return pairs, on_failure.around_of(pairs, absent=await self._missing.count(pairs))

    def _decide(
        self, member: MachineView, attestation: Attestation | None, policy: Policy | None, around: on_failure.Around
    ) -> FailureAction | on_failure.Withhold | None:
        """Decide what is to be done to a machine's Node now; None where that was done lately."""
        if policy is None or attestation is None:
            return None
        decision = on_failure.decide(member, attestation, policy, around)
        if isinstance(decision, on_failure.Withhold):
            more = {"machine": member.name, "node": attestation.node_name, "why": decision.why}
            if self._events.warn("withheld", "left a failing node alone", **more):
                advice = "if so many fail it is more likely the policy's mistake: check what was changed last"
                message = f"Node {attestation.node_name} fails and is left alone: {decision.why}; {advice}"
                self._events.event("Warning", "OnFailureWithheld", message)
            return decision
        treatment, read_at = attestation.treatment, self._node_read_at.get(member.provider_id, float("-inf"))
        is_done = treatment is not None and treatment.action is decision and self._clock() - read_at < NODE_PERIOD
        return None if is_done else decision

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
        written = condition(items(machine, "status", "conditions"), conditions.CONDITION)
        shown = conditions.parse_refused_claim(text(dict(written), "message")) if written is not None else None
        wanted = conditions.condition_of_machine(
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
        return conditions.condition_of_pool(instances, self._now(), flaw=view.pool.flaw)

    def _differs(self, obj: JsonObject, wanted: Condition | None) -> bool:
        return wanted is not None and with_condition(obj, wanted, self._now()) is not None
