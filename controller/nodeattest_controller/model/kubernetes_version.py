"""Versions of Kubernetes, as servers and Clusters say them."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["minor_version"]

_VERSION: Final = re.compile(r"v?(\d{1,3})\.(\d{1,4})(?!\d)", re.ASCII)


def minor_version(version: str) -> tuple[int, int] | None:
    """Return major and minor of ``v1.36.2`` or of a server's ``gitVersion``; None where it has another form."""
    parsed = _VERSION.match(version)
    return (int(parsed[1]), int(parsed[2])) if parsed else None
