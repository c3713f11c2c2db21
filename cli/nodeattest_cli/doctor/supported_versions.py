"""Which versions of Kubernetes and Cluster API this release supports: docs/versions.md has the same, by a test."""

from __future__ import annotations

from typing import Final

__all__ = ["CONTRACTS", "NEWEST_TESTED", "OLDEST", "OLDEST_MANAGEMENT"]

OLDEST: Final = (1, 31)
OLDEST_MANAGEMENT: Final = (1, 33)
"""The oldest Kubernetes on which Cluster API 1.14 runs. A management cluster without Cluster API needs ``OLDEST``."""
NEWEST_TESTED: Final = (1, 37)
CONTRACTS: Final = ("v1beta1", "v1beta2")
"""Of Cluster API."""
