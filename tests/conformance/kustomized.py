"""What ``kubectl kustomize`` makes of a folder of ours."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final, cast

import yaml

from nodeattest_controller import manifests
from nodeattest_parsing.values import JsonObject

TREE: Final = Path(manifests.__file__).parents[2] / "manifests"


def kustomizations() -> list[str]:
    """Name every folder of ours that can be applied."""
    return sorted(str(file.parent.relative_to(TREE)) for file in TREE.rglob("kustomization.yaml"))


def kustomized(kubectl: Path, folder: str) -> str:
    """Build a folder."""
    built = subprocess.run([kubectl, "kustomize", TREE / folder], capture_output=True, text=True, check=False)
    assert built.returncode == 0, f"{folder}: {built.stderr}"
    return built.stdout


def documents(text: str) -> list[JsonObject]:
    """Read what was built."""
    return [cast("JsonObject", document) for document in yaml.safe_load_all(text) if document]
