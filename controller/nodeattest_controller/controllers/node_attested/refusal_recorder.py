"""Writes the refused requests of one cluster into the status of its machines' MachineAttestations.

Promises: bounded by the cluster's machines that have a MachineAttestation, each with cut texts; a flood of requests
costs no more writes than the rates below, and one of a token or a stranger takes none of the node's own. What is above
the rates, or cannot be written, is not recorded; a write that fails keeps no condition back.
Leaves to others: the rules of the list (``model.refusals``).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from nodeattest_controller.controllers.node_attested.attestation_patcher import AttestationPatcher
from nodeattest_controller.controllers.node_attested.events import NodeAttestedEvents
from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.refusals import MAX_MESSAGE, MAX_NAME, RecordedRefusal, Requester, latest_refusals
from nodeattest_controller.runtime.csr_observer import CSRDenied
from nodeattest_discovery.token import USER_PREFIX
from nodeattest_kube.client import ApiError, Conflict, NotFound
from nodeattest_kube.rate_limiter import RateLimiter
from nodeattest_parsing.printable import one_line
from nodeattest_providers.errors import Reason

__all__ = ["RECORD_PAUSE", "SILENT", "RefusalRecorder", "UnwrittenRefusals"]

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


class UnwrittenRefusals:
    """Of one cluster, by provider ID. Pure but for the clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._due: dict[str, tuple[RecordedRefusal, ...]] = {}
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
        self._due[provider_id] = latest_refusals((*self._due.get(provider_id, ()), new), denied.at)
        return True

    def due(self) -> set[str]:
        """Return the machines whose MachineAttestation shall be written."""
        return set(self._due)

    def get(self, provider_id: str) -> tuple[RecordedRefusal, ...]:
        """Return what shall be written of a machine."""
        return self._due.get(provider_id, ())

    def forget(self, provider_id: str, written: tuple[RecordedRefusal, ...] | None = None) -> None:
        """Drop what shall be written of a machine; ``written``: unless more came meanwhile."""
        if written is None or self._due.get(provider_id) == written:
            self._due.pop(provider_id, None)


class RefusalRecorder:
    """The records of one cluster."""

    def __init__(
        self,
        patcher: AttestationPatcher,
        unwritten: UnwrittenRefusals,
        events: NodeAttestedEvents,
        *,
        now: Callable[[], datetime],
        clock: Callable[[], float],
    ) -> None:
        self._patcher = patcher
        self._unwritten = unwritten
        self._events = events
        self._now = now
        self._clock = clock
        self._paused_until = float("-inf")

    async def write(self, provider_id: str, attestation: Attestation | None) -> None:
        """Write what is due of a machine; raises Conflict, after which it is still due."""
        due = self._unwritten.get(provider_id)
        if attestation is None:
            self._unwritten.forget(provider_id)
        elif due and self._clock() >= self._paused_until:
            try:
                latest = latest_refusals((*attestation.refusals, *due), self._now())
                await self._patcher.record_refusals(attestation, latest)
            except Conflict:
                raise
            except NotFound:  # the object is gone
                pass
            except ApiError as error:
                self._paused_until = self._clock() + RECORD_PAUSE
                self._events.not_recorded(error)
                return
            self._unwritten.forget(provider_id, due)


def _requester(denied: CSRDenied, attestation: Attestation) -> Requester:
    """Tell who asked; a node speaks for the machine that the ledger bound to its name, and for no other."""
    if denied.by_node and denied.node_name == attestation.node_name:
        return Requester.NODE
    return Requester.BOOTSTRAP if denied.username.startswith(USER_PREFIX) else Requester.OTHER
