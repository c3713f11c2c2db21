"""docs/denials.md explains every Reason, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from nodeattest_providers.errors import Reason

PAGE = (Path(__file__).parents[2] / "docs" / "denials.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", PAGE.partition("\n## On the node\n")[0], re.MULTILINE)


def test_every_reason_is_explained_once_in_the_order_of_the_code_and_no_other_is() -> None:
    assert [reason for reason, _, _ in ROWS] == list(Reason)
