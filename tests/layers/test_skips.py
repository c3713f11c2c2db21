"""Every skip is one of ``tests/needs.py``: CI tells by its reason whether the test could have run."""

from __future__ import annotations

import ast
from pathlib import Path

from needs import NOT_POSSIBLE

TESTS = Path(__file__).parents[1]
OWN = {"skip", "importorskip", "xfail"}


def skips(path: Path) -> list[str]:
    """Return where a module skips in words of its own."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        called = ast.unparse(node.func)
        reasons = [each.value for each in node.keywords if each.arg == "reason"]
        said = [each.value for each in reasons if isinstance(each, ast.Constant)]
        own = called in {f"pytest.{name}" for name in OWN} or called in {"pytest.mark.skip", "pytest.mark.xfail"}
        if own or (called == "pytest.mark.skipif" and not all(str(one).startswith(NOT_POSSIBLE) for one in said)):
            found.append(f"{path.relative_to(TESTS)}:{node.lineno} {called}")
    return found


def test_no_test_is_skipped_in_words_of_its_own() -> None:
    paths = [path for path in TESTS.rglob("*.py") if path != TESTS / "needs.py"]
    assert [one for path in paths for one in skips(path)] == []
