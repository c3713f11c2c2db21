"""Results of the demo: joined machines, refused attacks, and whether each is as expected. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nodeattest_providers.errors import Reason
from nodeattest_providers.node_interface import JsonObject

__all__ = ["AttackResult", "DemoReport", "JoinResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    """A machine that became a node."""

    node: str
    machine: str
    provider: str
    signer: str
    not_after: str
    """RFC 3339, from the certificate itself."""
    proof: str
    """How the API server confirmed the credential's identity."""

    def to_json(self) -> JsonObject:
        """Return the entry of ``joined``."""
        return {
            "node": self.node,
            "machine": self.machine,
            "provider": self.provider,
            "signer": self.signer,
            "notAfter": self.not_after,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult:
    """An attack and its outcome."""

    attempt: str
    expected: tuple[Reason, ...]
    """Accepted Reasons; usually one."""
    reason: str
    """Reason of the request's condition; ``Issued`` if the attacker got a certificate."""
    message: str

    @property
    def is_right(self) -> bool:
        """Whether it was refused for an expected Reason."""
        return self.reason in self.expected

    def to_json(self) -> JsonObject:
        """Return the entry of ``refused``."""
        return {"attempt": self.attempt, "reason": self.reason, "message": self.message}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """The demo's outcome."""

    joined: Sequence[JoinResult]
    refused: Sequence[AttackResult]
    """The attacks."""
    problems: Sequence[str]
    """Deviations from what is expected; empty means success."""
    automatic_approval: str = ""
    """Reason of the Cluster's condition once the in-tree signer's automatic approval was closed."""

    def to_json(self) -> JsonObject:
        """Return the one object that ``--json`` prints."""
        return {
            "joined": [entry.to_json() for entry in self.joined],
            "refused": [entry.to_json() for entry in self.refused],
            "automaticApproval": self.automatic_approval,
        }
