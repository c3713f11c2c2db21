"""Which versions of Kubernetes and Cluster API this release supports: docs/versions.md has the same, by a test."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["CONTRACTS", "NEWEST_TESTED", "OLDEST", "OLDEST_MANAGEMENT", "minor_version"]

OLDEST: Final = (1, 20)
OLDEST_MANAGEMENT: Final = (1, 21)
"""A management cluster that is older does without a part of the manifests."""
NEWEST_TESTED: Final = (1, 36)
CONTRACTS: Final = ("v1beta1", "v1beta2")
"""Of Cluster API."""
_VERSION: Final = re.compile(r"v?(\d{1,3})\.(\d{1,4})\b", re.ASCII)


def minor_version(version: str) -> tuple[int, int] | None:
    """Return major and minor of a server's ``gitVersion``; None where it has another form."""
    parsed = _VERSION.match(version)
    return (int(parsed[1]), int(parsed[2])) if parsed else None
