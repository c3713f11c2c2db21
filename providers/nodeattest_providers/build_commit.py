"""The commit that a wheel was built from, or that of a checkout. ``hatch_build.py`` beside the package fills it in."""

from __future__ import annotations

from pathlib import Path
from typing import Final

COMMIT: Final = ""
"""Empty: not a wheel but a checkout."""
UNKNOWN: Final = "unknown"
_DESCRIBE: Final = ("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def of_checkout() -> str:
    """Ask git; ``unknown`` where it does not know this file, or is not installed."""
    import subprocess

    here = Path(__file__).resolve()
    known = ("git", "ls-files", "--error-unmatch", here.name)
    try:
        subprocess.run(known, cwd=here.parent, capture_output=True, timeout=10, check=True)
        said = subprocess.run(_DESCRIBE, cwd=here.parent, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return said.stdout.strip()
