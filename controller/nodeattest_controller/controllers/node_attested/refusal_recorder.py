"""What is written of machines besides conditions: MachineAttestations' outcomes and refusals, metrics, Events.

Each write of a MachineAttestation is a compare-and-swap on the version that was read; after a Conflict the index has
the newer one. Refused requests are bounded by the cluster's machines that have one, each with cut texts; a flood costs
no more writes than the rates below, and one of a token or a stranger takes none of the node's own. Leaves to others:
the rules of the list of refusals (``model.refusals``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from nodeattest_controller.controllers.node_attested.conditions import is_refused, newest_certificate
from nodeattest_controller.metrics import ClusterCertificates, MachineState, counts_of_remaining
from nodeattest_controller.model.attestation import (
    RESET,
    Attestation,
    IssuedCertificate,
    LastDecision,
    Remediation,
    parse_attestation,
)
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.policy import FailureAction
from nodeattest_controller.model.refusals import (
    MAX_MESSAGE,
    MAX_NAME,
    RecordedRefusal,
    Requester,
    latest_refusals,
    render_refusals,
)
from nodeattest_controller.runtime.cluster_controller import CSRDenied
from nodeattest_controller.runtime.cluster_log import ClusterEvents
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.objectref import member_ref
from nodeattest_discovery.token import USER_PREFIX
from nodeattest_kube.errors import ApiError, Conflict, Forbidden, NotFound
from nodeattest_kube.rate_limiter import RateLimiter
from nodeattest_parsing.objects import rfc3339
from nodeattest_parsing.values import JsonObject, one_line
from nodeattest_providers.errors import Reason


class AttestationPatcher:
    """Patches MachineAttestations by compare-and-swap."""

    def __init__(self, management: ManagementCache) -> None:
        self._management = management

    async def record_decision(self, attestation: Attestation, verdict: LastDecision) -> Attestation:
        """Write the last decision; raises ApiError."""
        return await self._write(attestation, {"spec": {"lastVerdict": verdict.render()}})

    async def record_remediation(self, attestation: Attestation, treatment: Remediation | None) -> Attestation:
        """Write the action that is about to be done to the Node, None when it is undone; raises ApiError."""
        done = treatment.render() if treatment is not None else None
        return await self._write(attestation, {"spec": {"onFailure": done}})

    async def record_refusals(self, attestation: Attestation, refusals: Sequence[RecordedRefusal]) -> Attestation:
        """Write the refused requests, which are status; raises ApiError."""
        return await self._write(attestation, {"status": {"refusals": [*render_refusals(refusals)]}}, "/status")

    async def _write(self, attestation: Attestation, change: JsonObject, subresource: str = "") -> Attestation:
        patch: JsonObject = {"metadata": {"resourceVersion": attestation.resource_version}, **change}
        client, where = self._management.client, (attestation.namespace, attestation.name)
        try:
            written = await self._management.ask_attestation(
                *where, lambda path: client.merge_patch(path + subresource, patch)
            )
        except Conflict:
            await self._management.ask_attestation(*where, client.get)
            raise
        return parse_attestation(written)


def attestation_state(member: MachineView, attestation: Attestation | None, now: datetime) -> MachineState:
    """Say how a machine is attested, by the order of ``condition_of_machine``."""
    newest = newest_certificate(attestation)
    if attestation is None or newest is None:
        if attestation is not None and attestation.verdict is not None and attestation.verdict.verdict == RESET:
            return MachineState.RESET
        return MachineState.NOT_ATTESTED if member.node_ref_name else MachineState.PENDING
    if newest.not_after <= now:
        return MachineState.EXPIRED
    return MachineState.REFUSED if is_refused(attestation) else MachineState.ATTESTED


class MachineCensus:
    """One count, at one time."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._states: Counter[MachineState] = Counter()
        self._earliest: IssuedCertificate | None = None
        self._remaining: list[float] = []

    def add(self, member: MachineView, attestation: Attestation | None) -> None:
        """Count one machine."""
        self._states[attestation_state(member, attestation, self._now)] += 1
        newest = newest_certificate(attestation)
        if newest is None:
            return
        remaining = (newest.not_after - self._now).total_seconds()
        self._remaining.append(max(0.0, remaining))
        if remaining > 0 and (self._earliest is None or newest.not_after < self._earliest.not_after):
            self._earliest = newest

    def result(self) -> ClusterCertificates:
        """Return the figures."""
        first = self._earliest
        return ClusterCertificates(
            states=dict(self._states),
            earliest_end=first.not_after.timestamp() if first else None,
            earliest_lifetime=(first.not_after - first.not_before).total_seconds() if first else 0.0,
            remaining=counts_of_remaining(self._remaining),
            remaining_sum=sum(self._remaining),
        )


