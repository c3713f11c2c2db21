"""The manifests that ship with the controller, as objects.

Promises: the same manifests from a wheel (``nodeattest_controller/manifests``) and from a source tree
(``manifests/`` at its top). Leaves applying them to kubectl, or to a program with a client.
"""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final, cast

import yaml

from nodeattest_parsing.values import JsonObject

_PACKAGE: Final = "nodeattest_controller"
_FOLDER: Final = "manifests"


def crds() -> list[JsonObject]:
    """Return our CustomResourceDefinitions."""
    return objects("crd")


def objects(base: str) -> list[JsonObject]:
    """Return every object of a base (``crd``, ``rbac``, ``manager``, ``workload-rbac``, …), in order of the files."""
    return deepcopy(_parsed(base))


@cache
def _parsed(base: str) -> list[JsonObject]:
    files = sorted(folder(base).iterdir(), key=lambda file: file.name)
    return [
        document
        for file in files
        if file.name.endswith(".yaml") and file.name != "kustomization.yaml"
        for document in cast("list[JsonObject]", list(yaml.safe_load_all(file.read_text(encoding="utf-8"))))
    ]


def folder(base: str) -> Traversable:
    """Return where a base stands; the empty one is the folder of all."""
    return _root() / base if base else _root()


def _root() -> Traversable:
    packaged = resources.files(_PACKAGE) / _FOLDER
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / _FOLDER
