"""Counts the machines of one cluster by how they are attested, and their certificates by what remains of them. Pure."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from nodeattest_controller.certificate_metrics import ClusterCertificates, MachineState, counts_of_remaining
from nodeattest_controller.controllers.node_attested.conditions import is_refused, newest_certificate
from nodeattest_controller.model.attestation import Attestation, IssuedCertificate
from nodeattest_controller.model.last_decision import RESET
from nodeattest_controller.model.machine_view import MachineView

__all__ = ["MachineCensus", "attestation_state"]


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
