"""What a refused renewal says of the machine: a weight for every ``Reason``. Pure.

Promises: a reason that is not named here weighs nothing, and a test holds the table complete. Only what was found in
evidence that the machine itself brought weighs as its failure; what a clock, a lost message, a policy that names
something else or a service that was away can cause does not. Absent evidence does not, either: who brings none gets no
certificate, and that is enough.
Source: docs/denials.md; docs/decisions.md.
"""

from __future__ import annotations

from enum import IntEnum
from types import MappingProxyType
from typing import Final

from nodeattest_controller.runtime.csr_observer import CSRDenied
from nodeattest_providers.errors import Reason
from nodeattest_providers.names import Purpose

__all__ = ["DENIAL_SEVERITIES", "DenialSeverity", "severity_of"]


class DenialSeverity(IntEnum):
    """How much a refusal of a node's own request says."""

    NOTHING = 0
    """This request was wrong, late or one too many; the next one may pass."""
    RENEWAL = 1
    """The node will not be renewed until somebody changes something; its machine may be sound."""
    MACHINE = 2
    """The machine is not, or did not boot, what policy and ledger say."""


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
_NOTHING: Final = (
    # Malformed: a program's mistake, or somebody's who holds the node's credential and wants to be noticed.
    Reason.ENVELOPE_MALFORMED,
    Reason.ENVELOPE_TOO_LARGE,
    Reason.EVIDENCE_MALFORMED,
    Reason.PROVIDER_MISMATCH,
    Reason.ADMISSION_REVIEW_MALFORMED,
    Reason.CSR_MALFORMED,
    Reason.CSR_SIGNATURE_INVALID,
    Reason.SUBJECT_NOT_ALLOWED,
    Reason.NODE_NAME_INVALID,
    Reason.EXTENSION_NOT_ALLOWED,
    Reason.PROVIDER_ID_INVALID,
    Reason.PROVIDER_ID_MISMATCH,
    Reason.PROVIDER_ID_REQUIRED,
    Reason.KEY_NOT_ALLOWED,
    Reason.USAGES_NOT_ALLOWED,
    Reason.SIGNER_UNKNOWN,
    Reason.ENDORSEMENT_KEY_MALFORMED,
    Reason.QUOTE_MALFORMED,
    Reason.PLATFORM_DOCUMENT_MALFORMED,
    Reason.PLATFORM_DOCUMENT_MISMATCH,
    Reason.PLATFORM_PROOF_MALFORMED,
    # About the requester, not about a node that renews.
    Reason.REQUESTER_NOT_ALLOWED,
    Reason.TOKEN_NOT_THIS_MACHINES,
    Reason.TOKEN_NOT_NAMED,
    Reason.BOOTSTRAP_CONFIG_UNREADABLE,
    Reason.BOOTSTRAP_CONFIG_REFUSED,
    Reason.REQUESTER_OVER_BUDGET,
    Reason.APPROVED_ELSEWHERE,
    # One request out of turn, or out of time.
    Reason.KEY_REUSED,
    Reason.SERVING_NOT_ALLOWED,
    Reason.ADDRESS_NOT_ALLOWED,
    Reason.CHALLENGE_EXPIRED,
    Reason.CHALLENGE_UNKNOWN,
    Reason.FIRST_REQUEST_MISSING,
    Reason.FIRST_REQUEST_MISMATCH,
    Reason.SUPERSEDED,
    Reason.REPLAYED,
    Reason.QUOTE_NOT_BOUND,
    Reason.PCR_DIGEST_MISMATCH,
    Reason.PLATFORM_PROOF_NOT_BOUND,
    Reason.PLATFORM_PROOF_EXPIRED,
    # Waits that came to their end, and secrets of the first join.
    Reason.POLICY_MISSING,
    Reason.MACHINE_NOT_FOUND,
    Reason.MACHINE_NOT_READY,
    Reason.MACHINE_DELETING,
    Reason.RECORD_INVALID,
    Reason.MACHINE_TOO_LARGE,
    Reason.SECRET_MISSING,
    Reason.SECRET_UNTRUSTED,
    Reason.SECRET_USED,
    Reason.AUTHORITY_UNAVAILABLE,
    Reason.API_UNAVAILABLE,
    Reason.PLATFORM_UNAVAILABLE,
    Reason.INTERNAL_ERROR,
    # Discovery: a node that finds its cluster files no request.
    Reason.TOKEN_MALFORMED,
    Reason.CA_PIN_MALFORMED,
    Reason.DISCOVERY_ENDPOINT_MALFORMED,
    Reason.CLUSTER_INFO_MALFORMED,
    Reason.CLUSTER_INFO_UNSIGNED,
    Reason.CLUSTER_INFO_SIGNATURE_INVALID,
    Reason.CLUSTER_INFO_CHANGED,
    Reason.CA_NOT_PINNED,
    Reason.SERVER_NOT_TRUSTED,
    Reason.DISCOVERY_FILE_NOT_ALLOWED,
    Reason.DISCOVERY_REQUEST_REFUSED,
    # Tokens of issuers: who shows one creates no request.
    Reason.JWT_MALFORMED,
    Reason.JWT_ALGORITHM_NOT_ALLOWED,
    Reason.JWT_KEY_UNKNOWN,
    Reason.JWT_SIGNATURE_INVALID,
    Reason.JWT_ISSUER_MISMATCH,
    Reason.JWT_AUDIENCE_MISMATCH,
    Reason.JWT_EXPIRED,
    Reason.JWT_NOT_YET_VALID,
    Reason.JWT_LIFETIME_TOO_LONG,
    Reason.TOKEN_REVIEW_REFUSED,
    Reason.ISSUER_DOCUMENT_REFUSED,
    Reason.ISSUER_UNAVAILABLE,
)
DENIAL_SEVERITIES: Final = MappingProxyType(
    {
        **dict.fromkeys(_NOTHING, DenialSeverity.NOTHING),
        **dict.fromkeys(_RENEWAL, DenialSeverity.RENEWAL),
        **dict.fromkeys(_MACHINE, DenialSeverity.MACHINE),
    }
)


def severity_of(verdict: CSRDenied) -> DenialSeverity:
    """Weigh a refusal.

    1. Only the node's own request counts; 2. a request that was not evaluated does not count; 3. a refused serving
    certificate says something of the machine or nothing: the node lives by the other one.
    """
    if not verdict.by_node or not verdict.evaluated:  # 1, 2
        return DenialSeverity.NOTHING
    weight = DENIAL_SEVERITIES.get(verdict.reason, DenialSeverity.NOTHING)
    if verdict.purpose is Purpose.SERVING and weight is not DenialSeverity.MACHINE:  # 3
        return DenialSeverity.NOTHING
    return weight
