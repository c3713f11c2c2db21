"""docs/threat-model.md names no test that does not exist, and no module either."""

from __future__ import annotations

import re
from pathlib import Path

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
