"""One machine as ``machines list`` and ``explain`` show it: its attestation's state by the controller's own rule. Pure.

Promises: the state is what the condition NodeAttested says (``conditions.condition_of_machine``); refused requests that
claim a machine which has not joined are known by the condition that the controller wrote, and by nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from nodeattest_controller.controllers.node_attested.conditions import CONDITION, condition_of_machine
from nodeattest_controller.controllers.node_attested.refused_claim import parse_refused_claim
from nodeattest_controller.model.attestation import Attestation, owner_of, parse_attestation
from nodeattest_controller.model.machine_kinds import machine_views
from nodeattest_controller.model.machine_view import MachineView, cluster_of
from nodeattest_controller.model.objects import condition, items, mapping, moment, rfc3339, text
from nodeattest_controller.runtime.conditions import ConditionStatus
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.names import ProviderID

__all__ = ["MACHINE_GONE", "MachineRow", "row_from_attestation", "rows_of"]

MACHINE_GONE: Final = "MachineGone"
NO_PROVIDER_ID: Final = "NoProviderID"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRow:
    """One machine."""

    namespace: str
    cluster: str
    machine: str
    kind: str
    """``Machine``, ``MachinePool`` or ``MachineRecord``."""
    node: str = ""
    provider: str = ""
    provider_id: str = ""
    expires: datetime | None = None
    """End of the newest certificate."""
    attested: bool = False
    state: str = ""
    """The reason of the condition, or why there is none."""
    message: str = ""
    refused: str = ""
    """Reason of the last refused request, where that counts or claims a machine which has not joined."""
    resets: int = 0
    """How often an operator reset it, as far as the ledger remembers."""
    verdict: str = ""
    """``spec.lastVerdict`` of the MachineAttestation."""
    attestation: str = ""
    """Name of the MachineAttestation; empty where there is none."""

    @property
    def names(self) -> frozenset[str]:
        """What an operator may call it."""
        return frozenset({self.machine, self.node, self.provider_id, self.attestation} - {""})

    def to_json(self) -> JsonObject:
        """Return the entry of ``machines``."""
        return {
            "namespace": self.namespace,
            "cluster": self.cluster,
            "node": self.node,
            "machine": self.machine,
            "kind": self.kind,
            "provider": self.provider,
            "providerID": self.provider_id,
            "attested": self.attested,
            "state": self.state,
            "message": self.message,
            "refused": self.refused or None,
            "expires": rfc3339(self.expires) if self.expires else None,
            "lastVerdict": self.verdict,
            "resets": self.resets,
            "attestation": self.attestation or None,
        }


def rows_of(machines: Sequence[JsonObject], attestations: Sequence[JsonObject], now: datetime) -> Iterator[MachineRow]:
    """Yield every Machine, pool instance and MachineRecord, then the MachineAttestations whose machine is gone."""
    by_machine = {_key(one): one for one in attestations}
    by_owner = {uid: one for one in attestations if (uid := text(owner_of(one), "uid"))}
    for machine in machines:
        for view in machine_views(machine):
            recorded = by_owner.get(view.uid) if not view.provider_id else None
            provider_id = text(recorded, "spec", "providerID") if recorded is not None else view.provider_id
            found = by_machine.pop((view.namespace, view.cluster_name, provider_id), None)
            if provider_id:
                known = view if view.provider_id else view.with_provider_id(provider_id, "MachineAttestation")
                yield _row(known, machine, found, now)
            else:
                yield _without_provider_id(machine)
    for left in by_machine.values():
        yield row_from_attestation(left, now)


def row_from_attestation(attestation: JsonObject, now: datetime) -> MachineRow:
    """Read a MachineAttestation whose machine is gone, or was not asked for."""
    spec = mapping(attestation, "spec")
    view = MachineView(
        kind="Machine",
        api_version="",
        name=text(spec, "machineName"),
        namespace=text(attestation, "metadata", "namespace"),
        uid="",
        cluster_name=text(spec, "clusterName"),
        provider_id=ProviderID(text(spec, "providerID")),
    )
    found = _row(view, {}, attestation, now)
    return replace(found, state=MACHINE_GONE, message=f"its Machine is gone; its record says: {found.message}")


def _row(view: MachineView, machine: JsonObject, attestation: JsonObject | None, now: datetime) -> MachineRow:
    known: Attestation | None = parse_attestation(attestation) if attestation is not None else None
    state = condition_of_machine(view, known, now)
    nothing: JsonObject = {}
    written = condition(items(machine, "status", "conditions"), CONDITION)
    said = text(dict(written), "message") if written is not None else ""
    claim = parse_refused_claim(said)
    message, refused = state.message, ""
    if known is not None and known.issued:
        if state.status is ConditionStatus.FALSE and known.verdict is not None and known.verdict.verdict == "Denied":
            refused = known.verdict.reason
    elif claim is not None:
        message, refused = said, claim.reason
    spec = mapping(attestation or nothing, "spec")
    return MachineRow(
        namespace=view.namespace,
        cluster=view.cluster_name,
        machine=view.name,
        kind=view.kind,
        node=text(spec, "nodeName") or view.node_ref_name or "",
        provider=text(spec, "provider"),
        provider_id=view.provider_id,
        expires=moment(text(spec, "expires")),
        attested=state.status is ConditionStatus.TRUE,
        state=state.reason,
        message=message,
        refused=refused,
        resets=len(items(spec, "resets")),
        verdict=text(spec, "lastVerdict", "verdict"),
        attestation=text(attestation or nothing, "metadata", "name"),
    )


def _without_provider_id(machine: JsonObject) -> MachineRow:
    return MachineRow(
        namespace=text(machine, "metadata", "namespace"),
        cluster=cluster_of(machine),
        machine=text(machine, "metadata", "name"),
        kind="Machine",
        state=NO_PROVIDER_ID,
        message="its infrastructure has not given it a provider ID yet",
    )


def _key(attestation: JsonObject) -> tuple[str, str, str]:
    spec = mapping(attestation, "spec")
    return text(attestation, "metadata", "namespace"), text(spec, "clusterName"), text(spec, "providerID")
