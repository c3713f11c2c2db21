"""Each import contract is shown red once: a copy of the tree with one forbidden import must fail the linter."""

from __future__ import annotations

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

BREACHES = [
    (
        "Packages are layers",
        "providers/nodeattest_providers/identifiers.py",
        "import nodeattest_controller.model.machine_view",
    ),
    ("The sandbox stands alone", "sandbox/nodeattest_sandbox/pki.py", "import nodeattest_providers.identifiers"),
    (
        "Providers are independent of each other",
        "providers/nodeattest_providers/tpm/config.py",
        "import nodeattest_providers.challenge.protocol",
    ),
    (
        "The controller never imports an attestor",
        "controller/nodeattest_controller/controllers/csr/issuer.py",
        "import nodeattest_providers.tpm.attestor",
    ),
    (
        "The controller never imports an attestor",
        "controller/nodeattest_controller/controllers/csr/issuer.py",
        "import nodeattest_providers.tpm.node.device",
    ),
    (
        "The agent never imports a verifier, nodeattest_kube or a heavy library",
        "authenticator/nodeattest_authenticator/enrollment/enroll.py",
        "import nodeattest_providers.tpm.verifier",
    ),
    (
        "The agent never imports a verifier, nodeattest_kube or a heavy library",
        "authenticator/nodeattest_authenticator/enrollment/enroll.py",
        "import nodeattest_providers.aws.api.sts",
    ),
    (
        "The agent's parts are layers",
        "authenticator/nodeattest_authenticator/state/storage.py",
        "import nodeattest_authenticator.context",
    ),
    (
        "The controller's parts are layers",
        "controller/nodeattest_controller/model/policy.py",
        "import nodeattest_controller.runtime.indexes",
    ),
    (
        "Discovery's parts are layers",
        "discovery/nodeattest_discovery/token.py",
        "import nodeattest_discovery.tls",
    ),
    (
        "Discovery's core and node half stay light",
        "discovery/nodeattest_discovery/tls.py",
        "import nodeattest_kube.client",
    ),
    (
        "Nothing that runs in a cluster or on a node imports the official client",
        "kube/nodeattest_kube/transport.py",
        "import kubernetes",
    ),
    (
        "The rules of identity do no I/O",
        "controller/nodeattest_controller/model/resolver.py",
        "import nodeattest_kube.client",
    ),
    (
        "Controllers do not know each other",
        "controller/nodeattest_controller/controllers/csr/issuer.py",
        "import nodeattest_controller.controllers.node_attested.conditions",
    ),
    (
        "Identity's parts are layers",
        "identity/nodeattest_identity/issuer/keys.py",
        "import nodeattest_identity.tokens.jwt",
    ),
    (
        "Nothing that ships imports tpm2-pytss",
        "providers/nodeattest_providers/tpm/node/commands.py",
        "import tpm2_pytss",
    ),
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("tree")
    for room in ROOMS:
        shutil.copytree(TREE / room, target / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(TREE / "pyproject.toml", target)
    return target


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    paths = ":".join(str(tree / room) for room in ROOMS)
    environment = {"PYTHONPATH": paths, "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [LINTER, "--no-cache"], cwd=tree, env=environment, capture_output=True, text=True, check=False
    )


def test_the_tree_as_it_is_keeps_every_contract(copy: Path) -> None:
    found = lint(copy)
    assert found.returncode == 0, found.stdout
    contracts = tomllib.loads((TREE / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert {one["name"] for one in contracts} == {name for name, _, _ in BREACHES}
    for name, _, _ in BREACHES:
        assert f"{name} KEPT" in found.stdout


@pytest.mark.parametrize(("contract", "module", "line"), BREACHES, ids=[name for name, _, _ in BREACHES])
def test_a_breach_turns_its_contract_red(copy: Path, contract: str, module: str, line: str) -> None:
    path = copy / module
    before = path.read_text()
    path.write_text(
        before.replace("from __future__ import annotations\n", f"from __future__ import annotations\n{line}\n")
    )
    try:
        found = lint(copy)
    finally:
        path.write_text(before)
    assert found.returncode != 0
    assert f"{contract} BROKEN" in found.stdout
