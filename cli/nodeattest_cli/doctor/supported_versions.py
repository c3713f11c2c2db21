"""Which versions of Kubernetes and Cluster API this release supports: docs/versions.md has the same, by a test."""

from __future__ import annotations

from typing import Final

__all__ = ["CONTRACTS", "NEWEST_TESTED", "OLDEST", "OLDEST_MANAGEMENT"]

OLDEST: Final = (1, 20)
OLDEST_MANAGEMENT: Final = (1, 21)
"""A management cluster that is older does without a part of the manifests."""
NEWEST_TESTED: Final = (1, 36)
CONTRACTS: Final = ("v1beta1", "v1beta2")
"""Of Cluster API."""
