"""docs/proposals.md names one test for each requirement of the proposals, and each of these tests exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parents[1]
PAGE: Final = (
    (TESTS.parent / "docs" / "proposals.md").read_text(encoding="utf-8").partition("\n## Beside its peers\n")[0]
)
ROW: Final = re.compile(r"^\| (?!requirement|-)(.+) \| (.+) \| (.+) \|$", re.MULTILINE)
TEST: Final = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def test_each_requirement_of_each_proposal_names_one_test_that_exists() -> None:
    assert re.findall(r"^## (\d{3}), ", PAGE, re.MULTILINE) == ["000", "001", "002", "003", "004"]
    missing: list[str] = []
    for requirement, _, cell in ROW.findall(PAGE):
        named = TEST.fullmatch(cell)
        file = TESTS / named[1] if named else None
        if named is None or file is None or not file.is_file() or f"def {named[2]}(" not in file.read_text("utf-8"):
            missing.append(requirement)
    assert missing == []
