"""docs/metrics.md and what is written for Prometheus say what the servers register."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from needs import lacks

from nodeattest_providers.errors import Reason
from tools.reference import series_names

TREE: Final = Path(__file__).parents[2]
RULES: Final[Any] = yaml.safe_load((TREE / "manifests/prometheus/rules.yaml").read_text(encoding="utf-8"))["spec"]
EVERY: Final = [rule for group in RULES["groups"] for rule in group["rules"]]
ALERTS: Final = {rule["alert"]: rule for rule in EVERY if "alert" in rule}
FIRING: Final[dict[str, tuple[str, str]]] = {
    "CertificateEndsSoon": (
        (
            'nodeattest_certificate_earliest_end_timestamp_seconds{cluster="ns/a"} 40000|'
            'nodeattest_certificate_earliest_lifetime_seconds{cluster="ns/a"} 86400'
        ),
        'cluster="ns/a"',
    ),
    "CertificateEnded": ('nodeattest_machines{cluster="ns/a",state="expired"} 2', 'cluster="ns/a"'),
    "WebhookErrors": (
        'nodeattest_admission_requests_total{kind="KubeadmConfig",outcome="unavailable"} +6',
        'outcome="unavailable"',
    ),
    "PolicyNotReady": ('nodeattest_policies{reason="Conflict"} 1', 'reason="Conflict"'),
    "AutomaticApprovalOpen": ('nodeattest_in_tree_approval_blocked{cluster="ns/a"} 0', 'cluster="ns/a"'),
    "NobodyServes": ("nodeattest_leader 0", ""),
    "ClusterUnreachable": ('nodeattest_cluster_connected{cluster="ns/a"} 0', 'cluster="ns/a"'),
    "CacheFull": ("nodeattest_cache_passed_over 3", ""),
    "FailedNodes": ('nodeattest_failed_nodes{cluster="ns/a",state="failing"} 2', 'cluster="ns/a"'),
    "Forbidden": (
        (
            'rest_client_requests_total{method="GET",code="403",job="j",instance="i"} +6|'
            'nodeattest_leader{job="j",instance="i"} 0'
        ),
        'method="GET"',
    ),
}


def test_rules_speak_of_metrics_that_a_server_has() -> None:
    known = series_names() | {rule["record"] for rule in EVERY if "record" in rule}
    for rule in EVERY:
        used = set(re.findall(r"\b(?:nodeattest|workqueue|rest_client)[_:][\w:]+", rule["expr"]))
        assert used, rule
        assert used <= known, f"{rule}: {used - known}"


def test_every_alert_has_a_summary_and_a_runbook_and_every_runbook_an_alert() -> None:
    runbooks = (TREE / "docs" / "runbooks.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^### (NodeAttestation\w+)$", runbooks, re.MULTILINE)) == sorted(ALERTS)
    for name, rule in ALERTS.items():
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{name.lower()}"


def promtool(path: Path, *words: str, **files: object) -> str:
    """Run promtool beside these files; return what it printed."""
    tool = shutil.which("promtool")
    if tool is None:
        lacks("promtool is not installed: tools/system-packages prometheus")
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    found = subprocess.run([tool, *words], cwd=path, capture_output=True, text=True, timeout=150, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def _case(series: str, wanted: str | None, name: str) -> dict[str, object]:
    """Feed constant series (or with ``+`` a counter) for eight hours; values are constants of the test."""
    given = [one.rpartition(" ") for one in series.split("|")]
    rows = [
        {"series": one, "values": f"0{value}x480" if value.startswith("+") else f"{value}+0x480"}
        for one, _, value in given
    ]
    alert: dict[str, object] = {"eval_time": "7h", "alertname": name}
    rule = ALERTS[name]
    labels = dict(re.findall(r'(\w+)="([^"]*)"', wanted or "")) | rule["labels"]
    texts = {key: _filled(text, labels) for key, text in rule["annotations"].items()}
    alert["exp_alerts"] = [] if wanted is None else [{"exp_labels": labels, "exp_annotations": texts}]
    return {"interval": "1m", "input_series": rows, "alert_rule_test": [alert]}


def _filled(text: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda hit: labels.get(hit[1], ""), text).replace("{{ $value }}", "2")


def test_denials_that_are_normal_steps_of_a_join_fire_no_alert() -> None:
    [pattern] = re.findall(r'reason!~"(.*?)"', ALERTS["NodeAttestationDenials"]["expr"])
    normal = {reason for reason in Reason if re.fullmatch(pattern, reason)}
    assert normal == {Reason.SUPERSEDED, Reason.PROVIDER_ID_REQUIRED}


def test_alerts_fire_where_they_should_and_are_silent_where_all_is_well(tmp_path: Path) -> None:
    well = {
        "CertificateEndsSoon": FIRING["CertificateEndsSoon"][0].replace("40000", "60000"),
        "CertificateEnded": 'nodeattest_machines{cluster="ns/a",state="attested"} 2',
        "WebhookErrors": 'nodeattest_admission_requests_total{kind="KubeadmConfig",outcome="rendered"} +6',
        "PolicyNotReady": 'nodeattest_policies{reason="Valid"} 1',
        "AutomaticApprovalOpen": 'nodeattest_in_tree_approval_blocked{cluster="ns/a"} 1',
        "NobodyServes": "nodeattest_leader 1",
        "ClusterUnreachable": 'nodeattest_cluster_connected{cluster="ns/a"} 1',
        "CacheFull": "nodeattest_cache_passed_over 0",
        "FailedNodes": 'nodeattest_failed_nodes{cluster="ns/a",state="failing"} 0',
        "Forbidden": (
            'rest_client_requests_total{method="GET",code="404",job="j",instance="i"} +6|'
            'rest_client_requests_total{method="GET",code="403",job="of another program",instance="i"} +6|'
            'nodeattest_leader{job="j",instance="i"} 1'
        ),
    }
    assert well.keys() == FIRING.keys()
    groups = [_case(series, labels, f"NodeAttestation{name}") for name, (series, labels) in FIRING.items()]
    groups += [_case(series, None, f"NodeAttestation{name}") for name, series in well.items()]
    tests = {"rule_files": ["rules.json"], "evaluation_interval": "5m", "tests": groups}
    promtool(tmp_path, "test", "rules", "tests.json", rules=RULES, tests=tests)


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
    rules = [{"record": f"dashboard:{number}", "expr": query} for number, query in enumerate(expressions())]
    queries = {"groups": [{"name": "dashboard", "rules": rules}]}
    assert f"{len(rules)} rules found" in promtool(tmp_path, "check", "rules", "queries.json", queries=queries)
