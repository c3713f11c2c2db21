"""docs/metrics.md and what is written for Prometheus say what the servers register."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

TREE: Final = Path(__file__).parents[2]


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("metrics_reference", TREE / "tools" / "metrics_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks there for its own annotations
    spec.loader.exec_module(module)
    return module


TOOL: Final = _tool()


def test_the_page_is_what_the_servers_register() -> None:
    page = (TREE / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert TOOL.markdown(page) == page, "make reference"
    assert "| `nodeattest_verdicts_total{provider,verdict,reason}` | counter |" in page
    assert "| `nodeattest_machines{cluster,state}` | gauge |" in page


def test_each_server_tells_its_version() -> None:
    assert [name for name in TOOL.SERVERS if "nodeattest_build_info" not in {row.name for row in TOOL.rows(name)}] == []
