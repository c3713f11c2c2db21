"""Which versions of Kubernetes and Cluster API this release supports: docs/versions.md has the same, by a test."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["CONTRACTS", "NEWEST_TESTED", "OLDEST", "OLDEST_MANAGEMENT", "minor_version"]

OLDEST: Final = (1, 31)
OLDEST_MANAGEMENT: Final = (1, 33)
"""The oldest Kubernetes on which Cluster API 1.14 runs. A management cluster without Cluster API needs ``OLDEST``."""
NEWEST_TESTED: Final = (1, 37)
CONTRACTS: Final = ("v1beta1", "v1beta2")
"""Of Cluster API."""
_VERSION: Final = re.compile(r"v?(\d{1,3})\.(\d{1,4})(?!\d)", re.ASCII)


def minor_version(version: str) -> tuple[int, int] | None:
    """Return major and minor of a server's ``gitVersion`` such as ``v1.37.2``; None where it has another form."""
    parsed = _VERSION.match(version)
    return (int(parsed[1]), int(parsed[2])) if parsed else None
