"""Reports machines that fail and what is done to their Nodes: log lines and Events, each once in a period."""

from __future__ import annotations

from typing import Final

from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.objects import rfc3339
from nodeattest_controller.model.policy import FailureAction
from nodeattest_controller.runtime.cluster_events import ClusterEvents
from nodeattest_controller.runtime.objectref import member_ref
from nodeattest_kube.client import ApiError, Forbidden
from nodeattest_providers.errors import Reason

__all__ = ["NODES_REMEDY", "STATUS_REMEDY", "NodeAttestedEvents"]

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
