"""Every Reason is explained in docs/denials.md, is given by some code, and is expected by some test."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

from nodeattest_providers.errors import Reason

TREE = Path(__file__).parents[2]
PAGE = (TREE / "docs" / "denials.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", PAGE.partition("\n## On the node\n")[0], re.MULTILINE)
ROOMS = ("parsing", "providers", "kube", "serving", "discovery", "identity", "authenticator", "controller", "cli")


def named(files: Iterable[Path]) -> set[Reason]:
    """Return the members that modules name as ``Reason.NAME``, by their syntax trees."""
    names: set[str] = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Attribute(ast.Name("Reason"), name):
                    names.add(name)
                case _:
                    pass
    return {reason for reason in Reason if reason.name in names}


def test_every_reason_is_explained_once_in_the_order_of_the_code_and_no_other_is() -> None:
    assert [reason for reason, _, _ in ROWS] == list(Reason)


def test_every_reason_is_given_by_code_and_expected_by_a_test() -> None:
    given = named(file for room in ROOMS for file in (TREE / room).rglob("*.py") if file.name != "errors.py")
    tests = TREE / "tests"
    expected = named(file for file in tests.rglob("*.py") if "docs" not in file.parts)
    rows = "".join(file.read_text(encoding="utf-8") for file in (tests / "attacks" / "catalogue").glob("*.toml"))
    expected |= {reason for reason in Reason if re.search(rf'expect = "(deny|wait) {reason}\b', rows)}
    assert (sorted(set(Reason) - given), sorted(given - expected)) == ([], [])
