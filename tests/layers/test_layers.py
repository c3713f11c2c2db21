"""Each import contract is shown red once: a copy of the tree with forbidden imports must fail the linter."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]
ROOMS = (
    "parsing",
    "providers",
    "kube",
    "serving",
    "discovery",
    "identity",
    "authenticator",
    "controller",
    "sandbox",
    "cli",
)
LINTER = Path(sys.prefix) / "bin" / "lint-imports"

BREACHES = (
    ("nodeattest_providers.identifiers", "nodeattest_controller.model.policy"),
    ("nodeattest_sandbox.pki", "nodeattest_providers.identifiers"),
    ("nodeattest_providers.tpm.config", "nodeattest_providers.challenge.protocol"),
    ("nodeattest_controller.controllers.csr.issuer", "nodeattest_providers.tpm.attestor"),
    ("nodeattest_controller.controllers.csr.issuer", "nodeattest_providers.tpm.node.device"),
    ("nodeattest_controller.controllers.csr.issuer", "nodeattest_controller.controllers.node_attested.conditions"),
    ("nodeattest_authenticator.enrollment.enroll", "nodeattest_providers.tpm.verifier"),
    ("nodeattest_authenticator.enrollment.enroll", "nodeattest_providers.aws.api.sts"),
    ("nodeattest_authenticator.state.storage", "nodeattest_authenticator.context"),
    ("nodeattest_controller.model.policy", "nodeattest_controller.runtime.indexes"),
    ("nodeattest_discovery.token", "nodeattest_discovery.tls"),
    ("nodeattest_discovery.tls", "nodeattest_kube.client"),
    ("nodeattest_kube.transport", "kubernetes"),
    ("nodeattest_controller.model.resolver", "nodeattest_kube.client"),
    ("nodeattest_identity.issuer.keys", "nodeattest_identity.tokens.jwt"),
    ("nodeattest_providers.tpm.node.commands", "tpm2_pytss"),
)
"""A module, and what it must not import: at least one for each contract."""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("tree")
    for room in ROOMS:
        shutil.copytree(TREE / room, target / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(TREE / "pyproject.toml", target)
    return target


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    paths = ":".join(str(tree / room) for room in ROOMS)
    environment = {"PYTHONPATH": paths, "PATH": "/usr/bin:/bin", "COLUMNS": "400"}
    return subprocess.run(
        [LINTER, "--no-cache"], cwd=tree, env=environment, capture_output=True, text=True, check=False
    )


def contracts() -> set[str]:
    settings = tomllib.loads((TREE / "pyproject.toml").read_text())["tool"]["importlinter"]
    return {contract["name"] for contract in settings["contracts"]}


def test_the_tree_as_it_is_keeps_every_contract(copy: Path) -> None:
    found = lint(copy)
    assert found.returncode == 0, found.stdout
    assert [name for name in contracts() if f"{name} KEPT" not in found.stdout] == []


def test_each_breach_is_found_and_each_contract_has_one(copy: Path) -> None:
    for module, imported in BREACHES:
        [path] = copy.glob(f"*/{module.replace('.', '/')}.py")
        begin = "from __future__ import annotations\n"
        path.write_text(path.read_text().replace(begin, f"{begin}import {imported}\n", 1))
    found = lint(copy)
    assert found.returncode != 0
    sections = re.split(r"\n(.+)\n-+\n\n", found.stdout.partition("Broken contracts")[2])
    arrows = [f"{module} -> {imported}" for module, imported in BREACHES]
    texts = dict(zip(sections[1::2], sections[2::2], strict=True))
    told = {name: [one for one in arrows if one in text] for name, text in texts.items()}
    assert {name for name, held in told.items() if held} == contracts(), found.stdout
    assert {one for held in told.values() for one in held} == set(arrows), found.stdout
