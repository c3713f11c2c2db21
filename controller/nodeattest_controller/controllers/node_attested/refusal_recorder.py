"""Writes counted refusals of one cluster into the status of its machines' MachineAttestations.

Promises: a write that fails or is forbidden is reported and tried again later, and keeps no condition back; nothing is
written of a machine without a MachineAttestation. Leaves to others: what is counted and how often it is due
(``refusal_counts``), the rules of the list (``model.refusals``).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from nodeattest_controller.controllers.node_attested.attestation_patcher import AttestationPatcher
from nodeattest_controller.controllers.node_attested.events import NodeAttestedEvents
from nodeattest_controller.controllers.node_attested.refusal_counts import RefusalCounts
from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.refusals import merge_refusals
from nodeattest_kube.client import ApiError, Conflict, NotFound

__all__ = ["RECORD_PAUSE", "RefusalRecorder"]

RECORD_PAUSE: Final = 600.0
"""Seconds in which no record of the cluster is tried after one that failed: mostly a right is missing."""


class RefusalRecorder:
    """The records of one cluster."""

    def __init__(
        self,
        patcher: AttestationPatcher,
        counts: RefusalCounts,
        events: NodeAttestedEvents,
        *,
        now: Callable[[], datetime],
        clock: Callable[[], float],
    ) -> None:
        self._patcher = patcher
        self._counts = counts
        self._events = events
        self._now = now
        self._clock = clock
        self._paused_until = float("-inf")

    async def write(self, provider_id: str, attestation: Attestation | None) -> None:
        """Write what is due of a machine; raises Conflict, after which it is due again."""
        if attestation is None:
            self._counts.forget(provider_id)
            return
        counted = self._counts.take(provider_id) if self._clock() >= self._paused_until else ()
        if not counted:
            return
        try:
            merged = merge_refusals(attestation.refusals, counted, self._now())
            await self._patcher.record_refusals(attestation, merged)
        except NotFound:  # the object is gone, and what was counted for it
            return
        except Conflict:
            self._counts.put_back(provider_id, counted, due=True)
            raise
        except ApiError as error:
            self._counts.put_back(provider_id, counted, due=False)
            self._paused_until = self._clock() + RECORD_PAUSE
            self._events.not_recorded(error)
