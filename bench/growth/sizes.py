"""How much a run of growth measures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    nodes: int = 5_000
    """Of the one cluster; a tenth as many join before, and again after them."""
    clusters: int = 200
    machines: int = 50
    """Of each of these clusters."""
    joins: int = 5
    """Nodes of each cluster that join through one controller, and again through those that share."""
    replicas: int = 3
    ledgers: int = 10_000
    """MachineAttestations of a cold start."""
    at_once: int = 500
    """Nodes that are on their way at the same time."""
    joiners: int = 4
    """Processes of nodes."""
    server_processes: int = 2
    """That serve the workload clusters."""
    seconds: int = 600
    """The longest that a node tries."""
