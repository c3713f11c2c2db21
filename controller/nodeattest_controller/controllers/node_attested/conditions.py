"""What the condition ``NodeAttested`` says of a Machine or a MachinePool, from the ledger and the time alone. Pure.

Promises: the same ledger gives the same status and reason, in every replica and after every restart. ``False`` only by
what the node's own certificate authenticated, which is in the ledger, or by expiry: a MachineHealthCheck deletes
what is ``False``. A refused request by a bootstrap token is shown in the message and changes nothing else.
Leaves to others: writing it.
Source: cluster-api docs/proposals/20240916-improve-status-in-CAPI-resources.md (positive polarity, ``Unknown`` before
anything is known, a reason always).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final

from nodeattest_controller.controllers.node_attested.refused_claim import RefusedClaim
from nodeattest_controller.controllers.node_attested.severity import DENIAL_SEVERITIES, DenialSeverity
from nodeattest_controller.model.attestation import Attestation, IssuedCertificate
from nodeattest_controller.model.last_decision import DENIED, RESET
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.objects import rfc3339
from nodeattest_controller.model.policy import FailureAction
from nodeattest_controller.runtime.conditions import Condition, ConditionStatus, Severity
from nodeattest_providers.errors import Reason
from nodeattest_providers.names import Purpose

__all__ = [
    "CONDITION",
    "Known",
    "condition_of_machine",
    "condition_of_pool",
    "is_refused",
    "newest_certificate",
]

CONDITION: Final = "NodeAttested"
_DONE: Final = {
    FailureAction.TAINT: "its Node was tainted",
    FailureAction.CORDON: "its Node was cordoned",
    FailureAction.DELETE_NODE: "its Node was deleted",
}


class Known(StrEnum):
    """Reasons of the condition besides those of refusals."""

    ATTESTED = "Attested"
    NOT_YET = "NotYetAttested"
    NOT_ATTESTED = "NotAttested"
    EXPIRED = "CertificateExpired"
    RESET = "AttestationReset"
    INSTANCES_MISSING = "InstancesNotAttested"
    NO_INSTANCES = "NoInstances"
    TOO_MANY_INSTANCES = "TooManyInstances"


def is_refused(attestation: Attestation) -> bool:
    """Return whether the last word on a machine is a refusal."""
    return attestation.verdict is not None and attestation.verdict.verdict == DENIED


def condition_of_machine(
    member: MachineView,
    attestation: Attestation | None,
    now: datetime,
    claim: RefusedClaim | None = None,
    *,
    changed: Attestation | None = None,
) -> Condition:
    """Say how a Machine stands; ``claim`` is shown while it has not joined.

    ``changed``: the record under another provider ID with which the Machine joined before Cluster API set one.
    0. A provider ID that changed; 1. without a certificate, which is never ``False``: an operator's reset, a node that
    joined without attestation, or nothing yet; 2. a certificate that ended; 3. a refusal of the node's own request;
    4. attested.
    """
    if changed is not None:  # 0
        message = (
            f"the node joined with provider ID {changed.provider_id} ({changed.provider_id_source}), and Cluster API "
            f"has set {member.provider_id}; renewals are refused"
        )
        return _false(Reason.PROVIDER_ID_CHANGED, message, Severity.ERROR)
    newest = newest_certificate(attestation)
    if attestation is None or newest is None:  # 1
        return _without_certificate(member, attestation, claim)
    until = rfc3339(newest.not_after)
    if newest.not_after <= now:  # 2
        verdict = attestation.verdict
        last = f"; the last refusal was {verdict.reason}" if verdict and is_refused(attestation) else ""
        return _false(Known.EXPIRED, f"the certificate ended at {until}{last}", Severity.ERROR)
    if attestation.verdict is not None and is_refused(attestation):  # 3
        since = f" since {rfc3339(attestation.verdict.time)}" if attestation.verdict.time else ""
        done = f"; {_DONE[attestation.treatment.action]}" if attestation.treatment else ""
        message = f"renewal is refused{since}: see docs/denials.md; the certificate is good until {until}{done}"
        return _false(attestation.verdict.reason or DENIED, message, _severity(attestation.verdict.reason))
    message = f"by {attestation.provider}, until {until}"  # 4
    if not member.is_confirmed:
        message += f"; its provider ID comes from {member.provider_id_source} until Cluster API sets it"
    if attestation.node_name_source:
        message += f"; its node name comes from {attestation.node_name_source}"
    if attestation.endorsement_key_source:
        message += f"; its endorsement key is trusted by: {attestation.endorsement_key_source}"
    return Condition(CONDITION, ConditionStatus.TRUE, Known.ATTESTED, message)


def condition_of_pool(instances: Sequence[Attestation | None], now: datetime, *, flaw: str = "") -> Condition:
    """Say how many of a MachinePool's instances are attested, by their ledgers; ``flaw``: why the pool is not read.

    ``False`` where the certificate of an instance ended or its own request was refused; one that has yet to join is
    ``Unknown``, as a Machine is.
    """
    if flaw:
        return _unknown(Known.TOO_MANY_INSTANCES, f"{flaw}; no instance of a pool joins in this cluster until then")
    if not instances:
        return _unknown(Known.NO_INSTANCES, "the pool lists no instance yet")
    attested = sum(_is_attested(attestation, now) for attestation in instances)
    message = f"{attested} of {len(instances)} instances attested"
    if attested == len(instances):
        return Condition(CONDITION, ConditionStatus.TRUE, Known.ATTESTED, message)
    if any(
        newest_certificate(attestation) is not None and not _is_attested(attestation, now) for attestation in instances
    ):
        return _false(Known.INSTANCES_MISSING, message, Severity.WARNING)
    return _unknown(Known.INSTANCES_MISSING, message)


def _without_certificate(member: MachineView, attestation: Attestation | None, claim: RefusedClaim | None) -> Condition:
    if attestation is not None and attestation.verdict is not None and attestation.verdict.verdict == RESET:
        return _unknown(Known.RESET, "an operator has reset it; it may bind itself anew")
    if member.node_ref_name:  # by a node's claim: who controls another machine's node can write its provider ID
        return _unknown(Known.NOT_ATTESTED, "its node joined without attestation: adopt it, or re-create the Machine")
    message = "no certificate was issued for this machine yet"
    return _unknown(Known.NOT_YET, f"{message}; {claim}" if claim is not None else message)


def _is_attested(attestation: Attestation | None, now: datetime) -> bool:
    newest = newest_certificate(attestation)
    return attestation is not None and newest is not None and newest.not_after > now and not is_refused(attestation)


def newest_certificate(attestation: Attestation | None) -> IssuedCertificate | None:
    """Return the client certificate that ends last."""
    entries = attestation.of_purpose(Purpose.CLIENT) if attestation is not None else ()
    return max(entries, key=lambda entry: entry.not_after, default=None)


def _severity(reason: str) -> Severity:
    failed = reason in set(Reason) and DENIAL_SEVERITIES.get(Reason(reason)) is DenialSeverity.MACHINE
    return Severity.ERROR if failed else Severity.WARNING


def _unknown(reason: str, message: str) -> Condition:
    return Condition(CONDITION, ConditionStatus.UNKNOWN, reason, message)


def _false(reason: str, message: str, severity: Severity) -> Condition:
    return Condition(CONDITION, ConditionStatus.FALSE, reason, message, severity)
