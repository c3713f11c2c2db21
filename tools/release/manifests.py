"""The manifests of a release: kustomizations as kubectl builds them, the provider for clusterctl, and archives.

Of kustomize this knows the fields that ``manifests/default`` and its overlays use, and refuses any other. A test
compares with kubectl. The provider has the layout of a local repository.
Source: https://kubectl.docs.kubernetes.io/references/kustomize/kustomization/,
https://cluster-api.sigs.k8s.io/developer/providers/contracts/clusterctl.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

import jsonpatch
import yaml

from images.debian import TREE
from nodeattest_providers import __version__
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, items_at, text_at

_FIELDS: Final = frozenset({"apiVersion", "kind", "resources", "patches", "images"})
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


def key(document: JsonMap) -> tuple[str, str, str]:
    """Return kind, namespace and name."""
    return text_at(document, "kind"), text_at(document, "metadata", "namespace"), text_at(document, "metadata", "name")


def build(folder: Path, instead: Sequence[JsonMap] = ()) -> list[JsonMap]:
    """Return the objects of a kustomization; ``instead``: those in place of the resources that are in other folders.

    Patches and bindings of what is not among them are left out then.
    """
    [kustomization] = _documents(folder / "kustomization.yaml")
    if unknown := sorted(kustomization.keys() - _FIELDS):
        raise SystemExit(f"{folder}: expected {', '.join(sorted(_FIELDS))}, got {', '.join(unknown)}")
    made = [*instead]
    for name in cast("list[str]", items_at(kustomization, "resources")):
        if not (folder / name).is_dir():
            made += _documents(folder / name)
        elif not instead:
            made += build(folder / name)
    for patch in items_at(kustomization, "patches"):
        made = _patched(made, folder / text_at(patch, "path"), patch, may_miss=bool(instead))
    for image in items_at(kustomization, "images"):
        made = [cast("JsonMap", _with_tag(one, text_at(image, "name"), text_at(image, "newTag"))) for one in made]
    if not instead:
        return made
    roles = {(key(one)[0], key(one)[2]) for one in made}
    return [one for one in made if "roleRef" not in one or _role_of(one) in roles]


def _role_of(binding: JsonMap) -> tuple[str, str]:
    return text_at(binding, "roleRef", "kind"), text_at(binding, "roleRef", "name")


def _patched(made: list[JsonMap], file: Path, patch: JsonValue, *, may_miss: bool) -> list[JsonMap]:
    if isinstance(patch, dict) and "target" in patch:
        wanted = text_at(patch, "target", "kind"), text_at(patch, "target", "name")
        operations = jsonpatch.JsonPatch(yaml.safe_load(file.read_text(encoding="utf-8")))
        return [operations.apply(one) if (key(one)[0], key(one)[2]) == wanted else one for one in made]
    [change] = _documents(file)
    if not may_miss and key(change) not in map(key, made):
        raise SystemExit(f"{file}: expected an object that is there, got {key(change)}")
    if text_at(change, "$patch") == "delete":
        return [one for one in made if key(one) != key(change)]
    return [cast("JsonMap", _merged(one, change)) if key(one) == key(change) else one for one in made]


def _merged(value: JsonValue, change: JsonValue) -> JsonValue:
    """Merge objects by their fields and lists of named objects by the names; replace anything else."""
    if isinstance(value, dict) and isinstance(change, dict):
        merged = {**value, **{field: _merged(value.get(field), each) for field, each in change.items()}}
        return {field: each for field, each in merged.items() if each is not None}
    if not isinstance(value, list) or not isinstance(change, list) or not all(text_at(each, "name") for each in change):
        return change
    names = {text_at(each, "name"): each for each in change}
    there = [_merged(each, names.pop(text_at(each, "name"), {})) for each in value]
    return [*there, *names.values()]


def _with_tag(value: JsonValue, name: str, tag: str) -> JsonValue:
    match value:
        case dict():
            held = {field: _with_tag(each, name, tag) for field, each in value.items()}
            return {**held, "image": f"{name}:{tag}"} if held.get("image") == name else held
        case list():
            return [_with_tag(each, name, tag) for each in value]
        case _:
            return value


def _documents(file: Path) -> list[JsonMap]:
    return [cast("JsonMap", one) for one in yaml.safe_load_all(file.read_text(encoding="utf-8")) if one]


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
