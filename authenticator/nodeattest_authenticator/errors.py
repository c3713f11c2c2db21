"""Errors of the agent.

An ``AgentError`` carries a reason (the controller's ``Reason`` if the controller refused, else an ``AgentReason``), a
message and a remedy. Messages never contain tokens, keys or evidence. The exit code follows from the error's kind.
"""

from __future__ import annotations

from enum import StrEnum

from nodeattest_providers.errors import Denied, Unavailable


class FailureKind(StrEnum):
    """What a failure means for the next attempt."""

    USAGE = "usage"
    """The command line or the configuration is invalid; nothing was attempted."""
    DENIED = "denied"
    """The cluster or a check of the agent refused."""
    TEMPORARY = "temporary"
    """A server or device did not answer in time."""


class AgentReason(StrEnum):
    """Reasons that only the agent gives."""

    ADDRESS_UNKNOWN = "AddressUnknown"
    API_UNAVAILABLE = "APIUnavailable"
    ATTESTATION_UNAVAILABLE = "AttestationUnavailable"
    CACHE_UNSAFE = "CacheUnsafe"
    CERTIFICATE_REFUSED = "CertificateRefused"
    CLIENT_CERTIFICATE_MISSING = "ClientCertificateMissing"
    CLOCK_OFF = "ClockOff"
    CONFIGURATION_INVALID = "ConfigurationInvalid"
    CREDENTIAL_REJECTED = "CredentialRejected"
    EXEC_INFO_REFUSED = "ExecInfoRefused"
    KUBELET_CONFIGURATION_REFUSED = "KubeletConfigurationRefused"
    LOCK_TIMEOUT = "LockTimeout"
    PROVIDER_ID_UNKNOWN = "ProviderIDUnknown"
    REQUEST_LOST = "RequestLost"
    REQUEST_REFUSED = "RequestRefused"
    SERVER_NOT_TRUSTED = "ServerNotTrusted"
    TIMEOUT = "Timeout"
    TOKEN_MISSING = "TokenMissing"


class AgentError(Exception):
    """An operation failed; ``remedy`` says what the operator can do."""

    def __init__(self, reason: str, message: str, *, remedy: str, kind: FailureKind = FailureKind.DENIED) -> None:
        super().__init__(f"{reason}: {message}; {remedy}")
        self.reason = reason
        self.message = message
        self.remedy = remedy
        self.kind = kind


def said(verdict: Denied | Unavailable) -> str:
    """Return the message of a verdict, without reason and remedy."""
    return verdict.detail if isinstance(verdict, Unavailable) else f"expected {verdict.expected}, got {verdict.got}"


def refusal(verdict: Denied | Unavailable, prefix: str = "", *, kind: FailureKind | None = None) -> AgentError:
    """Convert the verdict of a parser, a provider or discovery."""
    usual = FailureKind.TEMPORARY if isinstance(verdict, Unavailable) else FailureKind.DENIED
    return AgentError(verdict.reason, prefix + said(verdict), remedy=verdict.remedy, kind=kind or usual)


def attestation_unavailable(verdict: Denied | Unavailable) -> AgentError:
    """Convert the verdict of a provider that cannot attest now."""
    reason = AgentReason.ATTESTATION_UNAVAILABLE
    return AgentError(reason, said(verdict), remedy=verdict.remedy, kind=FailureKind.TEMPORARY)
