"""How an attempt to get a credential can fail.

An ``AgentError`` carries a reason (the controller's ``Reason`` where it refused, else one of ``AgentReason``), what
happened, and what to do. No message holds a token, a key or evidence. The exit code follows from its kind.
"""

from __future__ import annotations

from enum import StrEnum

from nodeattest_providers.errors import Denied, Unavailable


class FailureKind(StrEnum):
    """What a failure means for the next attempt."""

    USAGE = "usage"
    """The call or the configuration is wrong; nothing was attempted."""
    DENIED = "denied"
    """The cluster or a check of ours said no."""
    TEMPORARY = "temporary"
    """Somebody did not answer, or not in time."""


class AgentReason(StrEnum):
    """The reasons that are the agent's own."""

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
    """No credential now; ``remedy`` says what a person can do about it."""

    def __init__(self, reason: str, message: str, *, remedy: str, kind: FailureKind = FailureKind.DENIED) -> None:
        super().__init__(f"{reason}: {message}; {remedy}")
        self.reason = reason
        self.message = message
        self.remedy = remedy
        self.kind = kind


def said(verdict: Denied | Unavailable) -> str:
    """Return what happened, without reason and remedy."""
    return verdict.detail if isinstance(verdict, Unavailable) else f"expected {verdict.expected}, got {verdict.got}"


def refusal(verdict: Denied | Unavailable, prefix: str = "", *, kind: FailureKind | None = None) -> AgentError:
    """Return the verdict of a parser, a provider or discovery as an error of the agent."""
    usual = FailureKind.TEMPORARY if isinstance(verdict, Unavailable) else FailureKind.DENIED
    return AgentError(verdict.reason, prefix + said(verdict), remedy=verdict.remedy, kind=kind or usual)


def attestation_unavailable(verdict: Denied | Unavailable) -> AgentError:
    """Return why a provider cannot attest now."""
    reason = AgentReason.ATTESTATION_UNAVAILABLE
    return AgentError(reason, said(verdict), remedy=verdict.remedy, kind=FailureKind.TEMPORARY)
