"""The dashboard of ``manifests/grafana`` asks for what the controller measures, in words that Prometheus takes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from needs import lacks

TREE: Final = Path(__file__).parents[2]
DASHBOARD: Final[Any] = json.loads((TREE / "manifests/grafana/dashboard.json").read_text(encoding="utf-8"))
PANELS: Final[list[Any]] = DASHBOARD["panels"]
OF_SCRAPING: Final = frozenset({"pod", "le"})
"""Labels that a metric has though its server does not name them."""


def expressions() -> Iterator[str]:
    """Yield each query as Prometheus sees it, Grafana's variables filled in."""
    for panel in PANELS:
        for target in panel.get("targets", ()):
            yield target["expr"].replace("$__rate_interval", "5m").replace("$cluster", ".*")


def documented() -> dict[str, frozenset[str]]:
    """Return each metric of the page with its labels; the page is made from the code."""
    page = (TREE / "docs/metrics.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| `(\w+)(?:\{([\w,]+)\})?` \| \w+ \|", page, re.MULTILINE)
    return {name: frozenset(labels.split(",")) - {""} for name, labels in found}


def test_every_query_asks_for_a_metric_and_labels_that_there_are() -> None:
    metrics = documented()
    queries = list(expressions())
    assert len(queries) > len(PANELS) / 2
    for query in queries:
        names = {
            re.sub(r"_(bucket|sum|count)$", "", one)
            for one in re.findall(r"\b(?:nodeattest|workqueue|rest_client)_\w+", query)
        }
        assert names, query
        assert names <= metrics.keys(), query
        labels = frozenset[str]().union(*(metrics[name] for name in names)) | OF_SCRAPING
        used = {one for group in re.findall(r"\bby \(([\w, ]+)\)", query) for one in group.split(", ")}
        used |= set(re.findall(r"[{,](\w+)(?:=~|!~|=|!=)\"", query))
        assert used <= labels, f"{query}: {used - labels}"


def test_prometheus_takes_every_query(tmp_path: Path) -> None:
    tool = shutil.which("promtool")
    if tool is None:
        lacks("promtool is not installed: tools/system-packages prometheus")
    rules = [{"record": f"dashboard:{number}", "expr": query} for number, query in enumerate(expressions())]
    (tmp_path / "queries.json").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    found = subprocess.run(
        [tool, "check", "rules", "queries.json"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"{len(rules)} rules found" in found.stdout
