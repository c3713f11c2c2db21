"""The condition ``NodeAttested`` of a Machine or a MachinePool, from its attestation record and the time alone. Pure.

It is ``False`` only after a refusal of the node's own request, which is recorded, or by expiry: a MachineHealthCheck
deletes machines whose condition is ``False``. Source: docs/denials.md; cluster-api
docs/proposals/20240916-improve-status-in-CAPI-resources.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Final

from nodeattest_controller.model.attestation import Attestation, IssuedCertificate
from nodeattest_controller.model.attestation_status import DENIED, RESET
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.policy import FailureAction
from nodeattest_controller.runtime.cluster_controller import CSRDenied
from nodeattest_controller.runtime.conditions import Condition, ConditionStatus, Severity
from nodeattest_parsing.objects import moment, rfc3339
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import Purpose

_WRITTEN: Final = re.compile(r"a request that claims this machine was refused at (\S+): (\w+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class RefusedClaim:
    """A refused request by a bootstrap token; it proves nothing of the machine that it claims."""

    at: datetime
    reason: Reason

    def __str__(self) -> str:
        """Describe it; ``parse_refused_claim`` reads it again."""
        refused = f"a request that claims this machine was refused at {rfc3339(self.at)}: {self.reason}"
        return f"{refused}; any holder of a bootstrap token can send one"


def parse_refused_claim(message: str) -> RefusedClaim | None:
    """Read the claim in a condition's message; None where it has none."""
    found = _WRITTEN.search(message)
    at = moment(found[1]) if found is not None else None
    if found is None or at is None or found[2] not in set(Reason):
        return None
    return RefusedClaim(at, Reason(found[2]))


class DenialSeverity(IntEnum):
    """What a refusal of a node's own request means for its machine."""

    NOTHING = 0
    """This request was wrong, late or one too many; the next one may pass."""
    RENEWAL = 1
    """The node is not renewed until somebody changes something; its machine may be sound."""
    MACHINE = 2
    """The machine is not, or did not boot, what policy and record require."""


_MACHINE: Final = (
    Reason.PROOF_INVALID,
    Reason.ENDORSEMENT_KEY_UNTRUSTED,
    Reason.ENDORSEMENT_KEY_CHANGED,
    Reason.ENDORSEMENT_CERTIFICATE_INVALID,
    Reason.ATTESTATION_KEY_NOT_ALLOWED,
    Reason.ATTESTATION_KEY_CHANGED,
    Reason.QUOTE_SIGNATURE_INVALID,
    Reason.PCR_VALUE_NOT_ALLOWED,
    Reason.EVENT_LOG_MISMATCH,
    Reason.TPM_CLOCK_REVERSED,
    Reason.EVIDENCE_FOR_OTHER_MACHINE,
    Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,
    Reason.PLATFORM_REGION_NOT_ALLOWED,
    Reason.PLATFORM_ROLE_NOT_ALLOWED,
    Reason.PLATFORM_INSTANCE_MISMATCH,
    Reason.PLATFORM_INSTANCE_NOT_FOUND,
    Reason.PLATFORM_TAGS_NOT_ALLOWED,
    Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED,
)
_RENEWAL: Final = (
    # The policy, or the controller's configuration, has changed under the node.
    Reason.ATTESTOR_NOT_AUTHORIZED,
    Reason.POLICY_INVALID,
    Reason.PROOF_MISSING,
    Reason.EVIDENCE_VERSION_UNSUPPORTED,
    Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID,
    # Names and bindings that somebody else may have taken.
    Reason.MACHINE_AMBIGUOUS,
    Reason.MACHINE_ALREADY_BOUND,
    Reason.NODE_NAME_MISMATCH,
    Reason.NODE_NAME_TAKEN,
    Reason.PROVIDER_ID_CHANGED,
    Reason.ROTATION_NOT_ALLOWED,
    # The node's set-up: an agent, a clock-bound credential, a log that is not readable.
    Reason.PCR_SELECTION_MISMATCH,
    Reason.EVENT_LOG_MISSING,
    Reason.EVENT_LOG_MALFORMED,
    Reason.EVENT_LOG_BANK_MISSING,
    Reason.PLATFORM_PROOF_REFUSED,
    Reason.PLATFORM_INSTANCE_NOT_RUNNING,
)
DENIAL_SEVERITIES: Final = MappingProxyType(
    {**dict.fromkeys(_RENEWAL, DenialSeverity.RENEWAL), **dict.fromkeys(_MACHINE, DenialSeverity.MACHINE)}
)
"""Any other reason means nothing for the machine: a malformed request, a clock, a lost message, a service that was
away, a requester that is no node."""


def is_machine_failure(reason: str) -> bool:
    """Return whether a refusal means that the machine is not what policy and record require."""
    return reason in set(Reason) and DENIAL_SEVERITIES.get(Reason(reason)) is DenialSeverity.MACHINE


def severity_of(verdict: CSRDenied) -> DenialSeverity:
    """Weigh a refusal.

    1. Only the node's own request counts; 2. a request that was not evaluated does not count; 3. a refused serving
    certificate does not keep the node from being renewed.
    """
    if not verdict.by_node or not verdict.evaluated:  # 1, 2
        return DenialSeverity.NOTHING
    weight = DENIAL_SEVERITIES.get(verdict.reason, DenialSeverity.NOTHING)
    if verdict.purpose is Purpose.SERVING and weight is not DenialSeverity.MACHINE:  # 3
        return DenialSeverity.NOTHING
    return weight


CONDITION: Final = "NodeAttested"
_SOURCES: Final = {"nodeName": "its node name comes from", "endorsementKey": "its endorsement key is trusted by"}
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
    """Return whether the last decision on a machine is a refusal."""
    return attestation.verdict is not None and attestation.verdict.verdict == DENIED


def is_failing(attestation: Attestation) -> bool:
    """Return whether the last decision on a machine is a refusal for what the machine is."""
    verdict = attestation.verdict
    return verdict is not None and is_refused(attestation) and is_machine_failure(verdict.reason)


def condition_of_machine(
    member: MachineView,
    attestation: Attestation | None,
    now: datetime,
    claim: RefusedClaim | None = None,
    *,
    changed: Attestation | None = None,
) -> Condition:
    """Return a Machine's condition; ``claim`` is shown while it has not joined.

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
        severity = Severity.ERROR if is_machine_failure(attestation.verdict.reason) else Severity.WARNING
        return _false(attestation.verdict.reason or DENIED, message, severity)
    message = f"by {attestation.provider}, until {until}"  # 4
    if not member.is_confirmed:
        message += f"; its provider ID comes from {member.provider_id_source} until Cluster API sets it"
    for source, words in _SOURCES.items():
        if attestation.sources.get(source):
            message += f"; {words} {attestation.sources[source]}"
    return Condition(CONDITION, ConditionStatus.TRUE, Known.ATTESTED, message)


def condition_of_pool(instances: Sequence[Attestation | None], now: datetime, *, flaw: str = "") -> Condition:
    """Count a MachinePool's attested instances by their records; ``flaw``: why the pool is not read.

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


def _unknown(reason: str, message: str) -> Condition:
    return Condition(CONDITION, ConditionStatus.UNKNOWN, reason, message)


def _false(reason: str, message: str, severity: Severity) -> Condition:
    return Condition(CONDITION, ConditionStatus.FALSE, reason, message, severity)
