"""docs/versions.md says of Kubernetes and Cluster API what code and manifests have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
import yaml

from nodeattest_cli.doctor.supported_versions import CONTRACTS, NEWEST_TESTED, OLDEST, OLDEST_MANAGEMENT

TREE: Final = Path(__file__).parents[2]
PAGE: Final = (TREE / "docs" / "versions.md").read_text(encoding="utf-8")
CODE: Final = ("providers", "kube", "serving", "discovery", "identity", "authenticator", "controller", "cli")
FEATURES: Final = {
    "CertificateSigningRequest": ("1.19", '_CSR: Final = ("certificates.k8s.io", "v1"'),
    "PodDisruptionBudget": ("1.21", "apiVersion: policy/v1"),
    "exec credential plugin": ("1.22", "_EXEC_V1: Final = (1, 22)"),
    "`spec.expirationSeconds`": ("1.22", '"spec", "expirationSeconds"'),
    "CEL rules in definitions": ("1.25", "1.25 drop them"),
    "SelfSubjectReview": ("1.28", "Kubernetes before 1.28 cannot"),
    "`matchConditions` of webhooks": ("1.28", "matchConditions: ["),
    "ValidatingAdmissionPolicy": ("1.30", "Kubernetes 1.30 and later a ValidatingAdmissionPolicy"),
    "the same": ("1.30", "Kubernetes 1.30 or newer"),
    "kubelet reloads": ("1.31", "1.31 or newer"),
    "`X-Remote-Uid`": ("1.33", "before 1.33"),
}
"""By how a row begins: its version, and what the file that it names says."""
UNUSED: Final = ("sendInitialEvents", "application/apply-patch+yaml", "podcertificaterequests")


def rows(section: str) -> list[list[str]]:
    """Return the cells of the rows of a section's tables, their heads included."""
    body = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = [line for line in body.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def versions_of(module: Path) -> list[str]:
    """Return the versions in a module's constant ``_VERSIONS``."""
    constant = re.search(r"^_VERSIONS: Final = \((.*)\)$", module.read_text(encoding="utf-8"), re.MULTILINE)
    assert constant is not None
    return re.findall(r'"(\w+)"', constant[1])


def features() -> list[list[str]]:
    return [row for row in rows("What needs which Kubernetes") if re.fullmatch(r"1\.\d+", row[1])]


def test_the_oldest_and_the_newest_kubernetes_are_those_that_were_tested() -> None:
    limits = (TREE / "docs" / "limits.md").read_text(encoding="utf-8")
    section = limits.partition("\n## What was tested\n")[2].partition("\n## ")[0]
    tested = re.findall(r"\b1\.\d\d\.\d+\b", section.partition("`CAPI_ASSETS`")[0])  # below: Cluster API's versions
    row = next(line for line in PAGE.splitlines() if line.startswith("| Kubernetes, workload clusters"))
    _, _, supported, seen, *_ = row.split("|")
    assert sorted(set(tested)) == re.findall(r"\b1\.\d\d\.\d+\b", seen)
    assert tested[0].startswith(f"{supported.split()[0]}.")


def test_what_doctor_compares_with_is_the_table() -> None:
    told = {
        row.split(" | ")[0].strip("| "): re.findall(r"\b1\.(\d\d)\b", row.split(" | ")[1])
        for row in PAGE.splitlines()
        if row.startswith("| Kubernetes, ")
    }
    assert told == {
        "Kubernetes, workload clusters": [str(OLDEST[1])],
        "Kubernetes, management clusters": [str(OLDEST_MANAGEMENT[1]), str(OLDEST[1])],
    }
    seen = next(row for row in PAGE.splitlines() if row.startswith("| Kubernetes, workload")).split(" | ")[2]
    assert max(int(minor) for minor in re.findall(r"\b1\.(\d\d)\.\d+\b", seen)) == NEWEST_TESTED[1]
    contracts = next(row for row in PAGE.splitlines() if row.startswith("| Cluster API contracts"))
    assert tuple(re.findall(r"`(v1beta\d)`", contracts)) == CONTRACTS


@pytest.mark.parametrize("begins", FEATURES)
def test_a_feature_needs_the_version_that_its_code_says(begins: str) -> None:
    version, said = FEATURES[begins]
    row = next(row for row in features() if row[0].startswith(begins))
    assert row[1] == version
    path = TREE / row[-1].strip("` ")
    assert said in path.read_text(encoding="utf-8")


def test_every_feature_is_compared_with_its_code() -> None:
    assert len(features()) == len(FEATURES)
    versions = [tuple(map(int, row[1].split("."))) for row in features()]
    assert versions == sorted(versions)


def test_each_folder_with_a_limit_is_of_the_version_that_the_page_gives() -> None:
    told = {
        row[0].strip("`"): row[1].strip("`") for row in rows("What needs which Kubernetes") if "manifests/cl" in row[0]
    }
    folders = sorted((TREE / "manifests").glob("cluster-info-limit*"))
    assert sorted(told) == [f"manifests/{folder.name}" for folder in folders]
    for folder in folders:
        objects = list(yaml.safe_load_all((folder / "limit.yaml").read_text(encoding="utf-8")))
        assert {one["apiVersion"] for one in objects} == {told[f"manifests/{folder.name}"]}


def test_what_is_said_to_be_unused_is_in_no_source() -> None:
    told = [row[0] for row in rows("What is not used")]
    for name in UNUSED:
        assert any(f"`{name}`" in cell for cell in told)
        using = [
            path for room in CODE for path in (TREE / room).rglob("*.py") if name in path.read_text(encoding="utf-8")
        ]
        assert using == []


def test_contracts_are_those_that_are_rendered_and_released() -> None:
    head = rows("Cluster API")[0]
    contracts = [cell.strip("` ") for cell in head[1:]]
    metadata = yaml.safe_load((TREE / "manifests" / "metadata.yaml").read_text(encoding="utf-8"))
    assert [one["contract"] for one in metadata["releaseSeries"]] == contracts
    fields = TREE / "controller/nodeattest_controller/controllers/bootstrap_config/kubeadmconfig/fields.py"
    assert versions_of(fields) == contracts


def test_versions_of_kubeadms_configuration_are_those_that_the_agent_reads() -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith("| kubeadm configuration"))
    told = re.findall(r"`(v1beta\d)`", row)
    assert versions_of(TREE / "authenticator/nodeattest_authenticator/commands/kubeadm_config.py") == told
