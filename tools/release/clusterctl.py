"""The controller as an add-on provider of clusterctl, in the layout of a local repository.

Source: https://cluster-api.sigs.k8s.io/developer/providers/contracts/clusterctl.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import yaml

from images.debian import TREE
from nodeattest_providers import __version__
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue
from tools.release.kustomize import build, key

PROVIDER: Final = "addon-nodeattest"
COMPONENTS: Final = "addon-components.yaml"
METADATA: Final = "metadata.yaml"
_LABEL: Final = "cluster.x-k8s.io/provider"
_IMAGE: Final = "image: node-attestation-controller"
_REGISTRY: Final = "registry.invalid"
"""clusterctl refuses an image without a registry. This one exists nowhere (RFC 2606): ``images`` of clusterctl's
configuration says where the user's is, and without it nobody else's is pulled."""
_VARIABLE: Final = "${"
"""clusterctl would look for a value of this variable."""


def write_provider(folder: Path, manifests: Path = TREE / "manifests") -> Path:
    """Write components and metadata of this version; returns their folder."""
    text = yaml.safe_dump_all(map(_labelled, build(manifests / "default")), sort_keys=False, width=1000)
    if _VARIABLE in text:
        raise SystemExit(f"{COMPONENTS}: expected no variables of clusterctl, got {_VARIABLE}")
    if text.count(_IMAGE) != 1:
        raise SystemExit(f"{COMPONENTS}: expected one {_IMAGE}, got {text.count(_IMAGE)}")
    text = text.replace(_IMAGE, _IMAGE.replace(" ", f" {_REGISTRY}/"))
    target = folder / PROVIDER / f"v{__version__}"
    target.mkdir(parents=True)
    (target / COMPONENTS).write_text(text, encoding="utf-8")
    (target / METADATA).write_text((manifests / METADATA).read_text(encoding="utf-8"), encoding="utf-8")
    return target


def _labelled(document: JsonMap) -> JsonMap:
    metadata: JsonValue = document["metadata"]
    if not isinstance(metadata, dict):
        raise SystemExit(f"expected metadata, got none: {key(document)}")
    labels = metadata.get("labels")
    held = {**(labels if isinstance(labels, dict) else {}), _LABEL: PROVIDER}
    return {**document, "metadata": {**metadata, "labels": held}}
