"""What docs/denials.md says to do about a reason: the page itself, which ships with the command.

Promises: the same text from a wheel (``nodeattest_cli/denials.md``) and from a source tree. A reason that the page does
not have, as another version's, has no remedy.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

__all__ = ["remedy_of"]

_PAGE: Final = "denials.md"
_ROW: Final = re.compile(r"^\| `(\w+)` \| .* \| (.*) \|$", re.MULTILINE)
_AGENT_REASONS: Final = "\n## On the node\n"
"""The last section's reasons are the agent's own, some of the same names."""
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def remedy_of(reason: str) -> str:
    """Return what to do, as one line without markup; empty for a reason that the page does not have."""
    return _remedies().get(reason, "")


@cache
def _remedies() -> dict[str, str]:
    packaged = resources.files("nodeattest_cli") / _PAGE
    page = packaged if packaged.is_file() else Path(__file__).parents[3] / "docs" / _PAGE
    rows = _ROW.findall(page.read_text(encoding="utf-8").partition(_AGENT_REASONS)[0])
    return {reason: _plain(remedy) for reason, remedy in rows}


def _plain(markdown: str) -> str:
    """Take links and emphasis out of a cell."""
    return _LINK.sub(r"\1", markdown).replace("**", "")
