"""docs/threat-model.md names no test, module or proof that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

from tools.prove import LEDGER_RUNS, SCENARIOS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")


def test_every_named_test_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    written = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert named
    assert named - written == set()


def test_every_named_module_exists() -> None:
    named = set(
        re.findall(r"`((?:providers|controller|kube|authenticator|discovery|serving|identity|cli)/[a-z0-9_/]+)`", PAGE)
    )
    assert named
    for module in named:
        room, _, rest = module.partition("/")
        path = ROOT / room / f"nodeattest_{room}" / rest
        assert path.is_dir() or path.with_suffix(".py").is_file(), module


def test_every_row_names_what_is_proved_of_it_or_says_that_nothing_is() -> None:
    rows = PAGE.partition("| attack | by | stopped by | in | test | proof |\n")[2].partition("\n\n")[0].splitlines()[1:]
    assert rows
    named: set[tuple[str, str]] = set()
    for row in rows:
        cell = row.rstrip(" |").rpartition(" | ")[2]
        links = re.findall(r"\[(\w+\.(?:pv|pml))\]\(proof/README\.md\): ([^.\[]+)", cell)
        assert bool(links) is (cell != "none"), row
        named |= {(file, name) for file, names in links for name in names.split("; ")}
    queries = {(one.file, query.name, query.expected) for one in SCENARIOS for query in one.queries}
    hold = {(file, name) for file, name, expected in queries if expected == "true"}
    hold |= {(run.file, run.name) for run in LEDGER_RUNS if not run.fails}
    assert named == hold
