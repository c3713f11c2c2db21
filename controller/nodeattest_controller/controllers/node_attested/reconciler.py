"""One cluster's machines at work: verdicts are remembered, Nodes are treated, and conditions say how machines stand.

Promises: what is shown follows from ledgers and the time, so a word that gets lost is made up for by the next look at
all of them; writes happen on change, and are rationed by machine and by cluster; a cluster or machine that is paused,
going away or another replica's is left alone. Leaves to others: every decision (``conditions``, ``treatments``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from nodeattest_controller.controllers.node_attested.attestation_patcher import AttestationPatcher
from nodeattest_controller.controllers.node_attested.conditions import (
    CONDITION,
    condition_of_machine,
    condition_of_pool,
    refused_claim,
)
from nodeattest_controller.controllers.node_attested.events import NodeAttestedEvents
from nodeattest_controller.controllers.node_attested.missing_machines import MissingMachines
from nodeattest_controller.controllers.node_attested.node_actions import NodeActions
from nodeattest_controller.controllers.node_attested.pending import PendingOutcomes
from nodeattest_controller.controllers.node_attested.remediation import (
    NoAction,
    Remediate,
    Withhold,
    around_of,
    decide,
    is_failing,
)
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.machine_view import MachineView, views_of_pool
from nodeattest_controller.model.objects import condition, items, mapping, text
from nodeattest_controller.model.policy import Policy
from nodeattest_controller.runtime.conditions import Condition, set_condition, with_condition
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import MachineResource, ManagementCache
from nodeattest_controller.runtime.ownership import Ownership
from nodeattest_kube.client import ApiClient, ApiError, Conflict, Forbidden, NotFound
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_kube.rate_limiter import RateLimiter
from nodeattest_kube.workqueue import WorkQueue
from nodeattest_providers.errors import Denied, Unavailable

__all__ = ["NodeAttestedDeps", "NodeAttestedReconciler"]

Key = tuple[Literal["machine", "pool"], str]
"""A machine's provider ID, or a MachinePool's name."""
_RESOURCES: Final[Mapping[str, MachineResource]] = {"Machine": "machines", "MachineRecord": "machinerecords"}
"""What has a condition of its own, by kind; a pool's instances share the pool's."""
LOOK_PERIOD: Final = 60.0
"""Seconds between two looks at all machines when nothing changes: certificates end without a word."""
SETTLE: Final = 1.0
"""Seconds that changes are gathered before they are looked at: a Machine changes often, a look costs all of them."""
LOOK_REST: Final = 30.0
"""How many times as long as the last look took is waited before the next: at most a thirtieth of a core."""
LOOK_PIECE: Final = 200
"""Machines that are looked at before others get their turn."""
NODE_PERIOD: Final = 300.0
"""Seconds between two looks at a Node that is treated already: it may have been made anew."""
FORBIDDEN_PAUSE: Final = 120.0
"""Seconds until something is tried again for which a right is missing."""
REFUSED_PAUSE: Final = 600.0
"""Seconds until an object is tried again whose write the management cluster refused."""
REFUSED_IN_A_ROW: Final = 3
"""Different objects refused, with no write between, that show a right to be missing: one alone may be an admission
policy's business with that object."""
OBJECT_BURST, OBJECT_RATE = 6, 1 / 30
"""Conditions that one object may get at once, and a second after that."""
CLUSTER_BURST, CLUSTER_RATE = 200, 10.0
"""The same for all objects of a cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAttestedDeps:
    """What the work of every cluster stands on."""

    management: ManagementCache
    ownership: Ownership
    metrics: Metrics
    now: Callable[[], datetime]
    clock: Callable[[], float]
    """Monotonic seconds."""


class NodeAttestedReconciler:
    """The machines of one connected cluster."""

    def __init__(
        self,
        ground: NodeAttestedDeps,
        key: ClusterKey,
        client: ApiClient,
        words: PendingOutcomes,
        reports: NodeAttestedEvents,
    ) -> None:
        self._ground = ground
        self._key = key
        self._words = words
        self._reports = reports
        self._records = AttestationPatcher(ground.management)
        self._nodes = NodeActions(client, self._records, reports, ground.now)
        self._absent = MissingMachines(key, ground.management, ground.clock)
        self._queue: WorkQueue[Key] = WorkQueue(clock=ground.clock)
        self._wake = asyncio.Event()
        self._objects = RateLimiter(burst=OBJECT_BURST, per_second=OBJECT_RATE, clock=ground.clock)
        self._all = RateLimiter(burst=CLUSTER_BURST, per_second=CLUSTER_RATE, clock=ground.clock)
        self._looked: dict[str, float] = {}
        """When the Node of a treated machine was looked at, by provider ID."""
        self._rests: dict[Key, float] = {}
        """Until when a machine is not looked at whose Node may not be written."""
        self._refused: dict[Key, float] = {}
        """Until when an object is left alone whose write was refused; kept after that, for such ones come last."""
        self._row: set[Key] = set()
        """What was refused since the last write that was not."""
        self._silent_until = float("-inf")
        """Until when nothing is tried, because the management cluster refuses it."""

    synced = True
    """Nothing is watched here that the management cluster's caches do not hold."""

    last_error: ApiError | None = None
    """The same."""

    async def run(self) -> None:
        """Serve until cancelled."""
        self._wake.set()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._queue.run(self._step, 1))
                tasks.create_task(self._watch())
        finally:
            self._queue.shut_down()
            self._ground.metrics.forget_standing(self._key)

    def changed(self) -> None:
        """Hear that something of the cluster changed."""
        self._wake.set()

    def heard(self, provider_id: str) -> None:
        """Hear that there is a word on a machine."""
        self._queue.add(("machine", provider_id))

    async def _watch(self) -> None:
        took = 0.0
        while True:
            try:
                async with asyncio.timeout(LOOK_PERIOD):
                    await self._wake.wait()
            except TimeoutError:
                pass
            await asyncio.sleep(max(SETTLE, took * LOOK_REST))
            self._wake.clear()
            if self._may_act():
                started = self._ground.clock()
                await self._look()
                took = self._ground.clock() - started

    async def _look(self) -> None:
        """Find what has to be done, in memory, and let others work in between."""
        management, policy = self._ground.management, self._policy()
        pairs = [(member, self._ledger(member)) for member in management.inventory.members_of(self._key)]
        around, withheld = around_of(pairs, absent=self._absent.count(pairs)), 0
        due: list[Key] = [("machine", provider_id) for provider_id in self._words.pending()]
        for number, (member, ledger) in enumerate(pairs):
            if number % LOOK_PIECE == 0:
                await asyncio.sleep(0)
            decision = decide(member, ledger, policy, around) if policy is not None and ledger else NoAction.LEAVE
            if isinstance(decision, Withhold) and ledger is not None:
                withheld += 1
                self._reports.withheld(member, ledger, decision.why)
            if self._is_due(member, ledger, decision) or self._shows_otherwise(member, ledger):
                due.append(("machine", member.provider_id))
        due.extend(
            ("pool", text(pool, "metadata", "name"))
            for pool in management.objects_of(self._key, "machinepools")
            if self._patch(pool, self._condition_of_pool(pool)) is not None
        )
        for key in sorted(due, key=self._refused_until):  # those that are refused hold nobody up
            self._offer(key)
        self._refused = {key: until for key, until in self._refused.items() if self._is_there(key)}
        failing = sum(ledger is not None and is_failing(ledger) for _member, ledger in pairs)
        self._ground.metrics.standing(self._key, failing=failing, treated=around.treated, withheld=withheld)

    def _offer(self, key: Key) -> None:
        """Have a key worked on, unless it failed and its next try is planned."""
        if not self._queue.failures(key) and self._rests.get(key, float("-inf")) <= self._ground.clock():
            self._queue.add(key)

    def _refused_until(self, key: Key) -> float:
        return self._refused.get(key, float("-inf"))

    def _is_there(self, key: Key) -> bool:
        management, (kind, name) = self._ground.management, key
        if kind == "machine":
            return bool(management.inventory.members(self._key, name))
        return management.object_at("machinepools", self._key.partition("/")[0], name) is not None

    def _is_due(
        self, member: MachineView, ledger: Attestation | None, decision: Remediate | Withhold | NoAction
    ) -> bool:
        if not isinstance(decision, Remediate) or ledger is None or ledger.treatment is None:
            return isinstance(decision, Remediate) or decision is NoAction.RELEASE
        last = self._looked.get(member.provider_id, float("-inf"))
        return ledger.treatment.action is not decision.action or self._ground.clock() - last >= NODE_PERIOD

    def _shows_otherwise(self, member: MachineView, ledger: Attestation | None) -> bool:
        resource = _RESOURCES.get(member.kind)
        if resource is None or member.paused or member.deleting:
            return False
        machine = self._ground.management.object_at(resource, member.namespace, member.name)
        return machine is not None and self._patch(machine, self._condition_of(machine, member, ledger)) is not None

    # One step

    async def _step(self, key: Key) -> None:
        if not self._may_act() or self._refused_until(key) > self._ground.clock():
            self._queue.forget(key)  # what it was about stands in the ledger, or is told again
            return
        kind, name = key
        try:
            await (self._machine(name) if kind == "machine" else self._pool(name))
        except Forbidden as error:
            self._queue.forget(key)
            self._reports.management_forbidden(error)
            self._refused[key] = self._ground.clock() + REFUSED_PAUSE
            self._row.add(key)
            if len(self._row) >= REFUSED_IN_A_ROW:  # so will the next one be
                self._row.clear()
                self._silent_until = self._ground.clock() + FORBIDDEN_PAUSE
        except ApiError as error:
            delay = self._queue.retry(key)
            if not isinstance(error, (Conflict, NotFound)):  # somebody was faster, or something is gone: look again
                self._reports.failed(f"{kind} {name}", error, delay)
        else:
            self._queue.forget(key)

    async def _machine(self, provider_id: str) -> None:
        member = self._member(provider_id)
        if member is None:
            self._words.forget(provider_id)
            self._looked.pop(provider_id, None)
            self._rests.pop(("machine", provider_id), None)
            return
        ledger = self._ledger(member)
        if ledger is not None:
            ledger = await self._remember(member, ledger)
            ledger = await self._see_to_node(member, ledger)
        if member.is_pool_instance:
            self._offer(("pool", member.name))
            return
        resource = _RESOURCES.get(member.kind)
        machine = self._ground.management.object_at(resource, member.namespace, member.name) if resource else None
        if resource is None or machine is None:
            return
        wanted = self._condition_of(machine, member, ledger)
        claim = self._words.claim(provider_id)
        if claim is not None and not member.node_ref_name and (ledger is None or not ledger.issued):
            wanted = refused_claim(claim)
        await self._show(resource, machine, wanted, ("machine", provider_id))
        self._words.told(provider_id)

    async def _remember(self, member: MachineView, ledger: Attestation) -> Attestation:
        """Write the last verdict down, where it is news."""
        verdict = self._words.verdict(member.provider_id, ledger)
        if verdict is not None:
            ledger = await self._records.judge(ledger, verdict)
        self._words.remembered(member.provider_id)
        return ledger

    async def _see_to_node(self, member: MachineView, ledger: Attestation) -> Attestation:
        policy = self._policy()
        if policy is None or (ledger.treatment is None and not is_failing(ledger)):
            return ledger
        inventory = self._ground.management.inventory
        pairs = [(one, self._ledger(one)) for one in inventory.members_of(self._key)]
        around = around_of(pairs, absent=self._absent.count(pairs))
        try:
            match decide(member, ledger, policy, around):
                case Remediate(action):
                    self._looked[member.provider_id] = self._ground.clock()
                    return await self._nodes.treat(member, ledger, action)
                case Withhold(why):
                    self._reports.withheld(member, ledger, why)
                case NoAction.RELEASE:
                    self._looked.pop(member.provider_id, None)
                    return await self._nodes.release(member, ledger)
                case NoAction.LEAVE:
                    pass
        except Forbidden as error:
            self._reports.nodes_forbidden(error)
            self._rests["machine", member.provider_id] = self._ground.clock() + FORBIDDEN_PAUSE
        return self._ledger(member) or ledger

    async def _pool(self, name: str) -> None:
        namespace = self._key.partition("/")[0]
        pool = self._ground.management.object_at("machinepools", namespace, name)
        if pool is not None:
            await self._show("machinepools", pool, self._condition_of_pool(pool), ("pool", name))

    async def _show(self, resource: MachineResource, obj: JsonObject, wanted: Condition | None, key: Key) -> None:
        if wanted is None or self._patch(obj, wanted) is None or not self._may_act():
            return
        uid = text(obj, "metadata", "uid")
        for bucket, whose in ((self._objects, uid), (self._all, "")):
            if not bucket.take(whose):
                self._queue.add_after(key, 1 / OBJECT_RATE)
                return
        path = self._ground.management.path_of(resource, *_name_of(obj))
        await set_condition(self._ground.management.client, path, obj, wanted, self._ground.now)
        self._row.clear()

    # What is known

    def _may_act(self) -> bool:
        management = self._ground.management
        cluster = management.cluster(self._key)
        if self._ground.clock() < self._silent_until:
            return False
        if cluster is None or "deletionTimestamp" in mapping(cluster, "metadata") or management.is_paused(cluster):
            return False
        return self._ground.ownership.owns(self._key)

    def _policy(self) -> Policy | None:
        """Return the policy; None where it cannot be told, and then nothing is done or undone."""
        cluster = self._ground.management.cluster(self._key)
        try:
            return self._ground.management.policy_of(cluster) if cluster is not None else None
        except (Denied, Unavailable):
            return None

    def _member(self, provider_id: str) -> MachineView | None:
        members = self._ground.management.inventory.members(self._key, provider_id)
        if len(members) != 1 or members[0].paused or members[0].deleting:
            return None
        return members[0]

    def _ledger(self, member: MachineView) -> Attestation | None:
        """Return a machine's ledger, unless it is a predecessor's that is about to be collected."""
        inventory = self._ground.management.inventory
        ledger = inventory.ledger(self._key, member.provider_id)
        owners = inventory.owners(self._key, member.provider_id)
        return ledger if ledger is not None and ledger.owner_uid in owners else None

    def _condition_of(self, machine: JsonObject, member: MachineView, ledger: Attestation | None) -> Condition | None:
        shown = condition(items(machine, "status", "conditions"), CONDITION) or {}
        return condition_of_machine(member, ledger, self._ground.now(), text(dict(shown), "reason"))

    def _condition_of_pool(self, pool: JsonObject) -> Condition | None:
        instances = views_of_pool(pool)
        if "deletionTimestamp" in mapping(pool, "metadata") or any(one.paused for one in instances):
            return None
        return condition_of_pool([self._ledger(one) for one in instances], self._ground.now())

    def _patch(self, obj: JsonObject, wanted: Condition | None) -> JsonObject | None:
        return with_condition(obj, wanted, self._ground.now()) if wanted is not None else None


def _name_of(obj: JsonObject) -> tuple[str, str]:
    return text(obj, "metadata", "namespace"), text(obj, "metadata", "name")