NODES_REMEDY: Final = (
    "apply manifests/workload-on-failure in the workload cluster, or set the policy's onFailure to None"
)
STATUS_REMEDY: Final = (
    "apply this version's manifests/rbac in the management cluster, or let the write pass where an admission policy "
    "refuses it, or take standing from --controllers"
)
_EVENTS: Final = {
    FailureAction.TAINT: "NodeTainted",
    FailureAction.CORDON: "NodeCordoned",
    FailureAction.DELETE_NODE: "NodeDeleted",
}


class NodeAttestedEvents:
    """Reports of one cluster's reconciler."""

    def __init__(self, events: ClusterEvents) -> None:
        self._events = events

    def treated(self, member: MachineView, attestation: Attestation, action: FailureAction) -> None:
        """Report what was done to a Node."""
        reason = attestation.verdict.reason if attestation.verdict else ""
        ends = max((entry.not_after for entry in attestation.issued), default=None)
        until = f"; its certificate stays good until {rfc3339(ends)}" if ends else ""
        message = (
            f"Node {attestation.node_name}: onFailure {action}, because its own request was refused: {reason}{until}"
        )
        who = {"machine": member.name, "node": attestation.node_name}
        self._events.warn(None, "treated a node", **who, action=action, reason=reason)
        self._events.event("Warning", _EVENTS[action], message, on=member_ref(member))

    def released(self, member: MachineView, attestation: Attestation) -> None:
        """Report that the action on a Node is undone."""
        self._events.info("released a node", machine=member.name, node=attestation.node_name)
        message = f"Node {attestation.node_name}: what onFailure did is undone"
        self._events.event("Normal", "NodeReleased", message, on=member_ref(member))

    def withheld(self, member: MachineView, attestation: Attestation, why: str) -> None:
        """Report that a failing Node is left alone."""
        more = {"machine": member.name, "node": attestation.node_name, "why": why}
        if not self._events.warn("withheld", "left a failing node alone", **more):
            return
        advice = "if so many fail it is more likely the policy's mistake: check what was changed last"
        message = f"Node {attestation.node_name} fails and is left alone: {why}; {advice}"
        self._events.event("Warning", "OnFailureWithheld", message)

    def provider_id_changed(self, machine: MachineView, message: str) -> None:
        """Report that Cluster API has set another provider ID than the Machine joined with."""
        if self._events.warn(("provider ID", machine.uid), "provider ID changed", machine=machine.name):
            self._events.event("Warning", Reason.PROVIDER_ID_CHANGED, message, on=member_ref(machine))

    def nodes_forbidden(self, error: ApiError) -> None:
        """Report that a Node may not be written."""
        self._forbidden("OnFailureForbidden", "cannot treat a Node", error, NODES_REMEDY)

    def management_forbidden(self, error: ApiError) -> None:
        """Report that a status or a MachineAttestation may not be written."""
        self._forbidden("StandingForbidden", "cannot write where machines stand", error, STATUS_REMEDY)

    def not_recorded(self, error: ApiError) -> None:
        """Report that refused requests cannot be recorded; conditions are written all the same."""
        what = "cannot record refused requests in MachineAttestations; conditions are written all the same"
        if isinstance(error, Forbidden):
            self._forbidden("RefusalsForbidden", what, error, STATUS_REMEDY)
        else:
            self._events.warn(("not recorded", error.reason), what, error=error.reason, message_=error.message)

    def failed(self, what: str, error: ApiError, delay: float) -> None:
        """Report any other refused write."""
        more = {"what": what, "error": error.reason, "message_": error.message, "delay": delay}
        self._events.warn(
            ("failed", error.reason), "cannot write a machine's condition NodeAttested; will try again", **more
        )

    def _forbidden(self, reason: str, what: str, error: ApiError, remedy: str) -> None:
        if self._events.warn(reason, what, error=error.message, remedy=remedy):
            self._events.event("Warning", reason, f"{what}: {error}; {remedy}")


