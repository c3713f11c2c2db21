"""How a request ends: ``Denied`` is final, ``Unavailable`` means try again, ``ChallengeRequired`` asks for another.

Every other exception is a bug. Messages never carry secrets or evidence. docs/denials.md explains each ``Reason``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

NO_ANNOTATIONS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name, the section it comes from, and how it went. Never holds secrets or evidence bytes."""

    name: str
    section: str
    expected: str
    got: str
    passed: bool


class Reason(StrEnum):
    """Why a request was refused or has to wait; the value is the CSR condition's ``reason``."""

    # The envelope (docs/wire-format.md)
    ENVELOPE_MALFORMED = "EnvelopeMalformed"
    ENVELOPE_TOO_LARGE = "EnvelopeTooLarge"
    EVIDENCE_MALFORMED = "EvidenceMalformed"
    EVIDENCE_VERSION_UNSUPPORTED = "EvidenceVersionUnsupported"
    PROVIDER_MISMATCH = "ProviderMismatch"
    # The PKCS#10 request
    CSR_MALFORMED = "CSRMalformed"
    CSR_SIGNATURE_INVALID = "CSRSignatureInvalid"
    SUBJECT_NOT_ALLOWED = "SubjectNotAllowed"
    NODE_NAME_INVALID = "NodeNameInvalid"
    EXTENSION_NOT_ALLOWED = "ExtensionNotAllowed"
    PROVIDER_ID_INVALID = "ProviderIDInvalid"
    PROVIDER_ID_REQUIRED = "ProviderIDRequired"
    KEY_NOT_ALLOWED = "KeyNotAllowed"
    # The Kubernetes object
    REQUESTER_NOT_ALLOWED = "RequesterNotAllowed"
    TOKEN_NOT_THIS_MACHINES = "TokenNotThisMachines"
    TOKEN_NOT_NAMED = "TokenNotNamed"
    BOOTSTRAP_CONFIG_UNREADABLE = "BootstrapConfigUnreadable"
    REQUESTER_OVER_BUDGET = "RequesterOverBudget"
    USAGES_NOT_ALLOWED = "UsagesNotAllowed"
    SIGNER_UNKNOWN = "SignerUnknown"
    APPROVED_ELSEWHERE = "ApprovedElsewhere"
    # Policy
    ATTESTOR_NOT_AUTHORIZED = "AttestorNotAuthorized"
    POLICY_INVALID = "PolicyInvalid"
    POLICY_MISSING = "PolicyMissing"
    # Identity
    MACHINE_NOT_FOUND = "MachineNotFound"
    MACHINE_NOT_READY = "MachineNotReady"
    RECORD_INVALID = "RecordInvalid"
    MACHINE_TOO_LARGE = "MachineTooLarge"
    MACHINE_DELETING = "MachineDeleting"
    MACHINE_AMBIGUOUS = "MachineAmbiguous"
    MACHINE_ALREADY_BOUND = "MachineAlreadyBound"
    EVIDENCE_FOR_OTHER_MACHINE = "EvidenceForOtherMachine"
    NODE_NAME_MISMATCH = "NodeNameMismatch"
    PROVIDER_ID_MISMATCH = "ProviderIDMismatch"
    PROVIDER_ID_CHANGED = "ProviderIDChanged"
    NODE_NAME_TAKEN = "NodeNameTaken"
    KEY_REUSED = "KeyReused"
    ROTATION_NOT_ALLOWED = "RotationNotAllowed"
    SERVING_NOT_ALLOWED = "ServingNotAllowed"
    ADDRESS_NOT_ALLOWED = "AddressNotAllowed"
    # Challenge and response
    CHALLENGE_EXPIRED = "ChallengeExpired"
    CHALLENGE_UNKNOWN = "ChallengeUnknown"
    FIRST_REQUEST_MISSING = "FirstRequestMissing"
    FIRST_REQUEST_MISMATCH = "FirstRequestMismatch"
    PROOF_INVALID = "ProofInvalid"
    SUPERSEDED = "Superseded"
    REPLAYED = "Replayed"
    # TPM
    ENDORSEMENT_KEY_MALFORMED = "EndorsementKeyMalformed"
    ENDORSEMENT_KEY_UNTRUSTED = "EndorsementKeyUntrusted"
    ENDORSEMENT_KEY_CHANGED = "EndorsementKeyChanged"
    ENDORSEMENT_CERTIFICATE_INVALID = "EndorsementCertificateInvalid"
    ATTESTATION_KEY_NOT_ALLOWED = "AttestationKeyNotAllowed"
    ATTESTATION_KEY_CHANGED = "AttestationKeyChanged"
    QUOTE_MALFORMED = "QuoteMalformed"
    QUOTE_SIGNATURE_INVALID = "QuoteSignatureInvalid"
    QUOTE_NOT_BOUND = "QuoteNotBound"
    PCR_SELECTION_MISMATCH = "PCRSelectionMismatch"
    PCR_DIGEST_MISMATCH = "PCRDigestMismatch"
    PCR_VALUE_NOT_ALLOWED = "PCRValueNotAllowed"
    EVENT_LOG_MISSING = "EventLogMissing"
    EVENT_LOG_MALFORMED = "EventLogMalformed"
    EVENT_LOG_BANK_MISSING = "EventLogBankMissing"
    EVENT_LOG_MISMATCH = "EventLogMismatch"
    TPM_CLOCK_REVERSED = "TPMClockReversed"
    # Challenge provider
    SECRET_MISSING = "SecretMissing"
    SECRET_UNTRUSTED = "SecretUntrusted"
    SECRET_USED = "SecretUsed"
    # Platforms: clouds and their instances
    PLATFORM_DOCUMENT_MALFORMED = "PlatformDocumentMalformed"
    PLATFORM_DOCUMENT_SIGNATURE_INVALID = "PlatformDocumentSignatureInvalid"
    PLATFORM_DOCUMENT_MISMATCH = "PlatformDocumentMismatch"
    PLATFORM_PROOF_MALFORMED = "PlatformProofMalformed"
    PLATFORM_PROOF_REFUSED = "PlatformProofRefused"
    PLATFORM_PROOF_NOT_BOUND = "PlatformProofNotBound"
    PLATFORM_PROOF_EXPIRED = "PlatformProofExpired"
    PLATFORM_ACCOUNT_NOT_ALLOWED = "PlatformAccountNotAllowed"
    PLATFORM_REGION_NOT_ALLOWED = "PlatformRegionNotAllowed"
    PLATFORM_ROLE_NOT_ALLOWED = "PlatformRoleNotAllowed"
    PLATFORM_INSTANCE_MISMATCH = "PlatformInstanceMismatch"
    PLATFORM_INSTANCE_NOT_FOUND = "PlatformInstanceNotFound"
    PLATFORM_INSTANCE_NOT_RUNNING = "PlatformInstanceNotRunning"
    PLATFORM_TAGS_NOT_ALLOWED = "PlatformTagsNotAllowed"
    PLATFORM_CONFIGURATION_NOT_ALLOWED = "PlatformConfigurationNotAllowed"
    # Several proofs at once
    PROOF_MISSING = "ProofMissing"
    # Discovery: a node finds its cluster
    TOKEN_MALFORMED = "TokenMalformed"
    CA_PIN_MALFORMED = "CAPinMalformed"
    DISCOVERY_ENDPOINT_MALFORMED = "DiscoveryEndpointMalformed"
    CLUSTER_INFO_MALFORMED = "ClusterInfoMalformed"
    CLUSTER_INFO_UNSIGNED = "ClusterInfoUnsigned"
    CLUSTER_INFO_SIGNATURE_INVALID = "ClusterInfoSignatureInvalid"
    CLUSTER_INFO_CHANGED = "ClusterInfoChanged"
    CA_NOT_PINNED = "CANotPinned"
    SERVER_NOT_TRUSTED = "ServerNotTrusted"
    DISCOVERY_FILE_NOT_ALLOWED = "DiscoveryFileNotAllowed"
    DISCOVERY_REQUEST_REFUSED = "DiscoveryRequestRefused"
    # Bootstrap configuration of Cluster API
    BOOTSTRAP_CONFIG_REFUSED = "BootstrapConfigRefused"
    ADMISSION_REVIEW_MALFORMED = "AdmissionReviewMalformed"
    # Tokens of an issuer, and the issuer itself
    JWT_MALFORMED = "JWTMalformed"
    JWT_ALGORITHM_NOT_ALLOWED = "JWTAlgorithmNotAllowed"
    JWT_KEY_UNKNOWN = "JWTKeyUnknown"
    JWT_SIGNATURE_INVALID = "JWTSignatureInvalid"
    JWT_ISSUER_MISMATCH = "JWTIssuerMismatch"
    JWT_AUDIENCE_MISMATCH = "JWTAudienceMismatch"
    JWT_EXPIRED = "JWTExpired"
    JWT_NOT_YET_VALID = "JWTNotYetValid"
    JWT_LIFETIME_TOO_LONG = "JWTLifetimeTooLong"
    ISSUER_DOCUMENT_REFUSED = "IssuerDocumentRefused"
    # Temporary: these only ever travel in Unavailable
    AUTHORITY_UNAVAILABLE = "AuthorityUnavailable"
    API_UNAVAILABLE = "APIUnavailable"
    PLATFORM_UNAVAILABLE = "PlatformUnavailable"
    ISSUER_UNAVAILABLE = "IssuerUnavailable"
    INTERNAL_ERROR = "InternalError"


