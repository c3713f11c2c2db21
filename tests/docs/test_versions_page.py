"""docs/install.md says of Kubernetes and Cluster API what code and manifests have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import yaml

from nodeattest_cli.doctor.findings import CONTRACTS, NEWEST_TESTED, OLDEST, OLDEST_MANAGEMENT

TREE: Final = Path(__file__).parents[2]
PAGE: Final = (TREE / "docs" / "install.md").read_text(encoding="utf-8")
TESTED: Final = re.compile(r"\b1\.\d\d\.\d+\b")


def row(begins: str) -> list[str]:
    """Return the cells of the first row that begins so."""
    line = next(line for line in PAGE.splitlines() if line.startswith(f"| {begins}"))
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def versions_of(module: str) -> list[str]:
    """Return the versions in a module's constant ``_VERSIONS``."""
    text = (TREE / module).read_text(encoding="utf-8")
    constant = re.search(r"^_VERSIONS: Final = \((.*)\)$", text, re.MULTILINE)
    assert constant is not None
    return re.findall(r'"(\w+)"', constant[1])


def test_the_tested_versions_of_kubernetes_are_those_of_the_page_of_limits() -> None:
    limits = (TREE / "docs" / "reliability.md").read_text(encoding="utf-8")
    first = limits.partition("\n### What was tested\n")[2].strip().partition("\n\n")[0]
    tested = TESTED.findall(row("Kubernetes, workload clusters")[2])
    assert sorted(tested) == sorted(TESTED.findall(first))
    minors = sorted(tuple(map(int, version.split(".")[:2])) for version in tested)
    assert (minors[0], minors[-1]) == (OLDEST, NEWEST_TESTED)


def test_what_doctor_compares_with_is_the_table() -> None:
    told = {name: re.findall(r"\b1\.(\d\d)\b", row(f"Kubernetes, {name}")[1]) for name in ("workload", "management")}
    assert told == {"workload": [str(OLDEST[1])], "management": [str(OLDEST_MANAGEMENT[1]), str(OLDEST[1])]}
    assert tuple(re.findall(r"`(v1beta\d)`", row("Cluster API contracts")[1])) == CONTRACTS


def test_contracts_are_those_that_are_rendered_and_released() -> None:
    contracts = [cell.strip("`") for cell in row("part")[1:]]
    metadata = yaml.safe_load((TREE / "manifests" / "metadata.yaml").read_text(encoding="utf-8"))
    assert [one["contract"] for one in metadata["releaseSeries"]] == contracts
    fields = "controller/nodeattest_controller/controllers/bootstrap_config/kubeadmconfig.py"
    assert versions_of(fields) == contracts
