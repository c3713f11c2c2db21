"""Refused requests that MachineAttestations do not have yet: counted one by one, written within rates.

Promises: bounded by the cluster's machines that have a MachineAttestation, each with cut texts; a flood of requests
costs no more writes than the rates below, and one of a token or a stranger takes none of the node's own. What was
counted and not written is lost with the replica, which decides nothing. Pure but for the clock.
Leaves to others: writing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.refusals import MAX_MESSAGE, MAX_NAME, RecordedRefusal, Requester, merge_refusals
from nodeattest_controller.runtime.csr_observer import CSRDenied
from nodeattest_discovery.token import USER_PREFIX
from nodeattest_kube.rate_limiter import RateLimiter
from nodeattest_parsing.printable import one_line
from nodeattest_providers.errors import Reason

__all__ = ["SILENT", "RefusalCounts"]

SILENT: Final = frozenset({Reason.SUPERSEDED, Reason.CHALLENGE_EXPIRED})
"""How first requests end."""
RECORD_BURST, RECORD_RATE = 2, 1 / 300
"""Writes of one machine's refusals at once, and a second after that; its node has the same for itself."""
RECORDS_BURST, RECORDS_RATE = 50, 1 / 10
"""The same of all machines of a cluster together, by requests of others than their nodes."""
NODES_BURST, NODES_RATE = 200, 1.0
"""The same by the nodes: after a wrong policy, all of a fleet are refused."""


class RefusalCounts:
    """Of one cluster, by provider ID."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._counted: dict[str, tuple[RecordedRefusal, ...]] = {}
        self._due: set[str] = set()
        self._one = RateLimiter(burst=RECORD_BURST, per_second=RECORD_RATE, clock=clock)
        self._others = RateLimiter(burst=RECORDS_BURST, per_second=RECORDS_RATE, clock=clock)
        self._nodes = RateLimiter(burst=NODES_BURST, per_second=NODES_RATE, clock=clock)

    def count(self, denied: CSRDenied, attestation: Attestation) -> bool:
        """Count a refusal; returns whether it shall be written now."""
        if denied.reason in SILENT:
            return False
        new = RecordedRefusal(
            requester=_requester(denied, attestation),
            reason=denied.reason,
            first=denied.at,
            last=denied.at,
            request=one_line(denied.request_name, MAX_NAME),
            message=one_line(denied.message.removeprefix(f"{denied.reason}: "), MAX_MESSAGE),
        )
        self._counted[denied.provider_id] = merge_refusals(self._counted.get(denied.provider_id, ()), (new,), denied.at)
        return self._release(denied.provider_id)

    def release(self) -> None:
        """Let through what the rates held back."""
        for provider_id in self._counted.keys() - self._due:
            self._release(provider_id)

    def due(self) -> set[str]:
        """Return the machines whose MachineAttestation shall be written."""
        return set(self._due)

    def take(self, provider_id: str) -> tuple[RecordedRefusal, ...]:
        """Take out what shall be written of a machine; empty where nothing is due."""
        if provider_id not in self._due:
            return ()
        self._due.discard(provider_id)
        return self._counted.pop(provider_id, ())

    def put_back(self, provider_id: str, refusals: tuple[RecordedRefusal, ...], *, due: bool) -> None:
        """Keep what could not be written; ``due``: to be tried at once, else when the rates allow it."""
        newest = max((one.last for one in refusals), default=None)
        if newest is not None:
            self._counted[provider_id] = merge_refusals(refusals, self._counted.get(provider_id, ()), newest)
        if due and provider_id in self._counted:
            self._due.add(provider_id)

    def forget(self, provider_id: str) -> None:
        """Hear that the machine, or its MachineAttestation, is gone."""
        self._due.discard(provider_id)
        self._counted.pop(provider_id, None)

    def _release(self, provider_id: str) -> bool:
        if provider_id in self._due:
            return True
        by_node = any(one.requester is Requester.NODE for one in self._counted[provider_id])
        all_machines = self._nodes if by_node else self._others
        if self._one.take((provider_id, by_node)) and all_machines.take(""):
            self._due.add(provider_id)
            return True
        return False


def _requester(denied: CSRDenied, attestation: Attestation) -> Requester:
    """Tell who asked; a node speaks for the machine that the ledger bound to its name, and for no other."""
    if denied.by_node and denied.node_name == attestation.node_name:
        return Requester.NODE
    return Requester.BOOTSTRAP if denied.username.startswith(USER_PREFIX) else Requester.OTHER
