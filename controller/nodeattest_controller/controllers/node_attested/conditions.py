"""What the condition ``NodeAttested`` says of a Machine or a MachinePool, from the ledger and the time alone. Pure.

Promises: the same ledger gives the same condition, in every replica and after every restart. Nobody's refused request
but the node's own makes it ``False`` once the machine has joined: a refusal counts when it stands in the ledger.
Leaves to others: writing it.
Source: cluster-api docs/proposals/20240916-improve-status-in-CAPI-resources.md (positive polarity, ``Unknown`` before
anything is known, a reason always).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final

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
    "refused_claim",
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
    CLAIM_REFUSED = "ClaimRefused"
    EXPIRED = "CertificateExpired"
    RESET = "AttestationReset"
    INSTANCES_MISSING = "InstancesNotAttested"
    NO_INSTANCES = "NoInstances"


def is_refused(ledger: Attestation) -> bool:
    """Tell whether the last word on a machine is a refusal."""
    return ledger.verdict is not None and ledger.verdict.verdict == DENIED


def condition_of_machine(
    member: MachineView, ledger: Attestation | None, now: datetime, shown: str = ""
) -> Condition | None:
    """Say how a Machine stands; None: what is there stays. ``shown`` is the reason of the condition that is there.

    1. Without a certificate: an operator's reset, a node that joined without attestation, a refused claim that was told
    of, or nothing yet; 2. a certificate that ended; 3. a refusal of the node's own request; 4. attested.
    """
    newest = _newest(ledger)
    if ledger is None or newest is None:  # 1
        return _without_certificate(member, ledger, shown)
    until = rfc3339(newest.not_after)
    if newest.not_after <= now:  # 2
        last = f"; the last refusal was {ledger.verdict.reason}" if ledger.verdict and is_refused(ledger) else ""
        return _false(Known.EXPIRED, f"the certificate ended at {until}{last}", Severity.ERROR)
    if ledger.verdict is not None and is_refused(ledger):  # 3
        since = f" since {rfc3339(ledger.verdict.time)}" if ledger.verdict.time else ""
        done = f"; {_DONE[ledger.treatment.action]}" if ledger.treatment else ""
        message = f"renewal is refused{since}: see docs/denials.md; the certificate is good until {until}{done}"
        return _false(ledger.verdict.reason or DENIED, message, _severity(ledger.verdict.reason))
    return Condition(CONDITION, ConditionStatus.TRUE, Known.ATTESTED, f"by {ledger.provider}, until {until}")  # 4


def condition_of_pool(instances: Sequence[Attestation | None], now: datetime) -> Condition:
    """Say how many of a MachinePool's instances are attested, by their ledgers."""
    if not instances:
        return Condition(CONDITION, ConditionStatus.UNKNOWN, Known.NO_INSTANCES, "the pool lists no instance yet")
    attested = sum(_is_attested(ledger, now) for ledger in instances)
    message = f"{attested} of {len(instances)} instances attested"
    if attested == len(instances):
        return Condition(CONDITION, ConditionStatus.TRUE, Known.ATTESTED, message)
    return _false(Known.INSTANCES_MISSING, message, Severity.WARNING)


def refused_claim(reason: Reason) -> Condition:
    """Say that somebody's request for a machine that has not joined was refused; it proves nothing of the machine."""
    message = f"a request that claims this machine was refused: {reason}; whoever holds a bootstrap token can file one"
    return _false(Known.CLAIM_REFUSED, message, Severity.WARNING)


def _without_certificate(member: MachineView, ledger: Attestation | None, shown: str) -> Condition | None:
    if ledger is not None and ledger.verdict is not None and ledger.verdict.verdict == RESET:
        return Condition(
            CONDITION, ConditionStatus.UNKNOWN, Known.RESET, "an operator has reset it; it may bind itself anew"
        )
    if member.node_ref_name:
        message = "its node joined without attestation: adopt it, or re-create the Machine"
        return _false(Known.NOT_ATTESTED, message, Severity.WARNING)
    if shown == Known.CLAIM_REFUSED:
        return None
    return Condition(
        CONDITION, ConditionStatus.UNKNOWN, Known.NOT_YET, "no certificate was issued for this machine yet"
    )


def _is_attested(ledger: Attestation | None, now: datetime) -> bool:
    newest = _newest(ledger)
    return ledger is not None and newest is not None and newest.not_after > now and not is_refused(ledger)


def _newest(ledger: Attestation | None) -> IssuedCertificate | None:
    """Return the client certificate that ends last."""
    entries = ledger.of_purpose(Purpose.CLIENT) if ledger is not None else ()
    return max(entries, key=lambda entry: entry.not_after, default=None)


def _severity(reason: str) -> Severity:
    failed = reason in set(Reason) and DENIAL_SEVERITIES.get(Reason(reason)) is DenialSeverity.MACHINE
    return Severity.ERROR if failed else Severity.WARNING


def _false(reason: str, message: str, severity: Severity) -> Condition:
    return Condition(CONDITION, ConditionStatus.FALSE, reason, message, severity)
