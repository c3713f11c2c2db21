"""What ``kubectl kustomize`` makes of a folder of ours, by the kubectl that is there.

kubectl before 1.21 (kustomize 2.0.3) wants folders under ``bases``, which later ones took into ``resources``, and the
patches of ``patches`` under two names: a copy is rewritten for it, and that is all that is changed.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final, cast

import yaml

from nodeattest_controller import manifests
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["TREE", "documents", "kustomizations", "kustomized"]

TREE: Final = Path(manifests.__file__).parents[2] / "manifests"


def kustomizations() -> list[str]:
    """Name every folder of ours that can be applied."""
    return sorted(str(file.parent.relative_to(TREE)) for file in TREE.rglob("kustomization.yaml"))


def kustomized(kubectl: Path, folder: str, scratch: Path) -> str:
    """Build a folder."""
    copy = scratch / "manifests"
    if not copy.exists():
        shutil.copytree(TREE, copy)
        for file in copy.rglob("kustomization.yaml"):
            _rewrite(file)
    built = subprocess.run([kubectl, "kustomize", copy / folder], capture_output=True, text=True, check=False)
    assert built.returncode == 0, f"{folder}: {built.stderr}"
    return built.stdout


def documents(text: str) -> list[JsonObject]:
    """Read what was built."""
    return [cast("JsonObject", document) for document in yaml.safe_load_all(text) if document]


def _rewrite(file: Path) -> None:
    content = cast("dict[str, object]", yaml.safe_load(file.read_text()))
    patches = cast("list[dict[str, object]]", content.pop("patches", []))
    content["patchesJson6902"] = [patch for patch in patches if "target" in patch]
    content["patchesStrategicMerge"] = [patch["path"] for patch in patches if "target" not in patch]
    named = cast("list[str]", content.get("resources", []))
    folders = [name for name in named if (file.parent / name).is_dir()]
    content["resources"] = [name for name in named if name not in folders]
    if folders:
        content["bases"] = folders
    file.write_text(yaml.safe_dump(content))
