"""The outcome of a request, for controllers that act on it: conditions of Machines, a policy's onFailure.

Values only, and the interface of observers, which are called by ``nodeattest_kube.notify``: a bug in one stays its own.
Their methods must not block.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_providers.errors import Reason
from nodeattest_providers.names import NodeName, ProviderID, ProviderName, Purpose

__all__ = ["CSRDenied", "CSRIssued", "CSRObserver"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CSRIssued:
    """A certificate was published."""

    cluster: ClusterKey
    member: MachineView
    node_name: NodeName
    provider: ProviderName
    purpose: Purpose
    serial: str
    not_after: datetime
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CSRDenied:
    """A request was denied for good."""

    cluster: ClusterKey
    provider_id: ProviderID
    """As the request claims it: proven by nothing."""
    node_name: NodeName
    """As the request claims it; proven where ``by_node``."""
    username: str
    by_node: bool
    """Whether the API server authenticated the requester as that very node (``system:node:<node_name>``)."""
    provider: ProviderName
    purpose: Purpose
    reason: Reason
    request_name: str
    """Of the CertificateSigningRequest."""
    message: str = field(repr=False)
    """Expected, got and remedy: for the management cluster only."""
    at: datetime
    evaluated: bool = True
    """Whether a check refused the request; False where its time ran out before it was evaluated."""


class CSRObserver(Protocol):
    """Observes outcomes; both methods return at once."""

    def granted(self, verdict: CSRIssued) -> None:
        """Take in a certificate."""
        ...

    def refused(self, verdict: CSRDenied) -> None:
        """Take in a denial."""
        ...
