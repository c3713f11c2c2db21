"""How long a model checker computed, whatever else the machine does."""

from __future__ import annotations

import resource

__all__ = ["child_cpu_seconds"]


def child_cpu_seconds() -> float:
    """Return the CPU time of all programs that this process ran to their end."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
