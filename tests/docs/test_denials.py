"""docs/denials.md explains every Reason, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from nodeattest_providers.errors import Reason

PAGE = (Path(__file__).parents[2] / "docs" / "denials.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### (\S+)\n\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE))


def test_every_reason_is_explained_once_and_no_other_is() -> None:
    assert re.findall(r"^### (.*)$", PAGE, re.MULTILINE) == list(SECTIONS)
    assert sorted(SECTIONS) == sorted(Reason)


def test_every_explanation_says_what_to_do() -> None:
    assert [reason for reason in Reason if "**Do:**" not in SECTIONS[reason]] == []


def test_reasons_stand_in_the_order_of_the_code() -> None:
    assert list(SECTIONS) == list(Reason)
