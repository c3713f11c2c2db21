"""What the demo found out: who joined, who was refused, and whether that is what had to happen. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nodeattest_providers.errors import Reason
from nodeattest_providers.node_interface import JsonObject

__all__ = ["Joined", "Refused", "Report"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A machine that became a node."""

    node: str
    machine: str
    provider: str
    signer: str
    not_after: str
    """RFC 3339, from the certificate itself."""
    proof: str
    """How the API server told whose credential this is."""

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
class Refused:
    """An impostor's attempt and the answer that it got."""

    attempt: str
    expected: tuple[Reason, ...]
    """Every reason that is right; mostly one."""
    reason: str
    """The reason of the request's condition; ``Issued`` when the impostor got a certificate."""
    message: str

    @property
    def is_right(self) -> bool:
        """Whether it was refused, and for the right reason."""
        return self.reason in self.expected

    def to_json(self) -> JsonObject:
        """Return the entry of ``refused``."""
        return {"attempt": self.attempt, "reason": self.reason, "message": self.message}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The demo's outcome."""

    joined: Sequence[Joined]
    refused: Sequence[Refused]
    """The attempts whose answer was a refusal."""
    problems: Sequence[str]
    """What went otherwise than it had to; empty is success."""

    def to_json(self) -> JsonObject:
        """Return the one object that ``--json`` prints."""
        return {
            "joined": [entry.to_json() for entry in self.joined],
            "refused": [entry.to_json() for entry in self.refused],
        }