class Denied(Exception):
    """The request is refused for good.

    ``expected`` and ``got`` stay in the management cluster; ``remedy`` reaches every holder of a token, so it names
    what to do and nothing about the machine. ``checks`` holds what was checked before, the failed check last.
    ``annotations`` are output-only annotations that are written together with the refusal.
    """

    def __init__(
        self,
        reason: Reason,
        *,
        expected: str,
        got: str,
        remedy: str,
        checks: Sequence[Check] = (),
        annotations: Mapping[str, str] = NO_ANNOTATIONS,
    ) -> None:
        super().__init__(f"{reason}: expected {expected}, got {got}; {remedy}")
        self.reason = reason
        self.expected = expected
        self.got = got
        self.remedy = remedy
        self.checks: tuple[Check, ...] = tuple(checks)
        self.annotations = MappingProxyType(dict(annotations))


class Unavailable(Exception):
    """The request cannot be verified now; try again after ``retry_after`` seconds.

    ``checks`` holds what was checked before and passed: ``explain`` shows it where a platform cannot be asked.
    """

    def __init__(
        self, reason: Reason, detail: str, *, remedy: str, retry_after: float = 5.0, checks: Sequence[Check] = ()
    ) -> None:
        super().__init__(f"{reason}: {detail}; {remedy}")
        self.reason = reason
        self.detail = detail
        self.remedy = remedy
        self.retry_after = retry_after
        self.checks: tuple[Check, ...] = tuple(checks)


def platform_unavailable(detail: str, *, remedy: str, retry_after: float = 5.0) -> Unavailable:
    """Make the ``Unavailable`` of a platform or device that cannot be asked, or whose answer cannot be used."""
    return Unavailable(Reason.PLATFORM_UNAVAILABLE, detail, remedy=remedy, retry_after=retry_after)


class ChallengeRequired(Exception):
    """The first request is sound; publish ``challenge`` (annotation value) and wait for the second request.

    ``annotations`` are further output-only annotations (for the TPM: the platform's endorsement key). ``checks`` holds
    what made the first request sound.
    """

    def __init__(
        self, challenge: str, annotations: Mapping[str, str] = NO_ANNOTATIONS, *, checks: Sequence[Check] = ()
    ) -> None:
        super().__init__("a second request must answer the challenge")
        self.challenge = challenge
        self.annotations = MappingProxyType(dict(annotations))
        self.checks: tuple[Check, ...] = tuple(checks)