SILENT: Final = frozenset({Reason.SUPERSEDED, Reason.CHALLENGE_EXPIRED})
"""How first requests end."""
RECORD_PAUSE: Final = 600.0
"""Seconds in which no record of the cluster is tried after one that failed: mostly a right is missing."""
RECORD_BURST, RECORD_RATE = 6, 1 / 300
"""Writes of one machine's refusals by one requester at once, and a second after that."""
RECORDS_BURST, RECORDS_RATE = 50, 1 / 10
"""The same of all machines of a cluster together, by requests of others than their nodes."""
NODES_BURST, NODES_RATE = 200, 1.0
"""The same by the nodes: after a wrong policy, all of a fleet are refused."""


class RefusalRecorder:
    """Refused requests that are to be written into the MachineAttestations of one cluster, by provider ID."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` is monotonic seconds."""
        self._clock = clock
        self._due: dict[str, tuple[RecordedRefusal, ...]] = {}
        self._paused_until = float("-inf")
        self._one = RateLimiter(burst=RECORD_BURST, per_second=RECORD_RATE, clock=clock)
        self._others = RateLimiter(burst=RECORDS_BURST, per_second=RECORDS_RATE, clock=clock)
        self._nodes = RateLimiter(burst=NODES_BURST, per_second=NODES_RATE, clock=clock)

    def note(self, denied: CSRDenied, attestation: Attestation) -> bool:
        """Note a refusal; returns whether the MachineAttestation shall be written."""
        if denied.reason in SILENT:
            return False
        provider_id, requester = denied.provider_id, _requester(denied, attestation)
        all_machines = self._nodes if requester is Requester.NODE else self._others
        if not (self._one.take((provider_id, requester, denied.username[:MAX_NAME])) and all_machines.take("")):
            return False
        new = RecordedRefusal(
            requester=requester,
            reason=denied.reason,
            time=denied.at,
            request=one_line(denied.request_name, MAX_NAME),
            message=one_line(denied.message.removeprefix(f"{denied.reason}: "), MAX_MESSAGE),
        )
        self._due[provider_id] = latest_refusals((*self.due(provider_id), new), denied.at)
        return True

    def due(self, provider_id: str) -> tuple[RecordedRefusal, ...]:
        """Return what shall be written of a machine."""
        return self._due.get(provider_id, ())

    def machines(self) -> set[str]:
        """Return the machines whose MachineAttestation shall be written."""
        return set(self._due)

    def forget(self, provider_id: str) -> None:
        """Drop what shall be written of a machine."""
        self._due.pop(provider_id, None)

    async def write(
        self, attestation: Attestation | None, provider_id: str, patcher: AttestationPatcher, now: datetime
    ) -> ApiError | None:
        """Write what is due of a machine; raises Conflict, after which it is still due.

        After any other error nothing is tried for a while, and the error is returned: no condition waits for this.
        """
        due = self.due(provider_id)
        if attestation is not None and due:
            if self._clock() < self._paused_until:
                return None
            try:
                await patcher.record_refusals(attestation, latest_refusals((*attestation.refusals, *due), now))
            except Conflict:
                raise
            except NotFound:  # the object is gone
                pass
            except ApiError as error:
                self._paused_until = self._clock() + RECORD_PAUSE
                return error
        if self.due(provider_id) == due:  # nothing came meanwhile
            self.forget(provider_id)
        return None


def _requester(denied: CSRDenied, attestation: Attestation) -> Requester:
    """Tell who asked; a node speaks for the machine that the ledger bound to its name, and for no other."""
    if denied.by_node and denied.node_name == attestation.node_name:
        return Requester.NODE
    return Requester.BOOTSTRAP if denied.username.startswith(USER_PREFIX) else Requester.OTHER
