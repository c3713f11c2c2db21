"""Counts the machines of a cluster for the metrics, by the condition NodeAttested."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Final

from nodeattest_controller.controllers.node_attested.conditions import Known, condition_of_machine, newest_certificate
from nodeattest_controller.metrics import ClusterCertificates, MachineState
from nodeattest_controller.model.attestation import Attestation, IssuedCertificate
from nodeattest_controller.model.machine_view import MachineView

_STATES: Final[dict[str, MachineState]] = {
    Known.ATTESTED: MachineState.ATTESTED,
    Known.NOT_YET: MachineState.PENDING,
    Known.NOT_ATTESTED: MachineState.NOT_ATTESTED,
    Known.EXPIRED: MachineState.EXPIRED,
    Known.RESET: MachineState.RESET,
}
"""By the condition's reason; any other is a refusal's."""


class MachineCensus:
    """One count, at one time."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._states: Counter[MachineState] = Counter()
        self._newest: list[IssuedCertificate] = []

    def add(self, member: MachineView, attestation: Attestation | None) -> None:
        """Count one machine."""
        reason = condition_of_machine(member, attestation, self._now).reason
        self._states[_STATES.get(reason, MachineState.REFUSED)] += 1
        newest = newest_certificate(attestation)
        if newest is not None:
            self._newest.append(newest)

    def result(self) -> ClusterCertificates:
        """Return the figures."""
        good = [one for one in self._newest if one.not_after > self._now]
        first = min(good, key=lambda one: one.not_after, default=None)
        return ClusterCertificates(
            states=dict(self._states),
            earliest_end=first.not_after.timestamp() if first else None,
            earliest_lifetime=(first.not_after - first.not_before).total_seconds() if first else 0.0,
        )
