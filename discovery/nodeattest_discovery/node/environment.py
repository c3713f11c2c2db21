"""What discovery takes from its caller: a clock, somebody to report to, and how long it may take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from nodeattest_discovery.node.clock import Clock, Deadline

__all__ = ["LIMIT", "RETRY", "Environment"]

LIMIT: Final = 300.0
"""Seconds for a whole discovery (kubeadm constants.DiscoveryTimeout, its timeouts.discovery)."""
RETRY: Final = 5.0
"""Seconds between two attempts (kubeadm constants.DiscoveryRetryInterval)."""


def _tell_nobody(line: str) -> None:
    del line


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Arguments of every way of discovery."""

    clock: Clock = field(default_factory=Clock)
    log: Callable[[str], None] = _tell_nobody
    """Takes one line for the person who waits; never a secret."""
    limit: float = LIMIT
    """Seconds for the whole of one discovery."""
    public_roots: bytes | None = None
    """CAs in PEM for servers of public names (a discovery file by URL); None: those of this machine."""

    def deadline(self) -> Deadline:
        """Start the clock of one discovery."""
        return Deadline.after(self.clock, self.limit)
