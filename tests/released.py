"""The release under test: NODEATTEST_DIST names its folder where one was made before, as in CI."""

from __future__ import annotations

import os
from pathlib import Path


def released(pattern: str) -> list[Path]:
    """Return the release's files of this pattern; nothing where none was made, and the test builds its own."""
    folder = os.environ.get("NODEATTEST_DIST", "")
    if not folder:
        return []
    found = sorted(Path(folder).glob(pattern))
    assert found, f"NODEATTEST_DIST: expected {pattern} in {folder}, got none: make release"
    return found
