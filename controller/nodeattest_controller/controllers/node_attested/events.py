"""What operators hear of machines that fail: Events, a log line, metrics, each as rarely as it still helps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Final

from nodeattest_controller.logs import fields
from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.objects import rfc3339
from nodeattest_controller.model.policy import FailureAction
from nodeattest_controller.runtime.events import EventRecorder
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.objectref import cluster_ref, member_ref
from nodeattest_kube.client import ApiError
from nodeattest_kube.rate_limiter import RateLimiter

__all__ = ["NODES_REMEDY", "STATUS_REMEDY", "NodeAttestedEvents"]

_LOG: Final = logging.getLogger(__name__)
TELL_PERIOD: Final = 600.0
"""Seconds between two words about one cluster's trouble of one kind."""
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
    """The voice of one cluster's work."""

    def __init__(
        self, key: ClusterKey, management: ManagementCache, events: EventRecorder, clock: Callable[[], float]
    ) -> None:
        self._key = key
        self._management = management
        self._events = events
        self._told = RateLimiter(burst=1, per_second=1 / TELL_PERIOD, clock=clock)

    def treated(self, member: MachineView, ledger: Attestation, action: FailureAction) -> None:
        """Tell what was done to a Node."""
        reason = ledger.verdict.reason if ledger.verdict else ""
        ends = max((entry.not_after for entry in ledger.issued), default=None)
        until = f"; its certificate stays good until {rfc3339(ends)}" if ends else ""
        message = f"Node {ledger.node_name}: onFailure {action}, because its own request was refused: {reason}{until}"
        _LOG.warning("treated a node", extra=fields(**self._who(member, ledger), action=action, reason=reason))
        self._events.record(member_ref(member), "Warning", _EVENTS[action], message)

    def released(self, member: MachineView, ledger: Attestation) -> None:
        """Tell that what was done is undone."""
        _LOG.info("released a node", extra=fields(**self._who(member, ledger)))
        message = f"Node {ledger.node_name}: what onFailure did is undone"
        self._events.record(member_ref(member), "Normal", "NodeReleased", message)

    def withheld(self, member: MachineView, ledger: Attestation, why: str) -> None:
        """Tell that a Node which fails is left alone, once in a while."""
        if not self._may_tell("withheld"):
            return
        _LOG.warning("left a failing node alone", extra=fields(**self._who(member, ledger), why=why))
        advice = "if so many fail it is more likely the policy's mistake: look at what was changed last"
        self._tell_on_cluster("OnFailureWithheld", f"Node {ledger.node_name} fails and is left alone: {why}; {advice}")

    def nodes_forbidden(self, error: ApiError) -> None:
        """Tell that a Node may not be written."""
        self._forbidden("OnFailureForbidden", "cannot treat a Node", error, NODES_REMEDY)

    def management_forbidden(self, error: ApiError) -> None:
        """Tell that a status or a ledger may not be written."""
        self._forbidden("StandingForbidden", "cannot write where machines stand", error, STATUS_REMEDY)

    def failed(self, what: str, error: ApiError, delay: float) -> None:
        """Tell of any other refused write."""
        if self._may_tell(("failed", error.reason)):
            told = fields(cluster=self._key, what=what, error=error.reason, message_=error.message, delay=delay)
            _LOG.warning("cannot write where a machine stands; will try again", extra=told)

    def _forbidden(self, reason: str, what: str, error: ApiError, remedy: str) -> None:
        if not self._may_tell(reason):
            return
        _LOG.warning(what, extra=fields(cluster=self._key, error=error.message, remedy=remedy))
        self._tell_on_cluster(reason, f"{what}: {error}; {remedy}")

    def _tell_on_cluster(self, reason: str, message: str) -> None:
        cluster = self._management.cluster(self._key)
        if cluster is not None:
            self._events.record(cluster_ref(cluster), "Warning", reason, message)

    def _may_tell(self, what: Hashable) -> bool:
        return self._told.take(what)

    def _who(self, member: MachineView, ledger: Attestation) -> dict[str, object]:
        return {"cluster": self._key, "machine": member.name, "node": ledger.node_name}
